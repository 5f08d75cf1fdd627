"""Eight long operations take all places: a takeover, a deletion, a rebuild wait for hours."""
import asyncio
from support.manifest import World
from bottomless_server.manifest.operations import Again, Done, Operations
from bottomless.stores.operations import OperationState

async def main():
    w = World(); w.clock.now = 1_750_000_000_000
    steps = {"n": 0}
    async def long(ctx, op):
        steps["n"] += 1
        await asyncio.sleep(0)
        return Again({"page": op.progress.get("page", 0) + 1})      # verify / gc of a large bucket: due at once, always
    async def short(ctx, op): return Done({})
    ops = Operations(w.context)
    ops.register("verify", long); ops.register("takeover", short); ops.register("rebuild", short, endless=True)
    for _ in range(8): await ops.begin("verify", tenant="acme")
    task = asyncio.create_task(ops.run())
    await asyncio.sleep(0.1)
    t = await ops.begin("takeover", tenant="default")
    n = steps["n"]
    await asyncio.sleep(3)
    print("steps of the eight since the takeover was asked for:", steps["n"] - n, "| takeover:", (await ops.find(t.operation_id)).state.value)
    ops.only = "rebuild"                       # coordination was found regressed
    r = await ops.begin("rebuild", tenant="default")
    n = steps["n"]
    await asyncio.sleep(3)
    print("regressed: steps of the eight since:", steps["n"] - n, "| rebuild:", (await ops.find(r.operation_id)).state.value)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
asyncio.run(main())
