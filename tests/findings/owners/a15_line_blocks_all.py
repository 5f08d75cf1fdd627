"""A part that waits for room of the process stops every stream of every tenant, while there is room for them."""
from common import *
import time
from bottomless.errors import Overloaded
from bottomless_server.node.core.admission import Admission
from bottomless_server.node.room import MemoryRoom
MIB = 2**20
async def main():
    room = MemoryRoom(Admission(64*MIB, 256*MIB), time.monotonic, 2.0)
    async def slow_body(n):       # a body of 8 MiB that comes with 256 KiB/s: it "comes", so it keeps its room for 32 s
        stream = StreamId(f"slow-{n//7}")
        async with room.body(stream, 8*MIB) as body:
            async def receive():
                await asyncio.sleep(0.24)
                return {"type":"http.request","body":b"x"*65536,"more_body":True}
            noted = body.noting(receive)
            for _ in range(128): await noted()
    slow = [asyncio.create_task(slow_body(n)) for n in range(29)]
    await asyncio.sleep(1)
    print("held by slow bodies:", room.admission.total//MIB, "of 256 MiB; free:", 256 - room.admission.total//MIB)
    async def small(tenant):
        begun = time.monotonic()
        try:
            async with room.hold(StreamId(f"tenant-{tenant}"), 1000): return f"ok after {time.monotonic()-begun:.2f} s"
        except Overloaded as e: return f"{e.code} after {time.monotonic()-begun:.2f} s"
    print("1 kB in another stream:", await small(1))
    async def part():
        try:
            async with room.hold(StreamId("commit"), 32*MIB, 30.0): return "part: ok"
        except Overloaded: return "part: overloaded"
    begun = time.monotonic()
    p = asyncio.create_task(part()); await asyncio.sleep(0.1)
    refused = good = 0
    while not p.done():
        answers = await asyncio.gather(*(small(n) for n in range(20)))
        refused += sum("ok" not in a for a in answers); good += sum("ok" in a for a in answers)
        if refused <= 20: print("while a part of 32 MiB waits:", answers[0])
        await asyncio.sleep(0.1)
    print(p.result(), f"after {time.monotonic()-begun:.1f} s; small appends of 20 other streams meanwhile: {refused} refused, {good} let in; {256-room.admission.total//MIB} MiB were free")
    for t in slow: t.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    print("left over", room.admission.total, room.admission.waiting_count)
asyncio.run(main())
