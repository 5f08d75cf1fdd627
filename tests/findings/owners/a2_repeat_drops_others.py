"""The repeat of a number drops batches that another producer's open commit needs."""
from common import *
async def main():
    d = tmp()
    house = await (await House(d/"ingest", **SETTINGS).declare()).start()
    show("p: commit 1", await commit(house, await stage(house, "a"), number=1, producer="p"))
    ids = await cut_off(house, 1)   # of "job", number 7; parts 2 and 3 wait
    print("job's commit 7 is open; files", files(house))
    show("p: commit 1 again, naming what job's plan names", await commit(house, *ids, number=1, producer="p"))
    print("files", files(house))
    show("job: commit 7 again", await commit(house, *ids))
    await finish(house)
    print("values", [v[:1] for v in await house.values()])
    # the same while the other commit is under way, with its batches pinned
    await house.aclose()
asyncio.run(main())
