"""A lease taken in five seconds of a clock that is ahead holds for ten years; a secret that was rotated away is good as long."""
import asyncio
from support.api_keys import DAY_MS, HOUR_MS, a_world, create, is_good, nobody_checks
from support.manifest import STREAM, World
from unit.manifest.test_condemning import fragments_left, stored
from bottomless.model.stream import Lease
from bottomless.stores.operations import OPERATIONS_KEY
from bottomless_server.manifest.condemning import grant
from bottomless_server.manifest.deleter import Deleter
from bottomless_server.manifest.garbage import register_gc
from bottomless_server.manifest.garbage_timer import GarbageTimer
from bottomless_server.manifest.keys import Keys
from bottomless_server.manifest.operations import Operations
from bottomless_server.manifest.retention import trim
YEAR = 365 * DAY_MS
async def lease(how):
    w = World(manifest_delete_grace_ms=0, manifest_fanout=100)
    w.one_machine = how == "wall"
    c, _ = await stored(w, 6)
    await w.context.time.look()
    if how == "wall": w.clock.skew_ms = 10 * YEAR
    else:
        w.coordination._clock = lambda: w.clock.true() + 10 * YEAR
        w.clock.now += 61_000; await w.context.time.look()
    l = Lease("ls_1", 0, 60, w.context.time.latest() + 600_000, "job")     # lease_routes.py: 10 min, at most 6 h
    await grant(w.streams, STREAM, l, w.context.clock)
    w.clock.skew_ms = 0; w.coordination._clock = w.clock if w.one_machine else w.clock.true
    await trim(w.context, c, 40, allow_empty=False)
    d = Deleter(w.context)
    for _ in range(60):
        w.clock.now += DAY_MS
        await d.make_pass()
    print(f"{how}: the job died; 60 days later fragments {await fragments_left(w)}; the lease of ten minutes ends in {(l.expires_at - w.clock.now) / DAY_MS:.0f} days; doubt {w.context.time.doubt}")
async def rotate():
    w = await a_world(); w.one_machine = True; ks = Keys(w.context)
    a = await create(ks)
    w.clock.skew_ms = 10 * YEAR
    await ks.rotate(a.key.key_id, HOUR_MS, nobody_checks)
    w.clock.skew_ms = 0
    w.clock.now += 60 * DAY_MS
    print("rotated with an overlap of an hour in these seconds: 60 days later the secret before is good:", await is_good(w, a.credential))
async def gcs():
    w = World(); w.clock.now = 1_750_000_000_000
    ops = Operations(w.context); register_gc(ops); t = GarbageTimer(w.context, ops)
    await t.look()
    w.drive.clock_skew_ms = 6 * 60_000          # the store's clock is six minutes off, for ever: a doubt
    for _ in range(30):
        w.clock.now += DAY_MS + 1
        await t.look(); await ops.make_pass(); await ops.settled()
    print("a doubt that lasts: unfinished garbage collections after 30 days:", len(await w.coordination.due(OPERATIONS_KEY, 2**52, 1000)))
async def main():
    await lease("wall"); await lease("valkey"); await rotate(); await gcs()
asyncio.run(main())
