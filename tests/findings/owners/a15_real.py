"""The line of the process, on a real server with its defaults: 15 slow uploads (10 MB/s) and one staged commit stop everybody's appends."""
import asyncio, tempfile, time
from pathlib import Path
import httpx, os
from urllib.parse import urlsplit
from support.server import AllInOne
from bottomless.client.tables import frames_body
from bottomless.model.rows import Rows
MIB = 2**20
async def slow(host, port, stream, seconds, stop):
    r, w = await asyncio.open_connection(host, port)
    w.write(f"POST /v1/streams/{stream}/records HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/vnd.bottomless.batches\r\nContent-Length: {16*MIB}\r\n\r\n".encode())
    sent, t0 = 0, time.monotonic()
    while not stop.is_set() and sent < 16*MIB:
        n = int((time.monotonic()-t0)*700_000) - sent
        if n > 0: w.write(b"x"*n); sent += n
        try: await w.drain()
        except OSError: return
        await asyncio.sleep(.05)
    w.close()
async def main():
    d = Path(tempfile.mkdtemp(prefix="a15-", dir="/tmp"))
    server = AllInOne(d/"data"); server.start()
    try:
        u = urlsplit(server.url)
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as c:
            for s in ("a0","a1","a2","a3","commits", *(f"t{n}" for n in range(5))): (await c.put(f"/v1/streams/{s}", json={})).raise_for_status()
            batch = frames_body(Rows([os.urandom(50_000).hex().encode() for _ in range(20)], [1]*20))
            ids = []
            for _ in range(14):
                a = await c.post("/v1/streams/commits/staged", content=batch, headers={"content-type":"application/vnd.bottomless.batches"}); a.raise_for_status(); ids.append(a.json()["staged_id"])
            stop = asyncio.Event()
            tasks = [asyncio.create_task(slow(u.hostname, u.port, f"a{n//4}", 60, stop)) for n in range(15)]
            await asyncio.sleep(4)
            async def small(n):
                t0 = time.monotonic(); a = await c.post(f"/v1/streams/t{n}/records", json={"records":[{"value":"x"}]}); return a.status_code, round(time.monotonic()-t0,2)
            print("15 slow uploads to streams of one tenant; small appends elsewhere:", await asyncio.gather(*(small(n) for n in range(5))))
            t0 = time.monotonic()
            com = asyncio.create_task(c.post("/v1/streams/commits/records", json={"staged": ids}, headers={"content-type":"application/vnd.bottomless.staged+json","producer-id":"p","txn-number":"1"}))
            await asyncio.sleep(.3)
            counts = {}
            while not com.done():
                for status, took in await asyncio.gather(*(small(n) for n in range(5))): counts[status] = counts.get(status, 0) + 1
                if len(counts) and sum(counts.values()) == 5: print("while a commit of 28 MB waits:", counts, took)
                await asyncio.sleep(.1)
            a = com.result()
            print(f"the commit: {a.status_code} {a.json().get('code')} after {time.monotonic()-t0:.1f} s; small appends meanwhile, by status: {counts}")
            stop.set(); await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(1)
            print("afterwards:", await asyncio.gather(*(small(n) for n in range(5))))
    finally:
        server.kill()
asyncio.run(main())
