"""A delete that is under way over a rebuild takes away what the rebuild adopted."""
import asyncio
from support.manifest import STREAM, NODE, World, a_record
from support.rebuilding import put_registry, rebuild
from bottomless.stores.generation import check_generation
from bottomless_server.manifest.committer import Committer
from bottomless_server.manifest.deleter import Deleter
from bottomless_server.manifest.sessions import begin, intend
async def main():
    w = World(manifest_fanout=100); w.clock.now = 1_750_000_000_000
    w.streams.generation = await check_generation(w.drive, w.coordination)
    rec = a_record(home=NODE)
    await w.streams.create(rec); await put_registry(w, rec)
    c = await w.open()
    [u] = await intend(w.context, c, "s1", [0]); f = await w.put_fragment(u, 0, timestamp=w.clock.now)
    await c.register("s1", [f]); await c.flush()
    [u] = await intend(w.context, c, "s1", [10]); f = await w.put_fragment(u, 10, timestamp=w.clock.now)   # put, not registered
    c = await Committer.open(w.context, STREAM)
    await begin(w.context, c, "s2")            # the uploader was restarted; the owner did not answer: given up
    print("given up:", len((await w.record()).quarantine), "| published_next", (await w.record()).published_next)
    w.clock.now += 2 * 3_600_000               # an hour and more: e.g. an uploader that cannot reach its ingest node
    async def meanwhile():
        w.coordination.lose()
        r = await rebuild(w)
        print("while the delete is under way: coordination lost, rebuilt by another process; adopted", r["adopted_fragments"],
              "published_next", (await w.record()).published_next)
    w.drive.before_delete = meanwhile
    try: await Deleter(w.context).make_pass()
    except Exception as e: print("the pass:", type(e).__name__, e)
    leaves = await w.leaves()
    from support.object_keys import fragment_key
    for leaf in leaves:
        print("fragment", leaf.first_offset, "in the manifest; object there:", w.drive.has(fragment_key(STREAM, leaf.first_offset, leaf.uid)))
asyncio.run(main())
