"""A plain append begins a segment (its thread reads what is known of producers), while another stream makes the room forget: nothing marks the first as busy."""
from common import *
import bottomless_server.ingest.local.appender as A
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.model.config import StreamConfig
OTHER = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c12")
async def keyed(house, name, key):
    return await house.client.post(f"/v1/streams/{name}/records", json={"records": [{"value": "x"}]}, headers={"idempotency-key": key})
async def main():
    d = tmp()
    house = await House(d/"ingest", ingest_tracking_bytes_max=64*1024, ingest_segment_age_ms_max=1000).declare()
    await house.streams.create(StreamRecord(OTHER, StreamName("other"), "default", StreamState.ACTIVE, 0, StreamConfig()))
    await house.start()
    n = 0
    while (a := await keyed(house, NAME, f"k{n}")).status_code == 200: n += 1
    await house.advance(3_700_000)
    show("other: opened", await house.client.post("/v1/streams/other/records", json={"records":[{"value":"x"}]}))
    await house.advance(2_000)          # the segment is old: the next append begins one
    # Make the window sure: the thread that writes waits after the first entry of the snapshot (10,000 producers take it tens of ms)
    import threading
    begun, go = threading.Event(), threading.Event()
    from bottomless_server.ingest.producers.tracking import Tracking
    real = Tracking.snapshot
    # only in the writing thread of the first stream, and the loop keeps the true table
    def only_iterate(self):
        if threading.current_thread() is threading.main_thread(): return real(self)
        it = iter(self.keys.items()); entries = []
        first = next(it); begun.set(); go.wait(5)
        entries = [first, *it]   # as the real one goes on
        return real(self)
    Tracking.snapshot = only_iterate
    async def append(): return await house.append("plain")
    task = asyncio.create_task(append())
    while not begun.is_set(): await asyncio.sleep(0.005)
    print("orders writes; tracking.busy =", house.appender.tracking.busy)
    before = len(house.appender.tracking.keys)
    show("other: a new key", await keyed(house, "other", "n"))
    print("keys of orders while its thread reads them:", before, "->", len(house.appender.tracking.keys))
    go.set()
    show("orders: the plain append", await task)
    Tracking.snapshot = real
    show("orders: the next one", await house.append("plain 2"))
    await house.aclose()
asyncio.run(main())
