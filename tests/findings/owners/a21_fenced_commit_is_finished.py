"""A writer that was fenced has its commit stored after the fence was answered."""
from common import *
async def main():
    for when in (1, 2):
        house = await (await House(tmp()/"ingest", **SETTINGS).declare()).start()
        ids = [await stage(house, f"{n}{LARGE}") for n in range(3)]
        st = staged_of(house); real = st.read; n = 0
        async def read(*a):
            nonlocal n; n += 1
            if n == when:     # while part `when` waits for its room or for the disk
                show("  POST producers/job/epoch", await house.client.post(f"/v1/streams/{NAME}/producers/job/epoch"))
                print("  values when the fence was answered:", [v[:1] for v in await house.values()])
            return await real(*a)
        st.read = read
        show(f"the old writer (epoch 0): commit 7, fenced before part {when}", await commit(house, *ids))
        print("values then:", [v[:1] for v in await house.values()])
        st.read = real
        show("the old writer again", await commit(house, *ids))
        await finish(house)
        print("values after the owner's finish:", [v[:1] for v in await house.values()])
        show("the new writer (epoch 1): commit 7 of its own records", await commit(house, await stage(house, "new"), producer_epoch="1"))
        print("values:", [v[:3] for v in await house.values()])
        await house.aclose()
asyncio.run(main())
