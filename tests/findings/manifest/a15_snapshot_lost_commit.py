"""A commit whose time was read a moment before another's is in no snapshot, and is said to be in one."""
import asyncio
from dataclasses import replace
from support.manifest import STREAM, World, a_record
from support.rebuilding import put_registry, rebuild
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference
from bottomless.stores.consumers import ConsumerOffsets, SNAPSHOTS_KEY
from bottomless.stores.generation import check_generation
from bottomless_server.manifest.consumer_snapshots import ConsumerSnapshots
A, B = Reference("audit"), Reference("billing")

async def story(title, delta):
    w = World(); w.clock.now = 1_750_000_000_000
    w.streams.generation = await check_generation(w.drive, w.coordination)
    rec = a_record(home=None, dirty=False, epoch=0, epochs=(), owner_url=None, reserved_next=0)
    await w.streams.create(rec); await put_registry(w, rec)
    offs, snaps = ConsumerOffsets(w.coordination), ConsumerSnapshots(w.context)
    async def commit(c, n, now):
        await offs.change(STREAM, c, lambda s: StoredOffset(c, n, now, (s.revision + 1) if s else 1), now)
    await commit(B, 10, w.clock.now); await commit(A, 10, w.clock.now)
    await snaps.make_pass()
    w.clock.now += 60_000
    t_billing = w.clock.now - delta       # consumer_routes.py:158 reads the time first; then find, check_room, EXEC
    await commit(A, 999, w.clock.now)     # another request, whose EXEC is quicker
    async def meanwhile():                # while the snapshot is put, billing's EXEC lands
        await commit(B, 5_000, t_billing)
    w.drive.before_put = meanwhile
    await snaps.make_pass()
    for _ in range(1000):                  # minutes pass, thousands of passes
        w.clock.now += 1_000
        await snaps.make_pass()
    stored = await offs.find(STREAM, B)
    print(f"{title}: billing committed {stored.next_offset}; 1000 s later: in the queue {await offs.is_behind(STREAM)}, another process says in_snapshot {await ConsumerSnapshots(w.context).holds(STREAM, stored)}")
    w.coordination.lose(); await rebuild(w)
    print("   after loss of coordination and rebuild billing stands at", (await offs.find(STREAM, B)).next_offset)

async def main():
    await story("the same millisecond", 0)
    await story("3 ms earlier (a slower request)", 3)
    await story("by a second manifest process that is 1 s behind", 1_000)
asyncio.run(main())
