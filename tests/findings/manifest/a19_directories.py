"""Streams that come and go leave directories, and a table of them, for ever (directory drive)."""
import asyncio, tempfile, uuid, os, time
from pathlib import Path
from bottomless.drives.local import LocalDrive
from bottomless.formats.checks import crc32c
async def main():
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    d = LocalDrive(root)
    for n in range(1, 3):
        for _ in range(1000):
            s = uuid.uuid4()
            keys = [f"default/{s}/data/{0:020d}.{'0'*32}.fragment", f"default/{s}/metadata/root", f"default/{s}/stream.0000000001.json"]
            for k in keys: await d.put(k, [b"x"], crc32c(b"x"))
            failed = await d.delete(keys); assert not failed
        t = time.monotonic()
        objects = [f async for f in d.list("")]
        print(f"{n * 1000} streams made and deleted: objects {len(objects)}, directories {sum(len(x[1]) for x in os.walk(root))}, LocalDrive._durable {len(d._durable)}, one listing of all (garbage collection, rebuild) {time.monotonic() - t:.2f} s")
    await d.aclose()
    import shutil; shutil.rmtree(root)
asyncio.run(main())
