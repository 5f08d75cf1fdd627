"""What stays of plans and staged batches of a stream that was deleted, or moved away."""
from common import *
from dataclasses import replace as rep
from bottomless.model.stream import StreamState
async def main():
    for how in ("deleted", "moved"):
        d = tmp()
        house = await (await House(d/"ingest", **SETTINGS).declare()).start()
        ids = await cut_off(house, 0)     # a plan that was never begun: its batches would go after an hour
        if how == "deleted":
            await house.streams.update(STREAM, lambda r: rep(r, state=StreamState.DELETING, epoch=r.epoch+1))
            await house.internal.post(f"{INTERNAL}/close")
        else:
            await house.service.drain(); await house.aclose()
            other = await House(d/"b", before=house, ingest_url="unix:///b.sock").start()
            show("other: append", await other.append("x"))
            house = await House(house.data_dir, before=house).start()
            show("back", await house.append("x"))
        await house.advance(2*KEEP_MS); await sweep(house)
        print(how, "after twice the hour:", files(house), "bytes counted", staged_of(house).size)
        await house.advance(11*KEEP_MS); await sweep(house)
        print(how, "after the seven days:", files(house), "tables:", len(staged_of(house)._streams))
        house.time.advance(300*86_400_000); await house.lease.renew(); await sweep(house)
        print(how, "after a year:", files(house), "tables:", len(staged_of(house)._streams))
        await house.aclose()
asyncio.run(main())
