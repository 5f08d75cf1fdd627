"""The node starts before coordination answers: its tail is uploaded only when somebody touches the stream."""
from common import *
from bottomless.coordination.base import CoordinationUnavailable
async def feed(house):
    a = await house.internal.get("/internal/v1/commits", params={"wait_ms": 0})
    return (a.status_code, [s["stream_id"] for s in a.json().get("streams", [])] if a.status_code==200 else a.text)
async def main():
    d = tmp()
    house = await (await House(d/"ingest").declare()).start()
    show("append", await house.append("acknowledged, not uploaded"))
    print("feed", await feed(house))
    after = house.after_crash()
    real = {n: getattr(after.coordination, n) for n in ("get","get_many","transact","hold")}
    async def away(*a, **k): raise CoordinationUnavailable("away")
    for n in real: vars(after.coordination)[n] = away
    await after.start()
    for n in real: del vars(after.coordination)[n]
    await after.advance(3_000)
    print("lease live:", after.lease.is_live())
    await asyncio.sleep(3)      # ticks of files and claims
    for _ in range(24*20):
        after.time.advance(3_000*60); await after.lease.renew()
    await asyncio.sleep(2)
    print("a day later: open streams", [a.stream_id for a in after.service._tails.streams.opened()], "feed", await feed(after))
    await after.append("touch")
    print("after a touch: feed", await feed(after))
    await after.aclose(); await house.aclose()
asyncio.run(main())
