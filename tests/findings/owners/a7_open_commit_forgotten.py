"""Names of an open commit are pushed out after an hour of silence: first the producer's, then that of its parts."""
from common import *
async def seq(house, p, n=0):
    return await house.append_raw(b'{"records":[{"value":"p"}]}', **{"producer-id": p, "producer-seq": str(n)})
async def open_one(d, count_max):
    house = await (await House(d/"ingest", **SETTINGS, ingest_producer_count_max=count_max).declare()).start()
    await cut_off(house, 1)
    # the disk of staged batches goes on to fail; or: the node was down for an hour
    await house.advance(3_600_000 + 1000)
    return house
async def main():
    house = await open_one(tmp(), 4)
    print("known:", list(house.appender.tracking.producers))
    for p in "abc":
        show(f"new producer {p}", await seq(house, p))
    print("known:", list(house.appender.tracking.producers))
    # the rest is lost, say
    import shutil
    for b in (house.data_dir/"staged"/STREAM).glob("*.staged"): b.unlink()
    house2 = await house.after_crash().start()
    show("7 again, rest lost", await commit(house2, await stage(house2, "z")))
    show("as told: DELETE producers/job", await house2.client.delete(f"/v1/streams/{NAME}/producers/job"))
    show("7 again", await commit(house2, await stage(house2, "z")))
    show("a plain append of job in strict mode", await seq(house2, "job"))
    show("7 again", await commit(house2, await stage(house2, "z")))
    await house2.aclose()
    await house.aclose()
    print("--- and one new producer more")
    house = await open_one(tmp(), 4)
    for p in "abcd":
        show(f"new producer {p}", await seq(house, p))
    print("known:", list(house.appender.tracking.producers), "plan and batches of the commit:", files(house))
    await finish(house)
    print("after the owner's own finish:", [v[:1] for v in await house.values()], files(house))
    await sweep(house)
    print("after the sweep:", files(house), "(plan_keep is", 10*KEEP_MS/1000, "s from the commit on)")
    await house.aclose()
asyncio.run(main())
