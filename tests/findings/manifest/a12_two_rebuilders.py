"""A process that carries out a rebuild is paused for longer than the operation's lease; the next one goes on; the first wakes."""
import asyncio
from dataclasses import replace
from support.manifest import STREAM, NODE, World, a_record
from support.rebuilding import put_registry, rebuild, nothing
from bottomless.errors import StoreError
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference, TENANT_DEFAULT
from bottomless.stores.consumers import ConsumerOffsets
from bottomless.stores.generation import check_generation
from bottomless.stores.operations import OperationStore
from bottomless_server.manifest.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.operations import Again, Operations
from bottomless_server.manifest.rebuild import Rebuild
from bottomless_server.manifest.sessions import intend
BILL = Reference("billing")

async def world():
    w = World(manifest_fanout=100); w.clock.now = 1_750_000_000_000
    w.streams.generation = await check_generation(w.drive, w.coordination)
    rec = a_record(home=NODE)
    await w.streams.create(rec); await put_registry(w, rec)
    c = await w.open()
    for n in range(0, 50, 10):
        [u] = await intend(w.context, c, "s1", [n]); f = await w.put_fragment(u, n, timestamp=w.clock.now)
        await c.register("s1", [f]); await c.flush()
    old = w.coordination.copy()                    # a backup, generation 0
    w.coordination.lose(); await rebuild(w)         # generation 1
    offs = ConsumerOffsets(w.coordination)
    await offs.change(STREAM, BILL, lambda s: StoredOffset(BILL, 40, w.clock.now, 1), w.clock.now)
    await ConsumerSnapshots(w.context).make_pass()
    await offs_into(old, w)
    w.coordination.put_back(old)                    # Valkey comes back from the backup of generation 0
    return w

async def offs_into(old, w):
    pass

async def story(what):
    w = await world()
    offs = ConsumerOffsets(w.coordination)
    if what == "consumers":
        # the backup knew the consumer as well, at 10
        await offs.change(STREAM, BILL, lambda s: StoredOffset(BILL, 10, w.clock.now, 1), w.clock.now)
    ops = Operations(w.context)
    p1 = Rebuild(w.context, ops, nothing, stream_count=1)
    operation = await p1.begin(TENANT_DEFAULT)
    store = OperationStore(w.coordination)
    p2 = Rebuild(w.context, Operations(w.context), nothing, stream_count=1)
    done = {}

    async def meanwhile():                          # P1 is paused here; its lease of the operation runs out; P2 goes on
        op = operation
        while isinstance(out := await p2.step(w.context, op), Again):
            op = await store.move(op, 0, 0, progress=dict(out.progress))
            if what == "stream" and dict(out.progress)["phase"] == "generation":
                done["op"] = op
                return                              # other streams of the bucket are restored yet, or P2 is about to raise the generation
        done["result"] = out.result
        w.streams.generation = await check_generation(w.drive, w.coordination)
        if what == "consumers":
            await offs.change(STREAM, BILL, lambda s: StoredOffset(BILL, 50, w.clock.now, s.revision + 1), w.clock.now)
            print("  P2 has finished the rebuild; served; the consumer commits", (await offs.find(STREAM, BILL)).next_offset)

    n = {"skip": 1 if what == "stream" else 0}
    real = w.coordination.transact
    async def transact(keys, change, attempts=16):
        if n["skip"] == 0 and "ran" not in n:
            n["ran"] = True
            w.coordination.transact = real
            await meanwhile()
        n["skip"] -= 1 if "ran" not in n else 0
        return await real(keys, change, attempts)
    if what == "stream":
        # pause between forget_all and discard
        realdiscard = w.streams.discard
        async def discard(sid, gen):
            object.__setattr__  # noqa
            type(w.streams).discard = orig
            await meanwhile()
            return await realdiscard(sid, gen)
        orig = type(w.streams).discard
        type(w.streams).discard = lambda self, sid, gen: discard(sid, gen)
    else:
        w.coordination.transact = transact
    try:
        await p1.step(w.context, operation)
        print("  P1 woke, and its call succeeded")
    except StoreError as e:
        print("  P1 woke:", type(e).__name__, e)
    if what == "stream":
        op = done["op"]
        while isinstance(out := await p2.step(w.context, op), Again):
            op = await store.move(op, 0, 0, progress=dict(out.progress))
        print("  P2 ends the rebuild:", {k: out.result[k] for k in ("generation", "streams")})
        w.streams.generation = await check_generation(w.drive, w.coordination)
        try: print("  the stream:", (await w.streams.load(STREAM)).name)
        except StoreError as e: print("  the stream:", type(e).__name__, e)
        try: await Rebuild(w.context, Operations(w.context), nothing).begin("default")
        except StoreError as e: print("  another rebuild:", e.code.value)
    else:
        found = await offs.find(STREAM, BILL)
        print("  the consumer stands at", None if found is None else found.next_offset, "| snapshot pointer", await offs.pointer(STREAM))
        await ConsumerSnapshots(w.context).make_pass()
        w.coordination.lose(); await rebuild(w)
        found = await offs.find(STREAM, BILL)
        print("  and after one more loss and rebuild:", None if found is None else found.next_offset)

async def main():
    print("paused before a discard of a stream"); await story("stream")
    print("paused before consumers are forgotten"); await story("consumers")
asyncio.run(main())
