import asyncio
from support.manifest import World
from bottomless.errors import StoreError
from bottomless_server.manifest.operations import Again, Done, Operations
HOUR = 3_600_000; DAY = 24 * HOUR
async def main():
    w = World(); w.clock.now = 1_750_000_000_000
    async def short(ctx, op): return Done({"ok": 1})
    ops = Operations(w.context); ops.register("takeover", short)
    t = await ops.begin("takeover", tenant="default")
    w.clock.skew_ms = -3 * HOUR                 # the clock is corrected back before the next pass (or another process, whose clock is right, looks)
    for _ in range(170):
        w.clock.now += 60_000
        await ops.make_pass(); await ops.settled()
    print("takeover entered, then the clock set back by 3 h: after 170 min", (await ops.find(t.operation_id)).state.value)
    w.clock.now += 20 * 60_000
    await ops.make_pass(); await ops.settled()
    print("   after 190 min", (await ops.find(t.operation_id)).state.value)
    w.clock.skew_ms = 30 * DAY                  # ahead for a moment
    await ops.make_pass(); await ops.settled()
    w.clock.skew_ms = 0
    try: print((await ops.find(t.operation_id)).state)
    except StoreError as e: print("   ahead for a moment: its result, kept for 7 days:", type(e).__name__, e)
asyncio.run(main())
