"""Numbers: passed over, at the ends of their range, and names with ~."""
from common import *
async def main():
    d = tmp()
    house = await (await House(d/"ingest", **SETTINGS).declare()).start()
    async def big(number, parts, tag="", **h):
        return await commit(house, *[await stage(house, f"{tag}{n}{LARGE}") for n in range(parts)], number=number, **h)
    show("commit 10, the first of this producer", await big(10, 1))
    show("commit 5, never sent before (all that was ever stored is remembered: 10)", await big(5, 2, "never"))
    print("values", [v[:7] for v in await house.values()])
    M = 2**53-1
    for n in (M-1, M):
        show(f"end: commit {n}, 3 parts", await big(n, 3, producer="end"))
    show("end: again", await big(M, 3, producer="end"))
    show("end: 2**53", await big(M+1, 1, producer="end"))
    for p in ("~x", "~5e8c9902207afaeb7120430c585a445f"):
        show(f"producer {p}", await commit(house, await stage(house, "z"), producer=p))
        show(f"GET producers/{p}", await house.client.get(f"/v1/streams/{NAME}/producers/{p}"))
        show(f"DELETE producers/{p}", await house.client.delete(f"/v1/streams/{NAME}/producers/{p}"))
    house2 = await house.after_crash().start()
    house_, house_ = house, house2
    show("end: again after a crash", await commit(house2, await stage(house2, "z"), number=M, producer="end"))
    show("zero: commit 0, 2 parts", await commit(house2, *[await stage(house2, f"{n}{LARGE}") for n in range(2)], number=0, producer="zero"))
    show("zero: commit 1, 2 parts", await commit(house2, *[await stage(house2, f"{n}{LARGE}") for n in range(2)], number=1, producer="zero"))
    show("zero: 0 again", await commit(house2, await stage(house2, "z"), number=0, producer="zero"))
    await house2.aclose(); await house.aclose()
asyncio.run(main())
