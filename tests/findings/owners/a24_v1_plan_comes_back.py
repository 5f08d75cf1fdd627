"""A plan of version 1 that the build before left behind at a drain, and the stream comes back after others wrote: the owner finishes the wrong thing by itself."""
from common import *
from unit.ingest.test_staged import begun_by_an_earlier_build
async def main():
    d = tmp()
    a = await (await House(d/"a", **SETTINGS).declare()).start()
    await begun_by_an_earlier_build(a)                  # commit 7 = numbers 7, 8, 9; 7 is stored
    print("at A, values", [v[:1] for v in await a.values()])
    await a.published(1)
    # the build before left it clean (finding 2): has_begun did not exist
    object.__setattr__(a.appender._around, "has_begun", lambda *_: False)
    await a.aclose()
    print("left by the old build; dirty:", (await a.record()).dirty)
    b = await House(d/"b", before=a, ingest_url="unix:///b.sock").start()
    show("B: 7 again (old fault: a repeat)", await commit(b, await stage(b, "z")))
    show("B: 8, other records", await commit(b, await stage(b, "eight"), number=8))
    n = b.appender.log.next_offset
    await b.published(n, 2); await b.service.drain(); await b.aclose()
    a2 = await House(a.data_dir, before=a).start()
    await a2.append("touch")
    await finish(a2)                                     # the timer, 15 s later
    print("A finished by itself; values", [(r["offset"], r["value"][:5]) for r in await a2.rows(2)])
    show("A: 9, new records", await commit(a2, await stage(a2, "nine"), number=9))
    print("values", [(r["offset"], r["value"][:5]) for r in await a2.rows(2)])
    await a2.aclose()
asyncio.run(main())
