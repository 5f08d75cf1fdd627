"""Black box, one real server, no faults: bursts of commits of many consumers; then the newest snapshot object is read."""
import asyncio, sys, tempfile, time
from pathlib import Path
import httpx
from support.server import AllInOne
from bottomless.formats.consumers import decode_snapshot
N = 40
async def main(port):
    with tempfile.TemporaryDirectory() as d:
        server = AllInOne(Path(d) / "data", {"BOTTOMLESS_MANIFEST_CONSUMER_SNAPSHOT_MS": "100"}, port)
        with server:
            base = str(server.client().base_url)
            async with httpx.AsyncClient(base_url=base, timeout=60, limits=httpx.Limits(max_connections=N)) as c:
                s = "/v1/streams/orders"
                (await c.put(s, json={"fragment": {"target_bytes": 65536, "max_age_ms": 200}})).raise_for_status()
                (await c.post(f"{s}/records", json={"records": [{"value": "x"}] * 2000})).raise_for_status()
                missing = 0
                for rnd in range(1, 121):
                    last = {}
                    async def consumer(k):
                        r = await c.put(f"{s}/consumers/c{k}/offset", json={"next_offset": rnd})
                        if r.status_code == 200: last[f"c{k}"] = r.json()["next_offset"]
                    await asyncio.gather(*(consumer(k) for k in range(N)))
                    await asyncio.sleep(1.0)                       # ten times what is promised
                    newest = max((Path(d) / "data").rglob("consumers.*.json"), key=lambda p: p.name)
                    snap = {str(o.consumer): o.next_offset for o in decode_snapshot(newest.read_bytes()).consumers}
                    lacking = {k: (v, snap.get(k)) for k, v in last.items() if snap.get(k) != v}
                    if lacking:
                        missing += 1
                        said = {k: (await c.get(f"{s}/consumers/{k}/offset")).json().get("durability") for k in lacking}
                        print(f"round {rnd}: a second after the last commit the snapshot lacks {len(lacking)} of {N}: (committed, in snapshot) {dict(list(lacking.items())[:3])}; durability says {set(said.values())}", flush=True)
                print(f"{missing} of 120 bursts")
asyncio.run(main(int(sys.argv[1])))
