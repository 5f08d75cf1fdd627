"""The sweep looks at pins, removes an old plan (awaits the disk), and then goes by the pins it looked at before."""
from common import *
import threading
async def main():
    d = tmp()
    house = await (await House(d/"ingest", **SETTINGS).declare()).start()
    # an old plan, not begun (its commit was refused before its first part)
    await cut_off(house, 0)
    ids = [await stage(house, f"{n}{LARGE}") for n in "abc"]
    await house.advance(KEEP_MS)          # both at the end of their hour; nothing was swept yet
    st = staged_of(house)
    hold = asyncio.Event(); inside = asyncio.Event()
    real = st._remove_files
    calls = 0
    async def slow():
        nonlocal calls
        calls += 1
        if calls == 1:
            inside.set(); await hold.wait()
        await real()
    st._remove_files = slow
    sweeping = asyncio.create_task(sweep(house))
    await inside.wait()                   # the plan's file is being removed, in a thread
    # a commit begins: its batches are there, and pinned
    reads = 0
    real_read = st.read
    async def read(*a):
        nonlocal reads
        reads += 1
        if reads == 2:
            hold.set(); await sweeping     # the sweep goes on between the first part and the second
        return await real_read(*a)
    st.read = read
    show("job2: commit of three parts", await commit(house, *ids, producer="job2"))
    print("files", files(house), "values", [v[:1] for v in await house.values()])
    show("again", await commit(house, *ids, producer="job2"))
    await house.aclose()
asyncio.run(main())
