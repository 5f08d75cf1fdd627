"""The newest registry object cannot be read: a rebuild goes by an older one, without a word in its result."""
import asyncio
from unit.manifest.test_deletion import House, NAME
from support.object_keys import registry_key
from support.rebuilding import rebuild
from bottomless.errors import StoreError
from bottomless.model.config import parse_config
from bottomless.stores.generation import check_generation
async def story(what):
    h = House(); w = h.world; w.clock.now = 1_750_000_000_000
    w.streams.generation = await check_generation(w.drive, w.coordination)
    await h.declare()
    if what == "tombstone":
        await h.deletions.begin(NAME, None)
    else:
        await h.registry.update(NAME, lambda r: parse_config({"retention": {"max_age": "1D"}}))
        await h.registry.update(NAME, lambda r: parse_config({"retention": {"max_age": "3650D"}}))
    keys = sorted([f.object_key async for f in w.drive.list("default/") if "/stream." in f.object_key])
    data = bytearray(await w.drive.get(keys[-1])); data[len(data) // 2] ^= 1
    await w.drive.delete([keys[-1]]); from bottomless.formats.checks import crc32c; await w.drive.put(keys[-1], [bytes(data)], crc32c(bytes(data)))
    w.coordination.lose()
    result = await rebuild(w)
    r = await w.streams.load(h.stream_id)
    print(what, "| registry objects", len(keys), "| after the rebuild:", r.state.value, r.config.retention, {k: v for k, v in result.items() if v})
    await h.mutators.aclose()
async def main():
    await story("tombstone"); await story("configuration")
asyncio.run(main())
