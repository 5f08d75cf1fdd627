"""What the repeat of a commit of several parts is answered, once a later large commit was stored."""
from common import *
async def main():
    d = tmp()
    house = await (await House(d/"ingest", **SETTINGS).declare()).start()
    async def big(number, parts):
        return await commit(house, *[await stage(house, f"{n}{LARGE}") for n in range(parts)], number=number)
    show("commit 7, 3 parts", await big(7, 3))
    show("7 again", await big(7, 3))
    show("commit 8, 9 parts", await big(8, 9))
    show("8 again (9 records are stored)", await big(8, 9))
    show("7 again (its first offset is 0, 3 records)", await big(7, 3))
    await house.aclose()
asyncio.run(main())
