"""A request stands still while coordination is lost and rebuilt by another process; then it goes on.

What it was told, what coordination says, and what one more loss and rebuild makes of it are the same. The
checks before these stopped rebuilds and publishes; creations, configurations, deletions, rotations
and snapshots were always answered before anything was lost, or died with their process.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from support.api_keys import HOUR_MS, is_good, nobody_checks
from support.guards import remove
from support.manifest import STREAM, ManifestHarness, a_record
from support.rebuilders import RebuildHarness, carry_out, goes_on, paused
from support.rebuilding import firsts
from unit.manifest.test_rebuild_overlaps import collected

from bottomless.errors import NotFound, Outcome, Unavailable
from bottomless.formats.keys import GENERATION_PREFIX, stream_prefix
from bottomless.model.config import RetentionConfig, StreamConfig
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import TENANT_DEFAULT, FullName, Reference, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.manifest.consumers.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.keys.key_reconciling import reconcile_keys
from bottomless_server.manifest.keys.keys import Issued, Keys
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.recovery.rebuilt_registry import FoundRegistry
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.streams.deletion import Deletions
from bottomless_server.stores.consumers import ConsumerOffsets
from bottomless_server.stores.rebuild_step import RebuildStep

STEPS = 60
"""More requests than any of them has."""
BILLING = Reference("billing")
NAME = FullName(TENANT_DEFAULT, StreamName("orders"))
FRESH = FullName(TENANT_DEFAULT, StreamName("fresh"))
Described = tuple[StreamState, RetentionConfig, bool]
AN_HOUR = RetentionConfig(max_age="1h", max_bytes="unlimited")


def registry_of(manifest: ManifestHarness) -> Registry:
    registry = Registry(manifest.context)
    registry.generation = manifest.streams.generation or 0
    return registry


async def delete(manifest: ManifestHarness) -> None:
    mutators = Mutators(manifest.context)
    deletions = Deletions(
        manifest.context, registry_of(manifest), mutators, Operations(manifest.context)
    )
    try:
        await deletions.begin(NAME, None)
    finally:
        await mutators.aclose()


async def patch(manifest: ManifestHarness) -> None:
    def change(record: StreamRecord) -> StreamConfig:
        return record.config.model_copy(update={"retention": AN_HOUR})

    await registry_of(manifest).update(NAME, change)


async def create(manifest: ManifestHarness) -> None:
    await registry_of(manifest).declare(FRESH, StreamConfig())


async def described(manifest: ManifestHarness) -> Described:
    """What coordination says: whether the stream lives, how it is configured, and whether another does."""
    record = await manifest.streams.load(STREAM)
    try:
        fresh = await manifest.streams.find(FRESH) is not None
    except NotFound:
        fresh = False
    return record.state, record.config.retention, fresh


Work = Callable[[ManifestHarness], Awaitable[None]]
AS_BEFORE = a_record().config.retention
DONE: dict[Work, Described] = {
    delete: (StreamState.DELETING, AS_BEFORE, False),
    patch: (StreamState.ACTIVE, AN_HOUR, False),
    create: (StreamState.ACTIVE, AS_BEFORE, True),
}


async def overtaken(work: Work, at: int) -> bool:
    """One request that stands still before its n-th request to a store; whether it has as many."""
    harness = await RebuildHarness.begin()
    manifest = harness.manifest
    # Its owner has left, so a deletion waits for nobody.
    await manifest.streams.update(STREAM, lambda record: replace(record, owner_url=None))
    async with paused(manifest, at, partial(work, manifest)) as process:
        if process is None:
            return False
        harness.lose()
        await harness.rebuild()
        pause, task = process
        pause.wake()
        try:
            await task
        except Unavailable as error:
            told = error.outcome
        except NotFound:
            told = Outcome.NONE
        else:
            told = Outcome.COMMITTED
        request = pause.request
    seen = await described(manifest)
    if told is Outcome.COMMITTED:
        assert seen == DONE[work], request
    if seen[0] is StreamState.DELETING:
        return True
    await harness.live()
    harness.lose()
    await harness.rebuild()
    after = await described(manifest)
    # A stream whose creation was of unknown outcome may come to life.
    assert after[:2] == seen[:2], request
    assert after[2] or not seen[2], request
    await harness.all_is_there()
    return True


@pytest.mark.parametrize("work", DONE, ids=lambda work: work.__name__)
async def test_a_request_that_a_rebuild_overtakes_is_not_answered_with_success(work: Work) -> None:
    """A deletion was answered with 202, its stream came back and was appended to; the next rebuild
    deleted what had been acknowledged since."""
    at = 0
    while await overtaken(work, at):
        at += 1
    assert 2 < at < STEPS


async def all_overtaken() -> None:
    for work in DONE:
        at = 0
        while await overtaken(work, at):
            at += 1


async def test_a_registry_object_of_before_a_rebuild_is_collected() -> None:
    harness = await RebuildHarness.begin()
    manifest = harness.manifest
    async with paused(manifest, 0, partial(patch, manifest), r"put .*/stream\.") as process:
        assert process is not None
        harness.lose()
        await harness.rebuild()
        pause, task = process
        pause.wake()
        with pytest.raises(Unavailable) as told:
            await task
    assert told.value.outcome is Outcome.UNKNOWN
    manifest.clock.now += 86_400_000

    await collected(manifest)
    await Deleter(manifest.context).make_pass()

    record = await manifest.record()
    left = await registry_objects(manifest)
    assert len(left) == 1
    assert f"{record.registry_version:010d}" in left[0]
    assert await firsts(manifest) == harness.published


@pytest.mark.parametrize("skew_ms", [0, 600_000, 10**10], ids=["one clock", "minutes", "months"])
async def test_a_snapshot_of_consumers_of_before_a_rebuild_counts_for_nothing(skew_ms: int) -> None:
    """It has the version that a clock gave it which was ahead: a commit that was answered as safe in a
    snapshot went back with the next rebuild."""
    harness = await RebuildHarness.begin()
    manifest = harness.manifest
    snapshots = ConsumerSnapshots(manifest.context)
    await commit(manifest, 7)
    manifest.clock.skew_ms = skew_ms
    work = ConsumerSnapshots(manifest.context).make_pass
    async with paused(manifest, 0, work, "put .*consumers") as late:
        assert late is not None
        manifest.clock.skew_ms = 0
        harness.lose()
        await harness.rebuild()
        stored = await commit(manifest, 20)
        await snapshots.make_pass()
        assert stored is not None
        assert await snapshots.holds(STREAM, stored)

        await goes_on(*late)

    harness.lose()
    await harness.rebuild()
    found = await ConsumerOffsets(manifest.coordination).find(STREAM, BILLING)
    assert found is not None
    assert found.next_offset == 20


async def commit(manifest: ManifestHarness, next_offset: int) -> StoredOffset | None:
    now = manifest.clock.now
    stored = StoredOffset(BILLING, next_offset, now, now)
    offsets = ConsumerOffsets(manifest.coordination)
    return await offsets.change(STREAM, BILLING, lambda _: stored, now)


async def test_a_key_object_of_before_a_rebuild_changes_no_number() -> None:
    """It came between the looks of two processes that restore the key, and the second one's object was
    above what had been given out since: a secret that had leaked was good again."""
    harness = await RebuildHarness.begin()
    manifest, key_id = harness.manifest, harness.good.key.key_id

    async def rotate() -> Issued:
        return await Keys(manifest.context).rotate(key_id, 2 * HOUR_MS, nobody_checks)

    rebuild, put = partial(carry_out, manifest), "put _system/keys"
    async with paused(manifest, 0, rotate, put) as cut_off:
        assert cut_off is not None
    async with paused(manifest, 0, rotate, put) as old:
        assert old is not None
        harness.lose()
        async with paused(manifest, 0, rebuild, put) as first:
            assert first is not None
            await goes_on(*old)
            async with paused(manifest, 0, rebuild, put) as second:
                assert second is not None
                await goes_on(*first)
                assert await harness.has_generation()
                await reconcile_keys(manifest.context)
                leaked = harness.good
                harness.good = await Keys(manifest.context).rotate(key_id, 0, nobody_checks)

                await goes_on(*second)

    await reconcile_keys(manifest.context)
    assert await is_good(manifest, harness.good.credential)
    assert not await is_good(manifest, leaked.credential)


@pytest.mark.parametrize("skew_ms", [0, 600_000], ids=["one clock", "a clock ahead"])
async def test_a_creation_of_before_a_rebuild_takes_no_name_away(skew_ms: int) -> None:
    """Of two streams of one name that stayed which had the younger id, so the clocks had the word: the
    one with records was deleted."""
    harness = await RebuildHarness.begin()
    manifest = harness.manifest
    manifest.clock.skew_ms = skew_ms
    async with paused(manifest, 0, partial(create, manifest), r"put .*/stream\.") as late:
        assert late is not None
        manifest.clock.skew_ms = 0
        harness.lose()
        await harness.rebuild()
        manifest.clock.now += 60_000
        await create(manifest)
        named = await manifest.streams.find(FRESH)

        await goes_on(*late)

    harness.lose()
    done = await harness.rebuild()

    assert await manifest.streams.find(FRESH) == named
    assert (await manifest.streams.load(named)).state is StreamState.ACTIVE
    assert done.result is not None
    assert (done.result["streams"], done.result["deleted_streams"]) == (2, 1)


async def given_up(harness: RebuildHarness) -> None:
    """A rebuild that has put all its objects, when Valkey's own data comes back."""
    own = harness.manifest.coordination.copy()
    harness.lose()
    work = partial(carry_out, harness.manifest)
    async with paused(harness.manifest, 0, work, f"put {GENERATION_PREFIX}") as process:
        assert process is not None
    harness.manifest.coordination.put_back(own)
    assert await harness.has_generation()


