"""API keys: forgotten, revocations not made durable, look at the bucket stopped: all by the bare wall clock."""
import asyncio
from support.api_keys import DAY_MS, HOUR_MS, a_world, create, is_good, nobody_checks
from support.manifest import World
from bottomless.formats.keys import API_KEYS_PREFIX
from bottomless_server.stores.keys import TIDY_KEY, UNSAVED_KEY
from bottomless_server.manifest.keys.key_upkeep import KeyUpkeep
from bottomless_server.manifest.keys.keys import Keys
YEAR = 365 * DAY_MS

async def n_objects(w): return len([o async for o in w.drive.list(API_KEYS_PREFIX)])

async def expiry():
    w = await a_world(); w.one_machine = True
    await w.context.time.look()
    keys = Keys(w.context); up = KeyUpkeep(w.context, keys)
    ninety = await keys.create(tenant="acme", label="job", scopes=("streams:read:*",), ends_at=w.clock.now + 90 * DAY_MS, actor="root")
    await up.make_pass()
    w.clock.now += 2 * HOUR_MS
    await up.make_pass()
    print("key with 90 days to go: good", await is_good(w, ninety.credential), "objects", await n_objects(w))
    w.clock.skew_ms = 200 * DAY_MS
    await up.make_pass()
    m = await w.context.time.look()
    w.clock.now += 5_000; w.clock.skew_ms = 0
    await up.make_pass()
    try: good = await is_good(w, ninety.credential)
    except Exception as e: good = f"{type(e).__name__} {e}"
    print("  after 5 s of a clock 200 days ahead (doubt then:", m.doubt, "): good", good, "| objects of it in the bucket:", await n_objects(w),
          "| listed:", len(await keys.records.page("acme", "", 10)))

async def revocation():
    w = await a_world(); w.one_machine = True
    w.context.settings.__dict__["manifest_put_seconds"] = 0.01
    keys = Keys(w.context); up = KeyUpkeep(w.context, keys)
    issued = await create(keys)
    await up.make_pass()
    w.clock.skew_ms = 10 * YEAR
    await up.make_pass()                     # the look at the bucket happened while ahead
    w.drive.failing = True                   # the bucket is away for a moment
    try: await keys.revoke(issued.key.key_id, nobody_checks)
    except Exception as e: print("revoke:", type(e).__name__, e, e.outcome)
    w.drive.failing = False
    w.clock.now += 5_000; w.clock.skew_ms = 0
    for _ in range(60):
        w.clock.now += DAY_MS
        await up.make_pass()
    dues = await w.coordination.due(UNSAVED_KEY, 2**52, 10)
    rec = await keys.records.look_at(issued.key.key_id)
    print("60 days later: durable in the bucket:", rec.durable, "| tried again in", [f"{(d.due_at - w.clock.now)/DAY_MS:.0f} days" for d in dues],
          "| next look at what the bucket knows in", f"{(up._reconcile_at - w.clock.now)/DAY_MS:.0f} days")
    # coordination is lost, rebuilt
    from support.rebuilding import rebuild
    w.coordination.lose()
    await rebuild(w)
    print("after a loss of coordination and a rebuild the revoked key is good:", await is_good(w, issued.credential))

async def main():
    await expiry(); await revocation()
asyncio.run(main())
