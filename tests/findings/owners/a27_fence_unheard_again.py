"""A confirmation that was answered before the fence takes back what a reservation in the background has heard."""
from common import *
async def main():
    d = tmp()
    house = await (await House(d/"ingest").declare()).start()
    await house.append("a")
    claim = house.appender.claim
    house.time.advance(13_000); await house.lease.renew()       # a lapse: claims are to be confirmed
    owner = claim._owner; real = owner.load
    async def load(stream_id):
        record = await real(stream_id)      # read; its reply is late
        claim._fenced = True                # meanwhile `_reserve` was told Fenced
        return record
    owner.load = load
    await claim.confirm()
    print("told Fenced by coordination; after the late confirmation: fenced", claim._fenced, "held", claim.held)
    await house.aclose()
asyncio.run(main())
