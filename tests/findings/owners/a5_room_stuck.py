"""After a look that found only the stream that is ahead, the node never looks again until that stream's time."""
from common import *
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.model.config import StreamConfig
OTHER = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c12")
async def keyed(house, name, key, value="x"):
    return await house.client.post(f"/v1/streams/{name}/records", json={"records": [{"value": value}]}, headers={"idempotency-key": key})
async def main():
    d = tmp()
    house = await House(d/"ingest", ingest_tracking_bytes_max=64*1024).declare()
    await house.streams.create(StreamRecord(OTHER, StreamName("ahead"), "default", StreamState.ACTIVE, 0, StreamConfig()))
    DAY = 86_400_000
    house.time.wall += 30*DAY
    await house.start()
    n = 0
    while (a := await keyed(house, "ahead", f"a{n}")).status_code == 200: n += 1
    print("keys of the stream ahead:", n)
    await house.aclose()
    house.time.wall -= 30*DAY
    house = await House(house.data_dir, before=house).start()
    await keyed(house, "ahead", "a0")  # opened, full
    show("orders: new key", await keyed(house, NAME, "k"))
    for hours in (1, 2, 24):
        await house.advance(3_600_000*hours)
        show(f"orders: new key, {hours} h later", await keyed(house, NAME, f"k{hours}"))
    print("(the keys of stream 'ahead' live for their stream's hour, that is 30 days and more: the node takes no new name at all)")
    await house.aclose()
asyncio.run(main())
