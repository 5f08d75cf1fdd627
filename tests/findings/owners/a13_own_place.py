"""The first part of a producer's own commit takes the producer's own place; the last one then has none."""
from common import *
async def seq(house, p, n=0):
    return await house.append_raw(b'{"records":[{"value":"p"}]}', **{"producer-id": p, "producer-seq": str(n)})
async def main():
    house = await (await House(tmp()/"ingest", **SETTINGS, ingest_producer_count_max=4).declare()).start()
    show("job: commit 6 (one part)", await commit(house, await stage(house, "a"), number=6))
    await house.advance(3_600_000 + 1000)       # job commits once an hour
    for p in "abc": await seq(house, p)
    print("known:", list(house.appender.tracking.producers))
    show("job: commit 7, 3 parts", await commit(house, *[await stage(house, f"{n}{LARGE}") for n in range(3)]))
    print("known:", list(house.appender.tracking.producers))
    show("job: 7 again", await commit(house, await stage(house, "z")))
    await finish(house)
    for m in (10, 40):
        await house.advance(m*60_000)
        for p in "abc": await seq(house, p, 1 if m == 10 else 2)   # they write on
        await finish(house)
        show(f"job: 7 again, {m} min later", await commit(house, await stage(house, "z")))
    print("dirty / bound:", house.service._has_begun(STREAM, house.appender.tracking), "values", len(await house.values()))
    await house.aclose()
asyncio.run(main())
