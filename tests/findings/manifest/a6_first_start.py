"""No clock.json is taken for "there is nothing yet that could be deleted too early"."""
import asyncio, tempfile
from dataclasses import replace
from pathlib import Path
from support.manifest import STREAM, World
from unit.manifest.test_edits import tens
from bottomless.model.config import parse_config
from bottomless_server.manifest.retention import evaluate
from bottomless_server.manifest.mutator import Mutators
from bottomless_server.manifest.retention_timer import RetentionTimer
DAY = 86_400_000

async def story(what, lost):
    w = World(); w.clock.now = 1_750_000_000_000; w.one_machine = True
    d = Path(tempfile.mkdtemp()) / "manifest"
    ctx = replace(w.context, clock_directory=d if lost != "never" else None)
    w.context = ctx
    committer = await w.open()
    now = w.clock.now
    # records that are seconds old
    from bottomless_server.manifest.sessions import intend
    from support.manifest import a_fragment
    uids = await intend(ctx, committer, "s1", [n * 10 for n in range(5)])
    frs = [a_fragment(n * 10, n * 10 + 10, uid=u)._replace(first_timestamp=now - 5_000 + n, last_timestamp=now - 5_000 + n) for n, u in enumerate(uids)]
    await committer.register("s1", frs); await committer.flush()
    config = parse_config({"retention": {"max_age": "7D"}})
    await w.streams.update(STREAM, lambda r: replace(r, config=config))
    await ctx.time.look()
    w.clock.now += 3_600_000
    await ctx.time.look()                       # an hour: settled
    # the process is replaced while the clock is ahead for a moment
    if lost == "removed" : (d / "clock.json").unlink()
    w.clock.skew_ms = 10 * DAY
    ctx2 = replace(ctx)
    mut = Mutators(ctx2); timer = RetentionTimer(ctx2, mut)
    await timer.walk(); await mut.aclose()
    print(f"{what}: doubt {ctx2.time.doubt}; fragments left {len(await w.leaves())} of 5; first_offset", (await w.entries())[0].first_offset)

async def compose():
    """docker-compose.yml: S3, Valkey and manifest on one host; the store has a Date, it is the host's."""
    w = World(); w.clock.now = 1_750_000_000_000
    w.drive._clock = w.coordination._clock = w.clock          # one host's clock
    assert w.drive.has_own_clock
    committer = await w.open(); now = w.clock.now
    from bottomless_server.manifest.sessions import intend
    from support.manifest import a_fragment
    uids = await intend(w.context, committer, "s1", [n * 10 for n in range(5)])
    frs = [a_fragment(n * 10, n * 10 + 10, uid=u)._replace(first_timestamp=now - 5_000 + n, last_timestamp=now - 5_000 + n) for n, u in enumerate(uids)]
    await committer.register("s1", frs); await committer.flush()
    config = parse_config({"retention": {"max_age": "7D"}})
    await w.streams.update(STREAM, lambda r: replace(r, config=config))
    await w.context.time.look(); w.clock.now += 3_600_000; await w.context.time.look()
    w.clock.skew_ms = 10 * DAY                                  # set ahead, for a quarter of an hour
    for minute in range(0, 12):
        await evaluate(w.context, committer)
        print(f"   one host, S3 on it, ahead for {minute} min: doubt {w.context.time.doubt}; fragments left {len(await w.leaves())}") if minute in (0, 9, 10, 11) else None
        w.clock.now += 60_000

async def main():
    await compose()
    await story("directory kept (as the tests have it)", "no")
    await story("no directory is persistent (a container without a volume for it), or the release before was upgraded", "removed")
    await story("no data directory at all", "never")
asyncio.run(main())
