"""A deletion: leases and the grace by the bare wall clock, inside the five minutes that are no doubt, and behind."""
import asyncio
from dataclasses import replace
from unit.manifest.test_deletion import House, NAME
from bottomless.model.stream import Lease
from bottomless_server.manifest.removal.range_leases import grant
from support.manifest import World
MIN, HOUR = 60_000, 3_600_000

async def passes(ops, n=6):
    for _ in range(n):
        await ops.make_pass(); await ops.settled()

async def left(w): return len([f async for f in w.drive.list("default/")])

async def lease():
    h = await House().declare(); w = h.world
    await w.context.time.look()
    end = w.clock.now + HOUR
    await grant(w.streams, h.stream_id, Lease("ls_job", 0, 100, end, "job"), w.clock)
    op = await h.deletions.begin(NAME, None)
    n = await left(w)
    for skew in (0, 4 * MIN + 50_000):
        w.clock.skew_ms = 0
        w.clock.now = end - 4 * MIN - 40_000
        w.clock.skew_ms = skew
        w.clock.now += 61_000 if skew else 0      # the operation looks once a minute
        await passes(h.operations)
        m = await w.context.time.look()
        print(f"lease: its end is {(end - w.clock.true())/1000:.0f} s away by Valkey, the store and the time that passed; our clock +{skew/1000:.0f} s, doubt {m.doubt}: objects {await left(w)} of {n},",
              (await h.operations.find(op.operation_id)).progress)
    await h.mutators.aclose()

async def slow():
    h = House(); w = h.world; w.clock.now = 1_750_000_000_000
    await h.declare()
    h.world.context.settings.__dict__["manifest_delete_grace_ms"] = HOUR
    h.world.context.settings.__dict__["manifest_upload_deadline_ms"] = 2 * HOUR
    await w.context.time.look()
    n = await left(w)
    w.clock.skew_ms = -3 * HOUR                    # set back; "a step back is harmless"
    await w.context.time.look()
    op = await h.deletions.begin(NAME, None)
    w.clock.now += 5_000
    w.clock.skew_ms = 0
    await w.context.time.look()
    await passes(h.operations)
    o = await h.operations.find(op.operation_id)
    print(f"slow clock at DELETE: 5 s after it objects {await left(w)} of {n}; grace is 1 h, the second sweep is due after 2 h; state {o.state.value} {o.result} doubt {w.context.time.doubt}")
    await h.mutators.aclose()

async def main():
    await lease(); await slow()
asyncio.run(main())
