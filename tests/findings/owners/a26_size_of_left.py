from bottomless_server.ingest.producers.tracking import *
from bottomless_server.ingest.log.core.batcher import seal_state
from bottomless_server.node.owner import PRODUCERS_SIZE_MAX
t = Tracking(TrackingBounds(10_000, 5, 50_000, 3_600_000))
for k in range(50_000): t.keys[k.to_bytes(16, "big")] = KeyUse(b"h"*16, 1, 1, k, 1)
print("50,000 keys:", seal_state(t.snapshot(), first_offset=0, timestamp=1, epoch=1).size, "bytes; bound", PRODUCERS_SIZE_MAX)
for p in range(10_000): t.producers[f"producer-{p}"] = Producer(AppendMode.STRICT, 1, 5, 0, 1, tuple(Remembered(n,1,1,1,n,1) for n in range(5)))
print("and 10,000 producers:", seal_state(t.snapshot(), first_offset=0, timestamp=1, epoch=1).size)
