"""A rebuild forgets what was condemned: leases are granted on what is deleted, or goes next, and garbage collection does not ask leases."""
import asyncio
from dataclasses import replace
from support.manifest import STREAM, NODE, World, a_record
from support.rebuilding import put_registry, rebuild
from bottomless.errors import StoreError
from bottomless.model.stream import Lease, live_leases
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.operations import Operation
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.removal.range_leases import grant
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.removal.garbage import collect_step, gc_arguments, GC
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.mutators.sessions import intend
HOUR = 3_600_000
async def data(w): return sorted(int(f.object_key.split("/data/")[1][:20]) for f in [f async for f in w.drive.list("")] if "/data/" in f.object_key)
async def story(deleted_before):
    w = World(manifest_fanout=100); w.clock.now = 1_750_000_000_000
    w.streams.generation = await check_generation(w.drive, w.coordination)
    rec = a_record(home=NODE); await w.streams.create(rec); await put_registry(w, rec)
    c = await w.open()
    for n in range(0, 60, 10):
        [u] = await intend(w.context, c, "s1", [n]); f = await w.put_fragment(u, n, timestamp=w.clock.now)
        await c.register("s1", [f]); await c.flush()
    w.clock.now += 48 * HOUR
    await trim(w.context, c, 40, allow_empty=False)
    if deleted_before:
        w.clock.now += 2 * HOUR
        await Deleter(w.context).make_pass()
    r = await w.record()
    print("before the loss: objects", await data(w), "condemned_next", r.condemned_next)
    w.coordination.lose(); await rebuild(w)
    r = await w.record()
    try:
        await grant(w.streams, STREAM, Lease("ls_1", 0, 60, w.context.time.latest() + 6 * HOUR, "job"), w.clock)
        print("  after the rebuild: condemned_next", r.condemned_next, "| a lease from offset 0 on: granted")
    except StoreError as e: print("  lease:", e)
    op = Operation("op_1", GC, "default", None, 0, 0, arguments=gc_arguments(dry_run=False, minimum_age_ms=24 * HOUR, tenant=None))
    while hasattr(out := await collect_step(w.context, op, 1000), "progress"): op = replace(op, progress=dict(out.progress))
    await Deleter(w.context).make_pass()
    r = await w.record()
    print("  garbage collection and a pass later: live leases", [l.lease_id for l in live_leases(r, w.clock.now)], "objects", await data(w))
async def no_rebuild():
    """The same without any loss: an orphan below the floor under a lease."""
asyncio.run(story(True)); asyncio.run(story(False))
