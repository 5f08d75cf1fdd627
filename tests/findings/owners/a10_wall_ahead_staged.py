"""The wall clock is ahead for a moment while the sweep looks: staged batches go, and the rest of a begun commit."""
from common import *
async def main():
    d = tmp()
    house = await (await House(d/"ingest", **{**SETTINGS, "ingest_staged_keep_ms": 3_600_000, "ingest_staged_plan_keep_ms": 604_800_000}).declare()).start()
    mine = await stage(house, "a task of Spark")
    house.time.wall += 3_700_000        # an hour, for a moment
    await sweep(house)
    house.time.wall -= 3_700_000
    show("commit 1 s after staging", await commit(house, mine, number=1, producer="spark"))
    await cut_off(house, 1)
    # the node restarts with a clock that is 8 days ahead: the first sweep is at the start, the first finish 15 s later
    house.time.wall += 8*86_400_000
    after = house.after_crash()
    staged_module.SWEEP_SECONDS = 1e6
    await after.start()
    await asyncio.sleep(0.3)
    house.time.wall -= 8*86_400_000
    print("files after the start", files(after))
    show("7 again", await commit(after, await stage(after, "z")))
    await after.aclose(); await house.aclose()
asyncio.run(main())
