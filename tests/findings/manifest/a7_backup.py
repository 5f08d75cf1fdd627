"""Valkey comes back from a backup of the same generation: nobody notices, rebuild is refused, published records go."""
import asyncio
from dataclasses import replace
from support.manifest import STREAM, NODE, World, a_record
from support.rebuilding import put_registry, nothing
from bottomless.errors import StoreError
from bottomless.model.names import NodeId
from bottomless.model.stream import EpochStart
from bottomless.stores.generation import check_generation
from bottomless.stores.operations import Operation
from bottomless_server.ingest.core.ownership import LocalView, claim, reserve, leave_clean
from bottomless_server.manifest.committer import Committer
from bottomless_server.manifest.deleter import Deleter
from bottomless_server.manifest.garbage import collect_step, gc_arguments, GC
from bottomless_server.manifest.operations import Operations
from bottomless_server.manifest.rebuild import Rebuild
from bottomless_server.manifest.regression import Regression
from bottomless_server.manifest.sessions import begin, intend
HOUR = 3_600_000
B = NodeId("b" * 32)

async def publish(w, committer, session, firsts, epoch):
    uids = await intend(w.context, committer, session, firsts)
    frs = [await w.put_fragment(u, f, epoch=epoch, timestamp=w.clock.now) for u, f in zip(uids, firsts)]
    await committer.register(session, frs); await committer.flush()

async def main():
    w = World(); w.clock.now = 1_750_000_000_000
    w.streams.generation = await check_generation(w.drive, w.coordination)
    rec = a_record(home=NODE)
    await w.streams.create(rec); await put_registry(w, rec)
    committer = await w.open()
    for n in range(0, 100, 10): await publish(w, committer, "s1", [n], 1)
    backup = w.coordination.copy()
    for n in range(100, 200, 10): await publish(w, committer, "s1", [n], 1)
    await w.streams.update(STREAM, lambda r: replace(leave_clean(r, 1, 200)))      # A is drained: all is uploaded
    print("before: published_next", (await w.record()).published_next, "version", (await w.record()).version)
    w.clock.now += HOUR
    # Valkey's machine dies; it comes back from the backup of an hour ago. All services start anew.
    w.coordination.put_back(backup)
    async def changed(): pass
    reg = Regression(w.context, changed)
    await reg.look(); await reg.look_again()
    print("manifest after its start: regressed", reg.regressed, "| record: published_next", (await w.record()).published_next, "dirty", (await w.record()).dirty)
    try:
        await Rebuild(w.context, Operations(w.context), nothing).begin("default")
    except StoreError as e: print("rebuild asked for, as docs/operations.md says:", type(e).__name__, e.code.value)
    # the backup may be of a moment when the stream was clean and had no tail; or the operator takes over from A:
    from bottomless_server.manifest.takeover import take_over
    c2 = await Committer.open(w.context, STREAM)
    # (a) home A itself is away; here the stream was clean in the backup
    await w.streams.update(STREAM, lambda r: replace(r, dirty=False, reserved_next=100))
    r = await w.streams.update(STREAM, lambda r: reserve(claim(r, B, "unix:///b", LocalView(0, True), home_held=False), r.epoch + 1, 110))
    print("node B claims: first offset it acknowledges", r.epochs[-1].first_offset, "(100..199 were acknowledged and published before)")
    async def collect():
        after = {}
        op = Operation("op_1", GC, "default", None, 0, 0, arguments=gc_arguments(dry_run=False, minimum_age_ms=24 * HOUR, tenant=None))
        while hasattr(out := await collect_step(w.context, op, 1000), "progress"):
            op = replace(op, progress=dict(out.progress))
        return out.result
    w.clock.now += 25 * HOUR
    c2 = await Committer.open(w.context, STREAM); await begin(w.context, c2, "s2")
    p = await collect(); print("gc at version", (await w.record()).version, "skipped", p["skipped"])
    n = 100
    while (await w.record()).version < 22:
        await publish(w, c2, "s2", [n], r.epoch); n += 10
    p = await collect()
    print("gc at version", (await w.record()).version, "skipped", p["skipped"], "queued", p["queued"], {k: v["objects"] for k, v in p["orphans"].items()})
    await Deleter(w.context).make_pass()
    print("records 100..199 of before: objects left", len([c for c in [f.object_key async for f in w.drive.list("")] if "/data/" in c]), "fragments in manifest", len(await w.leaves()))
asyncio.run(main())
