"""A begun plan that is damaged: forgetting the producer does not end it, and the stream never leaves."""
from common import *
async def main():
    d = tmp()
    house = await (await House(d/"ingest", **SETTINGS).declare()).start()
    await cut_off(house, 1)
    [plan] = (house.data_dir / "staged" / STREAM).glob("*.plan")
    plan.write_bytes(plan.read_bytes().replace(b"job", b"jab"))
    after = await house.after_crash().start()
    show("repeat of 7 after damage", await commit(after, await stage(after, f"0{LARGE}")))
    show("DELETE producers/job", await after.client.delete(f"/v1/streams/{NAME}/producers/job"))
    show("7 again after it was forgotten", await commit(after, await stage(after, f"0{LARGE}")))
    show("8, small, of the same producer", await commit(after, await stage(after, "z"), number=8))
    for days in range(30):
        after.time.advance(86_400_000)
    await after.lease.renew()
    await sweep(after)
    show("after 30 days and a sweep", await commit(after, await stage(after, f"0{LARGE}")))
    await after.append("other")
    n = after.appender.log.next_offset
    await after.published(n)
    await after.service.drain()
    await after.aclose()
    print("all published, drained; dirty:", (await after.record()).dirty, "(True: the stream stays on this node)")
    again = await House(after.data_dir, before=after).start()
    show("after one more restart", await commit(again, await stage(again, f"0{LARGE}")))
    print("files", files(again))
    await again.aclose(); await house.aclose()
asyncio.run(main())
