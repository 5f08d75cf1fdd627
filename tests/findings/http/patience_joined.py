"""A patient page joins the making of a fragment's index that a follower (who has no patience) began: one failed GET is an error to the page."""
import asyncio,sys
sys.path[:0]=["./tests","./docs/examples"]
from unit.reader.world import WatchedDrive, World
from bottomless.drives.base import DriveUnavailable
from bottomless.model.names import TENANT_DEFAULT, FullName, StreamName
from bottomless.model.offset_spec import At
from unit.reader.protocol import STREAM_ID
from bottomless_server.reader.pages import PageQuery
class Drive(WatchedDrive):
    failing=False; fails=1; gate=None; asked=None
    async def get(self,key,start=0,size=None):
        data=await super().get(key,start,size)
        if self.failing and self.fails>0 and "/f" in key or self.failing and self.fails>0 and "frag" in key:
            self.fails-=1; self.asked.set(); await self.gate.wait(); raise DriveUnavailable("the store is busy")
        return data
async def once(first):
    d=Drive(); w=World(fanout=2,drive=d); w.fill(80)
    for _ in range(4): await w.upload(2,free=True)
    d.failing=True; d.gate=asyncio.Event(); d.asked=asyncio.Event(); d.reads.clear()
    q=PageQuery(At(0),limit=5,size_max=1000,stream_id=STREAM_ID)
    if first=="follower": one=asyncio.create_task(w.service.followers.read(FullName(TENANT_DEFAULT,StreamName("orders")),q,60))
    else: one=asyncio.create_task(w.get("/records?offset=0&limit=5"))
    await asyncio.wait_for(d.asked.wait(),5)
    page=asyncio.create_task(w.get("/records?offset=0&limit=4"))
    for _ in range(50): await asyncio.sleep(0)
    d.gate.set()
    r=await page
    print(f"index begun by a {first:9}: the page is {r.status_code} {r.json().get('code','')}; GETs {d.reads}")
    try: x=await one; print("   the first:",getattr(x,'status_code',x))
    except Exception as e: print("   the first:",repr(e))
    await w.aclose()
async def main():
    await once("page"); await once("follower")
asyncio.run(main())
