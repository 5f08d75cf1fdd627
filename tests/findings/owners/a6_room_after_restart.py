"""What was given up comes back at a restart, without the bound."""
from common import *
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.model.config import StreamConfig
async def keyed(house, name, key):
    return await house.client.post(f"/v1/streams/{name}/records", json={"records": [{"value": "x"}]}, headers={"idempotency-key": key})
async def main():
    d = tmp()
    house = await (await House(d/"ingest", ingest_tracking_bytes_max=64*1024).declare()).start()
    N = 20
    for s in range(N):
        await house.streams.create(StreamRecord(StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d3c{s:02x}"), StreamName(f"s{s}"), "default", StreamState.ACTIVE, 0, StreamConfig()))
        for k in range(120):
            a = await keyed(house, f"s{s}", f"k{k}")
            assert a.status_code == 200, (s, k, a.text)
        await house.advance(3_700_000)         # one job an hour: its keys' hour is over
    room = house.service._tracking_room
    print("before the restart: held", room.held, "of", room.size_max)
    await house.aclose()
    again = await House(house.data_dir, before=house).start()
    room = again.service._tracking_room
    print("after the restart:  held", room.held, "of", room.size_max, f"= {room.held/room.size_max:.1f} times the bound; with 10,000 such streams of 50,000 keys it is what their logs hold")
    await again.advance(60_000)
    print("a minute later:     held", room.held)
    await again.aclose()
asyncio.run(main())
