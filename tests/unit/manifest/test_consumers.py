"""Consumer offsets: what a commit makes of what is stored, and how it reaches the object store."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove
from support.manifest import STREAM, Crash, Fault, ManifestHarness, a_record
from support.object_keys import consumers_key

from bottomless.errors import Code, InvalidRequest, NotFound, Unavailable, WrongOffset
from bottomless.formats.checks import crc32c
from bottomless.formats.consumers import ConsumersSnapshot, decode_snapshot, encode_snapshot
from bottomless.formats.stream_record import encode_record
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference, StreamId, Uid
from bottomless.model.stream import StreamState
from bottomless_server.coordination.base import Changes, CoordinationUnknown
from bottomless_server.manifest.consumers.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.consumers.core.consumers import (
    Commit,
    check_committed,
    commit,
    describe_offset,
    offset_etag,
)
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.removal.garbage import GC, collect_step, gc_arguments
from bottomless_server.stores.consumers import (
    SNAPSHOTS_KEY,
    ConsumerOffsets,
    ListedConsumers,
    SnapshotPointer,
)
from bottomless_server.stores.forgetting import FOR_GOOD
from bottomless_server.stores.operations import Operation
from bottomless_server.stores.streams import DELETES_KEY, stream_key

HOUR = 3_600_000
BILLING = Reference("billing")
STORED = StoredOffset(BILLING, 11, 100, 100)


def asked(next_offset: int, **more: object) -> Commit:
    return Commit(BILLING, next_offset, **more)  # type: ignore[arg-type]


# The decision


def test_the_first_commit_is_stored() -> None:
    assert commit(None, asked(0), 100) == StoredOffset(BILLING, 0, 100, 100)


def test_the_same_commit_is_what_is_stored_already() -> None:
    assert commit(STORED, asked(11), 500) is STORED


def test_going_back_is_refused_unless_it_is_meant() -> None:
    with pytest.raises(WrongOffset) as caught:
        commit(STORED, asked(10), 500)
    assert caught.value.code is Code.OFFSET_REGRESSION
    assert caught.value.facts == {"offset": 10, "next_offset": 11}
    assert commit(STORED, asked(10, allow_regression=True), 500).next_offset == 10


def test_a_condition_is_checked_before_anything_else() -> None:
    for before, tag in ((STORED, '"o99"'), (None, "*"), (None, '"o100"')):
        with pytest.raises(WrongOffset) as caught:
            commit(before, asked(11, if_match=tag), 500)
        assert caught.value.code is Code.ETAG_MISMATCH
    assert commit(STORED, asked(12, if_match=offset_etag(STORED)), 500).next_offset == 12


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=20))
def test_a_tag_is_never_given_twice_whatever_the_clock_does(steps: list[tuple[int, int]]) -> None:
    now, stored, tags = 100, None, set()
    for next_offset, later in steps:
        now += later
        after = commit(stored, asked(next_offset, allow_regression=True), now)
        if after != stored:
            assert offset_etag(after) not in tags
            tags.add(offset_etag(after))
        stored = after


def test_the_end_itself_may_be_committed_and_nothing_beyond() -> None:
    check_committed(20, 20)
    with pytest.raises(InvalidRequest) as caught:
        check_committed(21, 20)
    assert caught.value.code is Code.OFFSET_BEYOND_END


@pytest.mark.parametrize(
    ("first", "committed_next", "lag", "clamped"),
    [
        (0, 20, 9, False),
        (0, 11, 0, False),
        (15, 20, 5, True),
        (11, 20, 9, False),
        (0, None, None, False),
    ],
)
def test_lag_counts_only_what_can_be_read(
    first: int, committed_next: int | None, lag: int | None, clamped: bool
) -> None:
    said = describe_offset(STORED, first, committed_next, in_snapshot=False)
    assert (said["lag_records"], said["clamped_on_resume"]) == (lag, clamped)


# What is stored


@pytest.fixture
async def harness() -> ManifestHarness:
    made = ManifestHarness()
    await made.streams.create(a_record())
    return made


async def store(
    harness: ManifestHarness, next_offset: int, consumer: str = "billing"
) -> StoredOffset | None:
    def decide(stored: StoredOffset | None) -> StoredOffset:
        name = Reference(consumer)
        return commit(stored, Commit(name, next_offset, allow_regression=True), harness.clock.now)

    offsets = ConsumerOffsets(harness.coordination)
    return await offsets.change(STREAM, Reference(consumer), decide, harness.clock.now)


async def test_a_stream_that_is_being_deleted_takes_no_commit(harness: ManifestHarness) -> None:
    record = replace(await harness.record(), state=StreamState.DELETING)
    harness.coordination.write(Changes({stream_key(STREAM): encode_record(record)}))
    with pytest.raises(NotFound):
        await store(harness, 5)
    assert await ConsumerOffsets(harness.coordination).find(STREAM, BILLING) is None


async def test_a_deletion_in_the_middle_of_a_commit_wins(harness: ManifestHarness) -> None:
    record = replace(await harness.record(), state=StreamState.DELETING)
    seen: list[StoredOffset | None] = []

    def decide(stored: StoredOffset | None) -> StoredOffset:
        seen.append(stored)
        harness.coordination.write(Changes({stream_key(STREAM): encode_record(record)}))
        return STORED

    with pytest.raises(NotFound):
        await ConsumerOffsets(harness.coordination).change(STREAM, BILLING, decide, 1)
    assert seen == [None]


async def test_of_many_commits_at_once_the_highest_is_left(harness: ManifestHarness) -> None:
    def keep_highest(stored: StoredOffset | None, number: int) -> StoredOffset:
        if stored is not None and stored.next_offset > number:
            return stored
        return StoredOffset(BILLING, number, 1, number)

    offsets = ConsumerOffsets(harness.coordination)
    await asyncio.gather(
        *(
            offsets.change(STREAM, BILLING, lambda stored, n=n: keep_highest(stored, n), 1)  # type: ignore[misc]
            for n in range(10)
        )
    )
    found = await offsets.find(STREAM, BILLING)
    assert found is not None
    assert found.next_offset == 9


# The snapshot


async def snapshots_of(harness: ManifestHarness) -> list[ConsumersSnapshot]:
    prefix = f"default/{STREAM}/metadata/consumers."
    keys = [facts.object_key async for facts in harness.drive.list(prefix)]
    return [decode_snapshot(await harness.drive.get(key)) for key in keys]


async def test_a_commit_reaches_the_object_store_in_the_next_pass(harness: ManifestHarness) -> None:
    snapshots = ConsumerSnapshots(harness.context)
    first = await store(harness, 5)
    await store(harness, 7, "audit")
    assert first is not None
    assert not await snapshots.holds(STREAM, first)

    await snapshots.make_pass()

    [snapshot] = await snapshots_of(harness)
    assert [(one.consumer, one.next_offset) for one in snapshot.consumers] == [
        ("audit", 7),
        ("billing", 5),
    ]
    assert await snapshots.holds(STREAM, first)
    assert await ConsumerSnapshots(harness.context).holds(STREAM, first)
    await snapshots.make_pass()
    assert snapshots.written_count == 1


async def test_the_snapshot_before_goes_when_the_next_one_is_noted(
    harness: ManifestHarness,
) -> None:
    snapshots = ConsumerSnapshots(harness.context)
    for next_offset in (5, 6):
        await store(harness, next_offset)
        await snapshots.make_pass()
    [old, new] = await snapshots_of(harness)
    assert old.version < new.version
    [due] = await harness.coordination.due(DELETES_KEY, 2**50, 9)
    assert f"consumers.{old.version:020d}." in due.member.decode()


async def test_while_the_object_store_is_down_the_stream_stays_in_the_queue(
    harness: ManifestHarness,
) -> None:
    harness = ManifestHarness(manifest_put_seconds=0.05)
    await harness.streams.create(a_record())
    snapshots = ConsumerSnapshots(harness.context)
    stored = await store(harness, 5)
    assert stored is not None
    harness.drive.failing = True
    with pytest.raises(Unavailable):
        await snapshots.make_pass()
    assert not await snapshots.holds(STREAM, stored)
    harness.drive.failing = False
    await snapshots.make_pass()
    assert await snapshots.holds(STREAM, stored)


async def test_a_commit_during_the_put_is_in_the_next_snapshot(harness: ManifestHarness) -> None:
    snapshots = ConsumerSnapshots(harness.context)
    await store(harness, 5)
    [due] = await harness.coordination.due(SNAPSHOTS_KEY, 2**50, 9)
    harness.clock.now += 1
    late = await store(harness, 6)
    # The pass had read the queue before that commit.
    await snapshots._write(due)
    assert late is not None
    [queued] = await harness.coordination.due(SNAPSHOTS_KEY, 2**50, 9)
    assert queued.due_at == due.due_at + 1
    await snapshots.make_pass()
    assert (await snapshots_of(harness))[-1].consumers[0].next_offset == 6
    assert await harness.coordination.due(SNAPSHOTS_KEY, 2**50, 9) == []


async def test_a_crash_between_object_and_note_is_mended_by_the_next_pass(
    harness: ManifestHarness,
) -> None:
    await store(harness, 5)
    # The first transaction gives out the version.
    harness.coordination.faults = [Fault.NONE, Fault.LOST_LATE]
    with pytest.raises(CoordinationUnknown):
        await ConsumerSnapshots(harness.context).make_pass()
    await ConsumerSnapshots(harness.context).make_pass()
    found = await snapshots_of(harness)
    assert [snapshot.consumers[0].next_offset for snapshot in found] == [5, 5]
    pointer = await ConsumerOffsets(harness.coordination).pointer(STREAM)
    assert pointer is not None
    key = consumers_key(STREAM, pointer.version, pointer.uid)
    assert decode_snapshot(await harness.drive.get(key)) == found[-1]


async def test_of_two_processes_that_write_at_once_one_is_noted(harness: ManifestHarness) -> None:
    await store(harness, 5)
    await asyncio.gather(*(ConsumerSnapshots(harness.context).make_pass() for _ in range(2)))
    pointer = await ConsumerOffsets(harness.coordination).pointer(STREAM)
    assert pointer is not None
    found = await snapshots_of(harness)
    assert [snapshot.consumers[0].next_offset for snapshot in found] == [5] * len(found)
    doomed = [due.member.decode() for due in await harness.coordination.due(DELETES_KEY, 2**50, 9)]
    assert len(doomed) == len(found) - 1
    assert not any(pointer.uid in key for key in doomed)


@pytest.mark.parametrize("late_ms", [0, 3, 1_000])
async def test_a_commit_whose_time_is_not_later_is_in_the_next_snapshot(
    harness: ManifestHarness, late_ms: int
) -> None:
    """Of a slow request, or of a process whose clock is late.

    The test above was blind: there time goes on between the commit that the pass has read of in
    the queue and the one that comes while the object is put.
    """
    harness.clock.now += 60_000
    snapshots = ConsumerSnapshots(harness.context)
    await store(harness, 999, "audit")
    seen: list[StoredOffset | None] = []

    async def meanwhile() -> None:
        harness.clock.now -= late_ms
        seen.append(await store(harness, 5_000))
        harness.clock.now += late_ms

    harness.drive.before_put = meanwhile
    await snapshots.make_pass()
    [late] = seen
    assert late is not None
    assert not await ConsumerSnapshots(harness.context).holds(STREAM, late)
    await snapshots.make_pass()
    assert await ConsumerSnapshots(harness.context).holds(STREAM, late)
    assert late in (await snapshots_of(harness))[-1].consumers


def ahead(harness: ManifestHarness, skew_ms: int) -> ConsumerSnapshots:
    """The snapshots of another process, whose clock is ahead."""
    return ConsumerSnapshots(replace(harness.context, clock=lambda: harness.clock.now + skew_ms))


@pytest.mark.parametrize("skew_ms", [4 * 60_000, 2 * 86_400_000])
@pytest.mark.parametrize("dies", [True, False])
async def test_a_snapshot_that_nobody_noted_is_not_the_newest_for_long(
    harness: ManifestHarness, skew_ms: int, dies: bool
) -> None:
    """The clock of who wrote it is ahead: its version stayed the highest until all others came
    there. It was found by attack: no test had two processes with clocks of their own."""
    snapshots = ConsumerSnapshots(harness.context)
    await store(harness, 10)
    await snapshots.make_pass()
    await store(harness, 20)
    if dies:
        # Its version, the object, and then no more.
        harness.fuse.left = 4
        with pytest.raises(Crash):
            await ahead(harness, skew_ms).make_pass()
    else:

        async def quicker() -> None:
            await snapshots.make_pass()

        harness.drive.before_put = quicker
        await ahead(harness, skew_ms).make_pass()
    harness.clock.now += 1_000
    last = await store(harness, 30)
    await snapshots.make_pass()
    assert last is not None
    assert await snapshots.holds(STREAM, last)
    assert (await snapshots_of(harness))[-1].consumers == (last,)


async def overtaken(harness: ManifestHarness) -> tuple[ConsumerSnapshots, StoredOffset]:
    """Two processes at once: the one with the higher version reads before the last commit, and
    dies after its put; the other one reads after it. Returns the latter."""
    slow = ConsumerSnapshots(harness.context)
    await store(harness, 10)
    read = slow._offsets.all_listed
    last: list[StoredOffset | None] = []

    async def late(stream_id: StreamId) -> ListedConsumers:
        if not last:
            harness.fuse.left = 4
            with pytest.raises(Crash):
                await ConsumerSnapshots(harness.context).make_pass()
            last.append(await store(harness, 20))
        return await read(stream_id)

    slow._offsets.all_listed = late  # type: ignore[method-assign]
    await slow.make_pass()
    assert last[0] is not None
    return slow, last[0]


async def test_a_snapshot_is_not_noted_once_a_higher_version_was_given_out(
    harness: ManifestHarness,
) -> None:
    snapshots, last = await overtaken(harness)
    assert last not in (await snapshots_of(harness))[-1].consumers
    assert not await snapshots.holds(STREAM, last)
    await snapshots.make_pass()
    assert await snapshots.holds(STREAM, last)
    assert last in (await snapshots_of(harness))[-1].consumers


async def test_without_the_look_at_the_highest_version_a_commit_is_said_to_be_safe(
    harness: ManifestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the highest version that was given to a snapshot", lambda *_: True)
    snapshots, last = await overtaken(harness)
    assert last not in (await snapshots_of(harness))[-1].consumers
    assert await snapshots.holds(STREAM, last)


async def leave_behind(harness: ManifestHarness, version: int) -> str:
    """A snapshot that nobody noted, as an earlier release may have left it; returns its key."""
    snapshot = ConsumersSnapshot(STREAM, "default", version, (STORED,))
    key = consumers_key(STREAM, version, Uid("e" * 32))
    data = encode_snapshot(snapshot)
    await harness.drive.put(key, [data], crc32c(data))
    return key


async def test_what_an_earlier_release_left_is_below_the_next_snapshot(
    harness: ManifestHarness,
) -> None:
    await leave_behind(harness, harness.clock.now + 10**9)
    last = await store(harness, 30)
    await ConsumerSnapshots(harness.context).make_pass()
    assert (await snapshots_of(harness))[-1].consumers == (last,)


async def test_garbage_collection_has_a_snapshot_made_above_what_nobody_noted(
    harness: ManifestHarness,
) -> None:
    snapshots = ConsumerSnapshots(harness.context)
    last = await store(harness, 30)
    await snapshots.make_pass()
    stray = await leave_behind(harness, harness.clock.now + 10**12)

    for dry_run in (True, False):
        harness.clock.now += 2 * HOUR
        await snapshots.make_pass()
        assert (await snapshots_of(harness))[-1].consumers == (STORED,)
        arguments = gc_arguments(dry_run=dry_run, minimum_age_ms=HOUR, tenant=None)
        operation = Operation("op_1", GC, "default", None, 0, 0, arguments=arguments)
        await collect_step(harness.context, operation, 1_000)
    await snapshots.make_pass()
    assert (await snapshots_of(harness))[-1].consumers == (last,)
    harness.clock.now += 2 * HOUR
    await collect_step(harness.context, operation, 1_000)
    await Deleter(harness.context).make_pass()
    assert not harness.drive.has(stray)


async def test_no_version_is_given_out_for_a_stream_that_is_being_deleted(
    harness: ManifestHarness,
) -> None:
    record = replace(await harness.record(), state=StreamState.DELETING)
    harness.coordination.write(Changes({stream_key(STREAM): encode_record(record)}))
    offsets = ConsumerOffsets(harness.coordination)
    with pytest.raises(NotFound):
        await offsets.reserve(STREAM, 1)
    with pytest.raises(NotFound):
        await offsets.overtake(STREAM, 1, 1)
    assert await offsets.highest_version(STREAM) is None


async def test_nothing_is_noted_once_a_stream_is_forgotten(harness: ManifestHarness) -> None:
    """A pass that was under way for long would leave a key of it for ever."""
    await store(harness, 5)
    offsets = ConsumerOffsets(harness.coordination)
    version, before = await offsets.reserve(STREAM, 1)
    await offsets.forget(STREAM, FOR_GOOD)
    pointer = SnapshotPointer(version, harness.context.new_uid())
    assert not await offsets.point(STREAM, before, pointer, None)
    assert await offsets.pointer(STREAM) is None
    assert await offsets.highest_version(STREAM) is None


async def test_what_a_snapshot_holds_is_restored(harness: ManifestHarness) -> None:
    await store(harness, 5)
    await store(harness, 7, "audit")
    await ConsumerSnapshots(harness.context).make_pass()
    [snapshot] = await snapshots_of(harness)
    other = ManifestHarness()
    await other.streams.create(a_record())
    offsets = ConsumerOffsets(other.coordination)
    for _ in range(2):
        await offsets.restore(snapshot, other.context.new_uid())
    assert await offsets.all(STREAM) == snapshot.consumers
    pointer = await offsets.pointer(STREAM)
    assert isinstance(pointer, SnapshotPointer)
    assert pointer.version == snapshot.version


async def test_everything_of_a_stream_is_forgotten_also_where_there_are_many(
    harness: ManifestHarness,
) -> None:
    offsets = ConsumerOffsets(harness.coordination)
    for number in range(1_203):
        stored = StoredOffset(Reference(f"c{number:04d}"), number, 1, 1)
        await offsets.change(STREAM, stored.consumer, lambda _, stored=stored: stored, 1)  # type: ignore[misc]
    assert [one.next_offset for one in await offsets.all(STREAM)] == list(range(1_203))
    await offsets.forget(STREAM, FOR_GOOD)
    assert await offsets.all(STREAM) == ()
    assert await offsets.find(STREAM, Reference("c0007")) is None
