"""What a new key costs at the bound of the process, with many streams, when keys grow old one after the other."""
import time
from collections import OrderedDict
from bottomless_server.ingest.core.tracking import Tracking, TrackingBounds, KeyUse, KEY_SIZE
from bottomless_server.ingest.core.tracking_room import TrackingRoom
for streams, per in ((1_000, 500), (10_000, 50)):
    bounds = TrackingBounds(10_000, 5, 50_000, 3_600_000)
    total = streams*per
    room = TrackingRoom(total*KEY_SIZE)
    made = []
    for s in range(streams):
        t = Tracking(bounds)
        for k in range(per):     # stamps spread over the hour, each stream's in order
            t.keys[b"%08d%08d" % (s, k)] = KeyUse(None, 0, 1, 0, k*3_600_000//per + s*3_600_000//total)
        t._tell_size(); room.join(t); t._told_size = t.size
        made.append(t)
    now, spent, worst, n, ok = 3_600_000, 0.0, 0.0, 60, 0
    for i in range(n):           # as many new keys as grow old: 500,000 in an hour are 139 a second
        now += 7
        t = made[i % streams]
        begun = time.process_time()
        if t.keep_room(KEY_SIZE, now):
            ok += 1
        took = time.process_time() - begun
        t.give_back()
        if ok: t._take_key(b"new%013d" % i, KeyUse(None, 0, 1, 0, now)); t._tell_size()
        spent += took; worst = max(worst, took)
    print(f"{streams} streams, {total} keys, room {room.size_max>>20} MiB: a new key takes {1000*spent/n:.1f} ms of the event loop on average, {1000*worst:.1f} ms at most; let in {ok} of {n}")
