"""Black box, one real server on a directory: five seconds of a wall clock that is ten days ahead."""
import sys, tempfile, time
from pathlib import Path
from support.server import AllInOne
from support.skewed_clock import SkewedClock
from support.waiting import until
DAY = 86_400_000
with tempfile.TemporaryDirectory() as d:
    clock = SkewedClock(Path(d))
    env = {"BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "1000", "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "200", "BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": "2000",
           "BOTTOMLESS_UPLOADER_UPLOAD_DEADLINE_SECONDS": "1", "BOTTOMLESS_MANIFEST_ROOT_GRACE_MS": "1000"}
    server = AllInOne(Path(d) / "data", {**clock.environment, **env}, int(sys.argv[1]))
    with server, server.client() as c:
        s = "/v1/streams/orders"
        for name in ("orders", "gone"):
            c.put(f"/v1/streams/{name}", json={"fragment": {"target_bytes": 65536, "max_age_ms": 200}}).raise_for_status()
        for n in range(6):
            c.post(f"{s}/records", json={"records": [{"value": f"{n} {i}"} for i in range(10)]}).raise_for_status(); time.sleep(0.5)
        c.post("/v1/streams/gone/records", json={"records": [{"value": "x"}]}).raise_for_status()
        until(lambda: c.get(f"{s}/offsets").json()["object_store_next_offset"] == 60, what="upload")
        until(lambda: c.get("/v1/streams/gone/offsets").json()["object_store_next_offset"] == 1, what="upload")
        frs = lambda: sorted(p.name[:20] for p in (Path(d) / "data").rglob("*.fragment"))
        n0 = len(frs())
        a = c.post(f"{s}/leases", json={"first_offset": 0, "ttl_seconds": 21600, "holder": "job A"}).json()
        print("lease of job A until", a["expires_at"], "| fragments", n0)
        clock.set(10 * DAY); time.sleep(1)
        gone = c.delete("/v1/streams/gone", headers={}).json()
        b = c.post(f"{s}/leases", json={"first_offset": 50, "ttl_seconds": 1, "holder": "job B"})
        print("clock ahead: lease of job B:", b.status_code, "| deletion of the other stream begun:", gone.get("operation_id", gone))
        time.sleep(4)
        clock.set(0)
        print("clock right again. job A renews:", c.put(f"{s}/leases/{a['lease_id']}", json={"ttl_seconds": 21600}).status_code)
        op = c.post(f"{s}/trim", json={"before_offset": 40, "accept_loss": True} ) if False else c.post(f"{s}/trim", json={"before_offset": 40})
        print("trim", op.status_code)
        time.sleep(20)
        print("20 s later fragments", len(frs()))
        o = c.get(f"/v1/operations/{gone.get('operation_id','op_'+'0'*32)}").json()
        print("deletion of the other stream:", o.get("state"), o.get("progress"), o.get("error"), {k: v for k, v in o.items() if k.endswith("_at")})
