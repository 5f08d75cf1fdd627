"""1,000 commits that wait for the turn of one producer keep everybody else's commits out."""
from common import *
async def main():
    house = await (await House(tmp()/"ingest", **SETTINGS).declare()).start()
    ids = [await stage(house, f"{n}{LARGE}") for n in range(3)]
    st = staged_of(house); real = st.read; go = asyncio.Event()
    async def read(*a):
        await go.wait()          # stands for a part that waits 30 s for room
        return await real(*a)
    st.read = read
    first = asyncio.create_task(commit(house, *ids))
    await asyncio.sleep(0.05)
    others = [asyncio.create_task(commit(house, "st_"+"0"*32)) for _ in range(1000)]
    await asyncio.sleep(3)
    show("commit of another producer", await commit(house, await stage(house, "z"), producer="other"))
    go.set()
    show("the first", await first)
    await asyncio.gather(*others)
    await house.aclose()
asyncio.run(main())
