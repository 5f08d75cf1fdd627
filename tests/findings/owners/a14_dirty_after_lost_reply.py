"""The reply to the first reservation is lost, nobody appends again, the node is drained: the stream stays dirty for nothing."""
from common import *
from bottomless_server.coordination.base import CoordinationUnknown
async def main():
    d = tmp()
    house = await (await House(d/"ingest").declare()).start()
    real = house.coordination.transact
    show("opens the stream (a wrong expected offset)", await house.append_raw(b'{"records":[{"value":"x"}]}', **{"stream-expected-offset":"5"}))
    async def lost(*a, **k):
        vars(house.coordination).pop("transact")
        await real(*a, **k)
        raise CoordinationUnknown("the reply was lost")
    vars(house.coordination)["transact"] = lost
    show("append, the reply of its reservation is lost", await house.append("x"))
    await house.service.drain(); await house.aclose()
    r = await house.record()
    print("drained and stopped in order; stream empty; dirty:", r.dirty, "home:", r.home[:6], "published", r.published_next)
    house.time.advance(20_000)
    other = await House(d/"b", before=house, ingest_url="unix:///b.sock").start()
    show("append at the other node", await other.append("y"))
    await other.advance(3_600_000)
    show("an hour later", await other.append("y"))
    await other.aclose()
asyncio.run(main())
