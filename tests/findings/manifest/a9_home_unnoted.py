"""The bucket is away for a moment at a stream's first claim, the node restarts: the bucket never hears of the home."""
import asyncio
from types import SimpleNamespace
from support.manifest import STREAM, NODE, World
from support.rebuilding import rebuild
from bottomless.errors import StoreError, Unavailable
from bottomless.model.config import StreamConfig
from bottomless.model.names import FullName, NodeId, StreamName, TENANT_DEFAULT
from bottomless.stores.generation import check_generation
from bottomless_server.ingest.core.ownership import LocalView, is_outdated, claim
from bottomless_server.ingest.owner import Owner
from bottomless_server.manifest.committer import Committer
from bottomless_server.manifest.registry import Registry
from bottomless_server.manifest.sessions import begin, intend
from bottomless_server.manifest.mutator import Mutators
NAME = FullName(TENANT_DEFAULT, StreamName("orders"))
B = NodeId("b" * 32)

async def main():
    w = World(); w.clock.now = 1_750_000_000_000
    w.streams.generation = await check_generation(w.drive, w.coordination)
    registry = Registry(w.context)
    record, _ = await registry.declare(NAME, StreamConfig())
    sid = record.stream_id
    async def note_home(stream_id):                 # PUT /internal/v1/streams/{id}/registry
        await registry.ensure_object(await registry.load_active(stream_id))
    class Lease:
        generation = 0; term = 1
        def require(self, *a): pass
        def is_live(self): return True
        async def settle(self): pass
    def node(): return Owner(w.coordination, NODE, "unix:///a", Lease(), note_home)
    w.drive.failing = True                          # the bucket is away
    a = node()
    for _ in range(2):
        try: await a.claim(sid, LocalView(0, True))
        except StoreError as e: print("append 1 at node A:", type(e).__name__, e)
    a = node()                                      # A is restarted; nothing of the claim is on its disk
    found = await registry.find(NAME)               # it asks for the name: the object's failure is only logged
    rec, c = await a.claim(sid, LocalView(0, True))
    await c.reserve(50)
    print("after A's restart, bucket still away: claimed epoch", c.epoch, "and 50 records acknowledged; home in coordination", (await w.streams.load(sid)).home[:4])
    w.drive.failing = False                         # the bucket is back; the uploader works, all is well for weeks
    m = Mutators(w.context)
    await m.at(sid).ask(lambda k: begin(w.context, k, "s1"))
    uids = await m.at(sid).ask(lambda k: intend(w.context, k, "s1", [0]))
    w.clock.now += 14 * 86_400_000
    from bottomless_server.manifest.salvaging import find_registry
    from bottomless.formats.keys import stream_prefix
    said = await find_registry(w.drive, stream_prefix(sid, "default"))
    print("two weeks later the bucket says: home", said.home)
    await m.aclose()
    w.coordination.lose()
    await rebuild(w)
    r = await w.streams.load(sid)
    print("after loss of coordination and rebuild: home", r.home, "dirty", r.dirty, "published_next", r.published_next)
    local = LocalView(50, False, epoch=c.epoch, version=0, published_next=0)
    print("A's log with its 50 acknowledged records is set aside as outdated:", is_outdated(r, NODE, local))
    b = claim(r, B, "unix:///b", LocalView(0, True), home_held=False)
    print("node B may claim at once, and goes on at offset", b.epochs[-1].first_offset)
asyncio.run(main())
