"""A real Valkey: publishes of other streams write into the delete queue all the time; `settle` watches the whole queue."""
import asyncio, sys, time, tempfile, os, multiprocessing as mp, uuid
from pathlib import Path
from support.valkey import running_valkey
from bottomless.coordination.base import Changes, Due
from bottomless.coordination.redis import RedisCoordination
from bottomless.errors import StoreError
from bottomless.stores.streams import DELETES_KEY
import uvloop

def writer(url, tasks, stop, count):
    async def main():
        c = RedisCoordination.connect(url)
        async def one(k):
            n = 0
            while not stop.is_set():
                n += 1
                due = Due(DELETES_KEY, f"default/{uuid.uuid4()}/metadata/root.{n}".encode(), 2**50)
                try: await c.transact([f"bottomless:stream:{os.getpid()}-{k}"], lambda v: Changes({f"bottomless:stream:{os.getpid()}-{k}": b"x" * 1000}, [due]))
                except StoreError: continue
                with count.get_lock(): count.value += 1
        await asyncio.gather(*(one(k) for k in range(tasks)))
    uvloop.run(main())

async def settle(url, stop, count, tasks):
    c = RedisCoordination.connect(url)
    due = [Due(DELETES_KEY, f"default/0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11/data/{i:020d}.{i:032x}.fragment".encode(), 1000) for i in range(256)]
    await c.transact(["k"], lambda _: Changes(queued=due))
    ok = failed = 0; n0, t0 = count.value, time.monotonic()
    for _ in range(20):
        t = time.monotonic()
        try:
            await c.settle(due); ok += 1
            await c.transact(["k"], lambda _: Changes(queued=due))
        except StoreError as e: failed += 1; last = e
    rate = (count.value - n0) / (time.monotonic() - t0)
    print(f"{tasks} writers: {rate:.0f} publishes/s beside; settle of 256: {ok} succeeded, {failed} failed", f"({type(last).__name__}: {last})" if failed else "", flush=True)
    await c.aclose()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as d, running_valkey(Path(d) / "v") as v:
        url = v.url
        for tasks in (1, 4, 16, 48):
            stop, count = mp.get_context("spawn").Event(), mp.get_context("spawn").Value("q", 0)
            p = mp.get_context("spawn").Process(target=writer, args=(url, tasks, stop, count)); p.start()
            while count.value < 20: time.sleep(0.05)
            uvloop.run(settle(url, stop, count, tasks))
            stop.set(); p.join()