async def registry_objects(manifest: ManifestHarness) -> list[str]:
    prefix = f"{stream_prefix(STREAM, TENANT_DEFAULT)}stream."
    return [one.object_key async for one in manifest.drive.list(prefix)]


async def test_a_stream_that_is_deleted_after_a_rebuild_was_given_up_stays_deleted() -> None:
    """That attempt had said that it lives, in the generation that came then; only live streams got an
    object of it, so the next rebuild but one brought the stream back."""
    harness = await RebuildHarness.begin()
    manifest = harness.manifest
    await manifest.streams.update(STREAM, lambda record: replace(record, owner_url=None))
    await given_up(harness)
    await delete(manifest)

    for _ in range(3):
        harness.lose()
        await harness.rebuild()
        assert (await manifest.record()).state is StreamState.DELETING


async def test_of_several_attempts_the_root_of_the_last_one_counts() -> None:
    """All attempts had one version. What was trimmed after a rebuild was given up came back by its
    root, as the uids had it, if the stream published nothing before the next loss."""
    for _ in range(4):
        harness = await RebuildHarness.begin()
        await given_up(harness)
        await harness.trim()
        for _ in range(2):
            harness.lose()
            await harness.rebuild()

        assert await firsts(harness.manifest) == harness.published[1:]


async def test_a_rebuild_takes_no_object_of_an_earlier_attempt_for_its_own() -> None:
    """Its delete may be under way: it came after the rebuild, and nothing said any more what it was
    that the stream's objects belong to."""
    harness = await RebuildHarness.begin()
    await given_up(harness)
    left = await registry_objects(harness.manifest)

    harness.lose()
    await harness.rebuild()

    version = (await harness.manifest.record()).registry_version
    [mine] = set(await registry_objects(harness.manifest)) - set(left)
    assert f"stream.{version:010d}." in mine
    assert mine > max(left)


