"""Two manifest processes, the clock of one ahead: a snapshot that lost keeps the highest version; a rebuild takes it."""
import asyncio, sys
from dataclasses import replace
from support.manifest import STREAM, World, a_record, Crash
from support.rebuilding import put_registry, rebuild
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference
from bottomless.stores.consumers import ConsumerOffsets, SNAPSHOTS_KEY
from bottomless.stores.generation import check_generation
from bottomless_server.manifest.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.garbage import collect_step, gc_arguments, GC
from bottomless_server.manifest.deleter import Deleter
from bottomless.stores.operations import Operation
from bottomless.errors import StoreError
MIN, HOUR, DAY = 60_000, 3_600_000, 86_400_000
B = Reference("billing")

async def commit(w, n):
    o = ConsumerOffsets(w.coordination)
    await o.change(STREAM, B, lambda s: StoredOffset(B, n, w.clock.now, (s.revision + 1) if s else 1), w.clock.now)

async def story(skew, hours, crash, step=HOUR):
    w = World(); w.clock.now = 1_750_000_000_000
    w.streams.generation = await check_generation(w.drive, w.coordination)
    rec = a_record(home=None, dirty=False, epoch=0, epochs=(), owner_url=None, reserved_next=0)
    await w.streams.create(rec); await put_registry(w, rec)
    good = ConsumerSnapshots(w.context)
    other = ConsumerSnapshots(replace(w.context, clock=lambda: w.clock.now + skew))   # the second process
    await commit(w, 10)
    await good.make_pass()
    await commit(w, 20)
    if crash:
        # the process that is ahead dies between its put and the note in coordination
        w.fuse.left = 2
        try: await other.make_pass()
        except BaseException as e: print("   ", type(e).__name__)
        w.fuse.left = None
    else:
        # both pass at once: the other one reads, then this one is quicker
        async def quicker(): await good.make_pass()
        w.drive.before_put = quicker
        await other.make_pass()
    n = 20
    for h in range(hours):                                # life goes on; the process that is ahead was stopped, or set right
        w.clock.now += step
        n += 10
        await commit(w, n)
        await good.make_pass()
    offs = ConsumerOffsets(w.coordination)
    stored = await offs.find(STREAM, B)
    holds = await good.holds(STREAM, stored)
    names = [o.object_key.split("/metadata/")[1] async for o in w.drive.list("") if "consumers." in o.object_key]
    print(f"  skew {skew//MIN} min, {hours*step//MIN} min later: committed {stored.next_offset}, in_snapshot said: {holds}; objects {len(names)}")
    op = Operation("op_1", GC, "default", None, 0, 0, arguments=gc_arguments(dry_run=False, minimum_age_ms=HOUR, tenant=None))
    await collect_step(w.context, op, 1000)
    try:
        await Deleter(w.context).make_pass()
    except StoreError as e: print("   deleter:", e)
    w.coordination.lose()
    await rebuild(w)
    stored = await offs.find(STREAM, B)
    print("    after garbage collection, deleter, loss of coordination and rebuild the consumer stands at", stored.next_offset)

async def main():
    print("crash between put and note"); await story(2 * DAY, 24, True); await story(4 * MIN, 3, True, MIN)
    print("no crash: two processes at once, the one that is ahead loses"); await story(2 * DAY, 24, False)
    await story(4 * MIN, 3, False, MIN)
asyncio.run(main())
