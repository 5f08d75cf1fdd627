"""While a clock is doubted quarantines only fill: then a doubt stops uploads too."""
import asyncio
from support.manifest import STREAM, World
from unit.manifest.test_condemning import stored
from bottomless.errors import StoreError
from bottomless.formats.stream_record import encode_record
from bottomless_server.manifest.committer import Committer
from bottomless_server.manifest.deleter import Deleter
from bottomless_server.manifest.sessions import begin, intend
DAY = 86_400_000
async def main():
    w = World(); w.one_machine = True; w.clock.now = 1_750_000_000_000
    c, _ = await stored(w, 2)
    await w.context.time.look(); w.clock.now += 3_600_000; await w.context.time.look()
    w.clock.skew_ms = 6 * 60_000                 # set ahead by six minutes, rightly: doubted for a day on a directory
    n = 0; start = w.clock.now
    d = Deleter(w.context)
    while True:
        n += 1; w.clock.now += 15_000             # an uploader that is restarted every 15 s with 8 uploads under way (memory, a bad node)
        try:
            await begin(w.context, c, f"u{n}")
            await intend(w.context, c, f"u{n}", [20 + k for k in range(8)])
        except StoreError as e:
            print("after", n, "restarts,", f"{(w.clock.now - start) / 3_600_000:.1f} h:", type(e).__name__, e); break
        if n % 100 == 0:
            try: await d.make_pass()
            except StoreError: pass
    r = await w.record()
    print("quarantine", len(r.quarantine), "| the record that every EXEC rewrites:", len(encode_record(r)), "bytes | doubt:", w.context.time.doubt)
    w.clock.now += 3 * 3_600_000
    try: await begin(w.context, c, "healthy"); await intend(w.context, c, "healthy", [20])
    except StoreError as e: print("three hours later a healthy uploader:", type(e).__name__, e, "| doubt:", w.context.time.doubt)
asyncio.run(main())
