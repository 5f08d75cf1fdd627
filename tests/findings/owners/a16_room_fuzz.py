"""Random takes, bodies, cancels at random moments: is anything left over, or does anybody wait for nothing?"""
from common import *
import random
from bottomless.errors import Overloaded
from bottomless_server.node.core.admission import Admission
from bottomless_server.node.room import MemoryRoom
async def one(seed):
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    room = MemoryRoom(Admission(64, 160), loop.time, 0.03)
    over = 0
    async def holder(n):
        nonlocal over
        stream = StreamId(f"s{rng.randrange(5)}")
        try:
            if rng.random() < .5:
                async with room.hold(stream, rng.choice([0, 1, 5, 30, 64, 100]), rng.choice([None, 0, .05])):
                    await asyncio.sleep(rng.random()*.003)
            else:
                async with room.body(stream, rng.choice([0, 1, 10, 60])) as body:
                    left = rng.randrange(1, 4)
                    async def receive():
                        nonlocal left
                        left -= 1
                        await asyncio.sleep(rng.choice([0, .001, .002]))
                        return {"type": "http.request", "body": b"x"*rng.randrange(0, 40), "more_body": left > 0}
                    noted = body.noting(receive)
                    while left > 0: await noted()
                    if rng.random() < .3:
                        body.give_back(); await body.take(rng.randrange(80))
        except Overloaded: over += 1
    tasks = []
    for n in range(150):
        tasks.append(asyncio.create_task(holder(n)))
        if rng.random() < .3: await asyncio.sleep(rng.random()*.002)
        if rng.random() < .3: rng.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for t in tasks:
        if not t.cancelled() and t.exception(): raise t.exception()
    a = room.admission
    left = (a.total, a.waiting_count, len(a._fitting), len(a._noted), len(a._held), len(a._lines), len(room._waiting), len(room._coming))
    return left, over
async def main():
    bad = 0; overs = 0
    for seed in range(120):
        left, over = await one(seed); overs += over
        if any(left[:1]) or any(left[4:]): bad += 1; print(seed, left)
    print("seeds 120, with something left over:", bad, "; refused in all:", overs, "; last:", left)
asyncio.run(main())
