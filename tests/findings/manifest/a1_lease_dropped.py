"""One lease call by a clock that is ahead for a moment removes the live leases of everybody else."""
import asyncio
from support.manifest import STREAM, World
from unit.manifest.test_range_leases import fragments_left, hold, stored
from bottomless.model.stream import Lease
from bottomless_server.manifest.removal.range_leases import give_back, grant, renew
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.common.metrics import ManifestCounts
MIN, HOUR, DAY = 60_000, 3_600_000, 86_400_000

async def story(what, one_machine, skew, how):
    world = World(manifest_delete_grace_ms=0, manifest_fanout=100)
    world.one_machine = one_machine
    committer, _ = await stored(world, 6)
    await world.context.time.look()
    # job A: a Spark job that reads from 20 on, 6 hours
    await hold(world, 20, 6 * HOUR, "ls_A")
    await hold(world, 0, 6 * HOUR, "ls_C")     # someone else
    # the clock is ahead for five seconds; job B begins / ends / renews (as lease_routes.py does it)
    if how == "valkey":
        world.coordination._clock = lambda: world.clock.true() + skew
        world.clock.now += 61_000
        await world.context.time.look()
    else:
        world.clock.skew_ms = skew
    now = world.context.clock()
    if what == "grant":
        lease = Lease("ls_B", 40, 60, world.context.time.latest() + 10 * MIN, "job B")
        await grant(world.streams, STREAM, lease, world.context.clock)
    elif what == "give_back":
        await give_back(world.streams, STREAM, "ls_C", world.context.clock)
    else:
        try:
            await renew(world.streams, STREAM, "ls_C", HOUR, world.context.time.latest)
        except Exception as e:
            print("   renewal of a live lease:", type(e).__name__, e)
    moment = await world.context.time.look()
    print(f"{what:10} {how:7} +{skew//MIN} min, doubt then: {moment.doubt}; leases in the record now:",
          [l.lease_id for l in (await world.record()).leases])
    world.clock.now += 5_000
    world.clock.skew_ms = 0
    world.coordination._clock = world.clock if one_machine else world.clock.true
    if how == "valkey": world.clock.now += 61_000
    await give_back(world.streams, STREAM, "ls_C", world.context.clock)
    await trim(world.context, committer, 40, allow_empty=False)
    d = Deleter(world.context)
    try:
        await d.make_pass()
    except Exception as e:
        print("   deleter", e)
    print("   after the clock is right again, trim to 40 and a pass: fragments left", await fragments_left(world),
          "(A's lease holds 20 and up for 6 h)")

async def main():
    for one in (True, False):
        print("one machine" if one else "own clocks of both stores")
        for what in ("grant", "give_back", "renew"):
            await story(what, one, 10 * DAY, "wall")
    print("Valkey's clock alone is a day ahead for a moment")
    await story("renew", False, DAY, "valkey")

asyncio.run(main())
