"""After a sync failed the stream stops until somebody touches it: what was acknowledged before is not uploaded, and a drain passes it by."""
from common import *
async def feed(house):
    a = await house.internal.get("/internal/v1/commits", params={"wait_ms": 0})
    return [s["stream_id"] for s in a.json()["streams"]]
async def main():
    d = tmp()
    house = await (await House(d/"ingest").declare()).start()
    show("append", await house.append("acknowledged"))
    house.files.faults["fdatasync"] = [broken_disk()]
    show("append, its sync fails", await house.append("not"))
    await asyncio.sleep(1.5)
    for _ in range(20): house.time.advance(3_000); await house.lease.renew()
    await asyncio.sleep(1.2)
    print("a minute later: open", [a.stream_id for a in house.service._tails.streams.opened()], "feed", await feed(house))
    await house.service.drain()
    print("drained at once; the tail of 1 record was not uploaded, no word of it; dirty:", (await house.record()).dirty)
    await house.aclose()
asyncio.run(main())