async def test_a_record_that_was_made_before_a_rebuild_is_not_entered_after_it() -> None:
    """It was believed by nobody and could not be deleted, and with it no list of streams was answered."""
    harness = await RebuildHarness.begin()
    manifest = harness.manifest
    async with paused(manifest, 0, partial(create, manifest), "transact .*fresh") as late:
        assert late is not None
        harness.lose()
        await harness.rebuild()
        late[0].wake()
        with pytest.raises(Unavailable) as told:
            await late[1]

    assert told.value.outcome is Outcome.NONE
    with pytest.raises(NotFound):
        await manifest.streams.find(FRESH)


async def test_of_one_generation_the_snapshot_that_is_later_by_the_clock_is_above() -> None:
    """Coordination comes back from a backup, and gives versions out that it had given out before."""
    harness = await RebuildHarness.begin()
    manifest, snapshots = harness.manifest, ConsumerSnapshots(harness.manifest.context)
    harness.lose()
    await harness.rebuild()
    backup = manifest.coordination.copy()
    for next_offset in (6, 7, 8):
        manifest.clock.now += 10_000
        await commit(manifest, next_offset)
        await snapshots.make_pass()
    manifest.coordination.put_back(backup)
    manifest.clock.now += 10_000
    await commit(manifest, 20)
    await ConsumerSnapshots(manifest.context).make_pass()

    harness.lose()
    await harness.rebuild()

    found = await ConsumerOffsets(manifest.coordination).find(STREAM, BILLING)
    assert found is not None
    assert found.next_offset == 20


async def _believe(_: Registry, generation: int) -> None:
    del generation


async def _put_none(
    _: object, record: StreamRecord, found: FoundRegistry, step: RebuildStep
) -> StreamRecord:
    del found, step
    return record


def _from_the_clock_alone(generation: int) -> int:
    del generation
    return 0


GUARDS: dict[str, tuple[Callable[..., Any], Callable[[], Awaitable[None]]]] = {
    "the generation, asked for after a registry object is there": (_believe, all_overtaken),
    "a registry object of the rebuild's own generation": (_put_none, all_overtaken),
    "versions of consumers' snapshots, by generation": (
        _from_the_clock_alone,
        partial(test_a_snapshot_of_consumers_of_before_a_rebuild_counts_for_nothing, 10**10),
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
async def test_without_a_guard_what_is_late_counts(
    guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant, check = GUARDS[guard]
    remove(monkeypatch, guard, variant)

    with pytest.raises(AssertionError):
        await check()
