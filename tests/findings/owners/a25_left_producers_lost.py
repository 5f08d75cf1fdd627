"""The next owner holds what it was left of producers in memory and in coordination only, until its first write."""
from common import *
from dataclasses import replace as rep
from bottomless_server.stores.streams import producers_key
async def main():
    d = tmp()
    a = await (await House(d/"a").declare()).start()
    txn = lambda h, n: h.append_raw(b'{"records":[{"value":"x"}]}', **{"producer-id": "job", "txn-number": str(n)})
    show("A: number 7", await txn(a, 7))
    await a.published(1); await a.service.drain(); await a.aclose()
    b = await House(d/"b", before=a, ingest_url="unix:///b.sock").start()
    show("B (owner now): 7 again", await txn(b, 7))
    # coordination is emptied and rebuilt: the record comes back dirty, at its home B; what was left of producers does not
    b.coordination.write(Changes({producers_key(STREAM): None}))
    r = await b.record()
    await b.streams.update(STREAM, lambda r: rep(r, dirty=True, generation=1)); b.show_generation(1)
    await b.advance(6_000); await asyncio.sleep(1.5)
    show("B: 7 again after the rebuild", await txn(b, 7))
    b2 = await b.after_crash(ingest_url="unix:///b.sock").start()
    show("B after a restart: 7 again", await txn(b2, 7))
    await b2.aclose(); await b.aclose()
asyncio.run(main())
