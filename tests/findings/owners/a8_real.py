"""Real processes: the machine loses power with a tail; ingest comes back some seconds before Valkey. Is the tail uploaded?"""
import sys, time, tempfile, signal
from contextlib import ExitStack
from pathlib import Path
import httpx
from support.processes import FourProcesses
from support.valkey import running_valkey
d = Path(tempfile.mkdtemp(prefix="a8-", dir="/tmp"))
def fragments(): return sum(1 for p in (d/"objects").rglob("*") if p.is_file() and "frag" in str(p).lower() or p.suffix in (".frag",".fragment"))
def objects(): return sorted(str(p.relative_to(d/"objects"))[-60:] for p in (d/"objects").rglob("*") if p.is_file())
def run(valkey_first):
    with ExitStack() as stack:
        valkey = stack.enter_context(running_valkey(d/"valkey"))
        house = FourProcesses(d, valkey.url, {"BOTTOMLESS_INGEST_RENEW_MS": "1000"})
        house.spawn()
        for p in house.services.values(): stack.enter_context(p)
        with httpx.Client(base_url=house["manifest"].url, timeout=30) as m, httpx.Client(base_url=house["ingest"].url, timeout=30) as i:
            print("create", m.put("/v1/streams/s", json={"fragment": {"target_bytes": 2**20, "max_age_ms": 2000}}).status_code)
            print("append", i.post("/v1/streams/s/records", json={"records": [{"value": "acknowledged"}]}).status_code)
            before = objects()
            house.kill(); valkey.stop()
            if valkey_first: valkey.start()
            t0 = time.monotonic()
            house.spawn()
            for _ in range(100):
                try:
                    if httpx.get(house["ingest"].url + "/readyz").status_code in (200, 503): break
                except httpx.HTTPError: time.sleep(.2)
            time.sleep(4)
            if not valkey_first: valkey.start()
            for p in house.services.values():
                if p.is_dead:      # the manifest does not start without it; whoever looks after processes starts it again
                    print('  started again:', p._log_path.stem); p._finish(); p.start()
            time.sleep(25)
            new = [o for o in objects() if o not in before]
            print("valkey first" if valkey_first else "ingest first", "- readyz", httpx.get(house["ingest"].url + "/readyz?verbose=1").text[:200])
            print("  objects since:", len(new))
            print("touch", i.post("/v1/streams/s/records", json={"records": [{"value": "touch"}]}).status_code)
            time.sleep(8)
            print("  objects after a touch:", len([o for o in objects() if o not in before]))
run(len(sys.argv) > 1)
