"""One published fragment is gone from the bucket, then coordination is lost: the rebuild leaves the newest root for an
older one that lingers, and dooms all published fragments after the hole."""
import asyncio, sys
from dataclasses import replace
from support.manifest import STREAM, NODE, World, a_record
from support.rebuilding import put_registry, rebuild
from support.object_keys import fragment_key
from bottomless.stores.generation import check_generation
from bottomless_server.manifest.sessions import intend
from bottomless_server.manifest.deleter import Deleter
HOUR = 3_600_000

async def data(w): return sorted(int(f.object_key.split("/data/")[1][:20]) for f in [f async for f in w.drive.list("")] if "/data/" in f.object_key)

async def story(linger):
    w = World(manifest_fanout=100); w.clock.now = 1_750_000_000_000
    w.streams.generation = await check_generation(w.drive, w.coordination)
    rec = a_record(home=NODE)
    await w.streams.create(rec); await put_registry(w, rec)
    c = await w.open()
    frs = []
    for n in range(0, 200, 10):
        uids = await intend(w.context, c, "s1", [n])
        f = await w.put_fragment(uids[0], n, timestamp=w.clock.now)
        await c.register("s1", [f]); await c.flush(); frs.append(f)
        w.clock.now += 60_000 if linger == "15 minutes" else 6 * HOUR
        if linger == "stray" and n == 30:
            # a stray root of a publish that was cut off (crash between put and EXEC); it waits for garbage collection, 24 to 48 h
            uids = await intend(w.context, c, "s1", [n + 10])
            f = await w.put_fragment(uids[0], n + 10, timestamp=w.clock.now)
            from support.manifest import Crash
            w.fuse.left = 2
            try:
                await c.register("s1", [f]); await c.flush()
            except Crash: pass
            w.fuse.left = None
            from bottomless_server.manifest.committer import Committer
            from bottomless_server.manifest.sessions import begin
            c = await Committer.open(w.context, STREAM); await begin(w.context, c, "s1")
            await c.register("s1", [f]); await c.flush(); frs.append(f)
            continue
        await Deleter(w.context).make_pass()
        if linger == "stray" and n == 30: pass
    before = await w.leaves()
    hole = 130 if linger == "15 minutes" else 60
    await w.drive.delete([fragment_key(STREAM, hole, next(f.uid for f in before if f.first_offset == hole))])
    roots = len([1 async for f in w.drive.list("") if "root." in f.object_key])
    print(f"{linger}: published_next {(await w.record()).published_next}, fragments published {len(before)}, fragment {hole} is gone from the bucket; roots in the bucket {roots}")
    w.coordination.lose()
    result = await rebuild(w)
    r = await w.record()
    print("  rebuild:", {k: result[k] for k in ("streams", "adopted_fragments", "unreadable_streams")}, "| published_next", r.published_next, "fragments", len(await w.leaves()))
    w.clock.now += 2 * HOUR
    for _ in range(5): await Deleter(w.context).make_pass()
    print("  two hours later fragments in the bucket:", len(await data(w)), await data(w))

async def main():
    await story("15 minutes"); await story("stray")
asyncio.run(main())
