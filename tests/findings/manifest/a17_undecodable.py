"""One record of a key, or of a consumer, that this release cannot read stops the walk for the others."""
import asyncio
import orjson
from support.api_keys import HOUR_MS, a_world, create, is_good, nobody_checks
from support.manifest import STREAM, World, a_record
from support.rebuilding import put_registry, rebuild
from bottomless.coordination.base import Changes
from bottomless.errors import StoreError
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference
from bottomless.stores.consumers import ConsumerOffsets, consumer_key
from bottomless.stores.generation import check_generation
from bottomless.stores.keys import key_key
from bottomless_server.manifest.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.key_upkeep import KeyUpkeep
from bottomless_server.manifest.keys import Keys

async def keys():
    w = await a_world(); ks = Keys(w.context)
    a = await create(ks); w.clock.now += 10
    b = await create(ks)
    assert a.key.key_id < b.key.key_id
    old = w.coordination.copy()
    await ks.revoke(b.key.key_id, nobody_checks)
    print("keys: b revoked, good:", await is_good(w, b.credential))
    # Valkey comes back from a copy of before; and the record of key a is of a later release
    w.coordination.put_back(old)
    value = orjson.loads(await w.coordination.get(key_key(a.key.key_id)))
    sound = await w.coordination.get(key_key(a.key.key_id))
    w.coordination.write(Changes({key_key(a.key.key_id): orjson.dumps({**value, "format": 99})}))
    up = KeyUpkeep(w.context, ks)
    listings = 0
    real = w.drive.list
    def counted(prefix, after=""):
        nonlocal listings
        listings += prefix == "_keys/" or "key" in prefix
        return real(prefix, after)
    w.drive.list = counted
    for _ in range(100):
        w.clock.now += 60_000
        try: await up.make_pass()
        except StoreError as e: last = e
    print("   100 passes later: b good:", await is_good(w, b.credential), "| listings of keys", listings, "|", type(last).__name__, last)
    try: print("   list of the tenant's keys:", len(await ks.records.page("acme", "", 10)))
    except StoreError as e: print("   list of the tenant's keys:", type(e).__name__, e)
    w.coordination.write(Changes({key_key(a.key.key_id): sound}))
    await up.make_pass()
    print("   with a's record sound again, one pass: b good:", await is_good(w, b.credential))

async def consumers():
    w = World(); w.clock.now = 1_750_000_000_000
    w.streams.generation = await check_generation(w.drive, w.coordination)
    rec = a_record(home=None, dirty=False, epoch=0, epochs=(), owner_url=None, reserved_next=0)
    await w.streams.create(rec); await put_registry(w, rec)
    offs, snaps = ConsumerOffsets(w.coordination), ConsumerSnapshots(w.context)
    A, B = Reference("audit"), Reference("billing")
    async def commit(c, n):
        await offs.change(STREAM, c, lambda s: StoredOffset(c, n, w.clock.now, (s.revision + 1) if s else 1), w.clock.now)
    await commit(A, 10); await commit(B, 10); await snaps.make_pass()
    w.coordination.write(Changes({consumer_key(STREAM, A): b'{"format":99}'}))
    for n in range(100):
        w.clock.now += 60_000
        await commit(B, 1_000 + n)
        try: await snaps.make_pass()
        except StoreError as e: last = e
    print("consumers: audit cannot be read;", type(last).__name__, last, "| objects written in 100 min:", snaps.written_count - 1)
    w.coordination.lose(); await rebuild(w)
    print("   after loss and rebuild billing, which committed 1099, stands at", (await offs.find(STREAM, B)).next_offset)

async def main(): await keys(); await consumers()
asyncio.run(main())
