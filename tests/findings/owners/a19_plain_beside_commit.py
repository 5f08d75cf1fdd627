"""A plain append under the same number gets in while a commit of several parts is under way."""
from common import *
async def main():
    house = await (await House(tmp()/"ingest", **SETTINGS).declare()).start()
    ids = [await stage(house, f"{n}{LARGE}") for n in range(3)]
    st = staged_of(house); real = st.read; n = 0
    async def read(*a):
        nonlocal n; n += 1
        if n == 1:
            show("  plain append of job, Txn-Number 7, meanwhile", await house.append_raw(b'{"records":[{"value":"plain"}]}', **{"producer-id":"job","txn-number":"7"}))
        return await real(*a)
    st.read = read
    show("commit 7, 3 parts", await commit(house, *ids))
    st.read = real
    show("commit 7 again", await commit(house, *ids))
    await finish(house)
    print("values", [v[:5] for v in await house.values()])
    await house.aclose()
asyncio.run(main())
