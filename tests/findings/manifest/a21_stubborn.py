"""Objects of a deleted stream that the store does not let go: the others behind them stay too, and nothing says so."""
import asyncio
from unit.manifest.test_deletion import House, NAME
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import stream_prefix
async def main():
    h = House(page_count=10); w = h.world; w.clock.now = 1_750_000_000_000
    await h.declare()
    p = stream_prefix(h.stream_id, "default")
    keys = [f"{p}data/{n:020d}.{n + 1000:032x}.fragment" for n in range(100)]
    for k in keys: await w.drive.put(k, [b"x"], crc32c(b"x"))
    w.drive.stubborn = set(keys[:10])          # a page of objects under a lock (S3: 1,000)
    await w.context.time.look()
    op = await h.deletions.begin(NAME, None)
    for _ in range(24 * 60):
        w.clock.now += 60_000
        await h.operations.make_pass(); await h.operations.settled()
    o = await h.operations.find(op.operation_id)
    left = [f async for f in w.drive.list(p)]
    print("a day later: state", o.state.value, "error", o.error, "progress", o.progress, "| objects left", len(left), "of which the store refuses 10 | failing (alarm)", w.context.counts.failing_deletes)
    await h.mutators.aclose()
asyncio.run(main())
