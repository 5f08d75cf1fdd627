"""One stream whose commit timestamps are ahead makes the node forget what others' hour still protects.

How timestamps get ahead: the node was started while its wall clock was a day ahead (CommitClock believes the first
reading), something was appended, the clock was set right. Timestamps never decrease, so that stream is a day ahead for a day.
"""
from common import *
import unit.ingest.house as H
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
    house.time.wall += DAY                     # the machine starts with a clock that is a day ahead
    await house.start()
    show("stream ahead: append", await keyed(house, "ahead", "a0"))
    await house.aclose()
    house.time.wall -= DAY                     # set right, node restarted (or set back while it runs: no guard against back)
    house = await House(house.data_dir, before=house).start()
    room = 64*1024//512
    n = 0
    while (a := await keyed(house, NAME, f"k{n}")).status_code == 200: n += 1
    show(f"stream orders: keys until the node's bound: {n}; then", a)
    show("repeat of k0, within the minute", await keyed(house, NAME, "k0"))
    show("stream ahead: one new key", await keyed(house, "ahead", "a1"))
    show("repeat of k0, within the minute", await keyed(house, NAME, "k0"))
    print("records in orders:", len(await house.values()), "of", n, "acknowledged; keys still known:", len(house.appender.tracking.keys))
    await house.aclose()
asyncio.run(main())
