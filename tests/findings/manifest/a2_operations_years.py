"""Five seconds of a clock that is ahead put operations, the timer of garbage, deletes off for years."""
import asyncio
from datetime import datetime, timezone
from support.manifest import STREAM, World
from unit.manifest.test_deletion import House as DHouse, NAME
from unit.manifest.test_condemning import fragments_left, stored
from bottomless.coordination.base import Due, Changes
from bottomless.errors import StoreError
from bottomless.stores.operations import OPERATIONS_KEY
from bottomless.stores.streams import DELETES_KEY
from bottomless_server.manifest.garbage import register_gc, GC
from bottomless_server.manifest.garbage_timer import GarbageTimer, DUE_KEY
from bottomless_server.manifest.operations import Operations
from bottomless_server.manifest.deleter import Deleter
from bottomless_server.manifest.retention import trim
from bottomless_server.manifest.retention_operations import register_retention
from bottomless_server.manifest.mutator import Mutators
MIN, HOUR, DAY = 60_000, 3_600_000, 86_400_000
YEAR = 365 * DAY

def age(ms): return f"{ms/DAY:.1f} days" if ms > DAY else f"{ms/1000:.0f} s"

async def passes(ops, n=3):
    for _ in range(n):
        await ops.make_pass(); await ops.settled()

async def deletion():
    house = await DHouse().declare()
    w = house.world; w.one_machine = True
    await w.context.time.look()
    op = await house.deletions.begin(NAME, None)
    await passes(house.operations)
    print("deletion of a stream:", (await house.operations.find(op.operation_id)).progress)
    w.clock.skew_ms = 10 * YEAR
    await passes(house.operations)
    w.clock.now += 5_000
    w.clock.skew_ms = 0
    for _ in range(60):                              # a month, a pass each 12 h
        w.clock.now += DAY // 2
        await passes(house.operations, 2)
    [at] = await w.coordination.due_at(OPERATIONS_KEY, [op.operation_id.encode()])
    o = await house.operations.find(op.operation_id)
    left = [f.object_key async for f in w.drive.list("default/")]
    print("  30 days after the clock was right again (ahead for 5 s): state", o.state.value, o.progress, "error", o.error,
          "| next look in", age(at - w.clock.now), "| objects still there:", len(left), "| doubt:", w.context.time.doubt)
    house2 = house.restart()
    await passes(house.operations)
    print("  after a restart too:", (await house.operations.find(op.operation_id)).state.value)
    await house.mutators.aclose()

async def gc_timer():
    w = World(); w.one_machine = True
    await w.context.time.look()
    ops = Operations(w.context); register_gc(ops)
    timer = GarbageTimer(w.context, ops)
    await timer.look()                    # notes when the first is due
    w.clock.skew_ms = 10 * YEAR
    begun = await timer.look(); await passes(ops)
    w.clock.now += 5_000; w.clock.skew_ms = 0
    n = 0
    for _ in range(60):
        w.clock.now += DAY
        n += await timer.look(); await passes(ops, 2)
    [at] = await w.coordination.due_at(DUE_KEY, [b"all"])
    dues = await w.coordination.due(OPERATIONS_KEY, 2**52, 10)
    print("garbage timer: began while ahead:", begun, "| begun in the 60 days after:", n, "| next in", age(at - w.clock.now),
          "| the one that began while ahead is due in", [age(d.due_at - w.clock.now) for d in dues])

async def trimmed_bytes():
    w = World(manifest_fanout=100); w.one_machine = True
    committer, _ = await stored(w, 6)
    await w.context.time.look()
    w.clock.skew_ms = 10 * YEAR
    await trim(w.context, committer, 40, allow_empty=False)
    w.clock.now += 5_000; w.clock.skew_ms = 0
    d = Deleter(w.context)
    for _ in range(60):
        w.clock.now += DAY
        await d.make_pass()
    c = w.context.counts
    print("trim in these 5 s; 60 days later fragments in the bucket:", await fragments_left(w), "| in the queue", c.queued_deletes,
          "| failing (alarm):", c.failing_deletes, "| doubt:", w.context.time.doubt,
          "| earliest due in", age((await w.coordination.due(DELETES_KEY, 2**52, 1))[0].due_at - w.clock.now))

async def valkey_ahead():
    w = World(manifest_fanout=100)
    committer, _ = await stored(w, 6)
    await w.context.time.look()
    w.coordination._clock = lambda: w.clock.true() + 10 * YEAR
    w.clock.now += 61_000
    await w.context.time.look()           # what a pass of the deleter asks
    w.coordination._clock = w.clock.true  # right again after a moment: the answer is kept for a minute
    await trim(w.context, committer, 40, allow_empty=False)
    d = Deleter(w.context)
    for _ in range(60):
        w.clock.now += DAY
        await d.make_pass()
    print("only Valkey's clock ahead, for one question; trim within the minute after; 60 days later:", await fragments_left(w),
          "doubt:", w.context.time.doubt)

async def main():
    await deletion(); await gc_timer(); await trimmed_bytes(); await valkey_ahead()
asyncio.run(main())
