"""Consumer offsets: what a commit makes of what is stored, and how it reaches the object store."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.manifest import STREAM, Fault, World, a_record
from support.object_keys import consumers_key

from bottomless.coordination.base import Changes, CoordinationUnknown
from bottomless.errors import Code, InvalidRequest, NotFound, Unavailable, WrongOffset
from bottomless.formats.consumers import ConsumersSnapshot, decode_snapshot
from bottomless.formats.stream_record import encode_record
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference
from bottomless.model.stream import StreamState
from bottomless.stores.consumers import SNAPSHOTS_KEY, ConsumerOffsets, SnapshotPointer
from bottomless.stores.streams import DELETES_KEY, stream_key
from bottomless_server.manifest.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.core.consumers import (
    Commit,
    check_committed,
    commit,
    describe_offset,
    offset_etag,
)

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
async def world() -> World:
    made = World()
    await made.streams.create(a_record())
    return made


async def store(world: World, next_offset: int, consumer: str = "billing") -> StoredOffset | None:
    def decide(stored: StoredOffset | None) -> StoredOffset:
        name = Reference(consumer)
        return commit(stored, Commit(name, next_offset, allow_regression=True), world.clock.now)

    offsets = ConsumerOffsets(world.coordination)
    return await offsets.change(STREAM, Reference(consumer), decide, world.clock.now)


async def test_a_stream_that_is_being_deleted_takes_no_commit(world: World) -> None:
    record = replace(await world.record(), state=StreamState.DELETING)
    world.coordination.write(Changes({stream_key(STREAM): encode_record(record)}))
    with pytest.raises(NotFound):
        await store(world, 5)
    assert await ConsumerOffsets(world.coordination).find(STREAM, BILLING) is None


async def test_a_deletion_in_the_middle_of_a_commit_wins(world: World) -> None:
    record = replace(await world.record(), state=StreamState.DELETING)
    seen: list[StoredOffset | None] = []

    def decide(stored: StoredOffset | None) -> StoredOffset:
        seen.append(stored)
        world.coordination.write(Changes({stream_key(STREAM): encode_record(record)}))
        return STORED

    with pytest.raises(NotFound):
        await ConsumerOffsets(world.coordination).change(STREAM, BILLING, decide, 1)
    assert seen == [None]


async def test_of_many_commits_at_once_the_highest_is_left(world: World) -> None:
    def keep_highest(stored: StoredOffset | None, number: int) -> StoredOffset:
        if stored is not None and stored.next_offset > number:
            return stored
        return StoredOffset(BILLING, number, 1, number)

    offsets = ConsumerOffsets(world.coordination)
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


async def snapshots_of(world: World) -> list[ConsumersSnapshot]:
    prefix = f"default/{STREAM}/metadata/consumers."
    keys = [facts.object_key async for facts in world.drive.list(prefix)]
    return [decode_snapshot(await world.drive.get(key)) for key in keys]


async def test_a_commit_reaches_the_object_store_in_the_next_pass(world: World) -> None:
    snapshots = ConsumerSnapshots(world.context)
    first = await store(world, 5)
    await store(world, 7, "audit")
    assert first is not None
    assert not await snapshots.holds(STREAM, first)

    await snapshots.make_pass()

    [snapshot] = await snapshots_of(world)
    assert [(one.consumer, one.next_offset) for one in snapshot.consumers] == [
        ("audit", 7),
        ("billing", 5),
    ]
    assert await snapshots.holds(STREAM, first)
    assert await ConsumerSnapshots(world.context).holds(STREAM, first)
    await snapshots.make_pass()
    assert snapshots.written_count == 1


async def test_the_snapshot_before_goes_when_the_next_one_is_noted(world: World) -> None:
    snapshots = ConsumerSnapshots(world.context)
    for next_offset in (5, 6):
        await store(world, next_offset)
        await snapshots.make_pass()
    [old, new] = await snapshots_of(world)
    assert old.version < new.version
    [due] = await world.coordination.due(DELETES_KEY, 2**50, 9)
    assert f"consumers.{old.version:020d}." in due.member.decode()


async def test_while_the_object_store_is_down_the_stream_stays_in_the_queue(world: World) -> None:
    world = World(manifest_put_seconds=0.05)
    await world.streams.create(a_record())
    snapshots = ConsumerSnapshots(world.context)
    stored = await store(world, 5)
    assert stored is not None
    world.drive.failing = True
    with pytest.raises(Unavailable):
        await snapshots.make_pass()
    assert not await snapshots.holds(STREAM, stored)
    world.drive.failing = False
    await snapshots.make_pass()
    assert await snapshots.holds(STREAM, stored)


async def test_a_commit_during_the_put_is_in_the_next_snapshot(world: World) -> None:
    snapshots = ConsumerSnapshots(world.context)
    await store(world, 5)
    [due] = await world.coordination.due(SNAPSHOTS_KEY, 2**50, 9)
    world.clock.now += 1
    late = await store(world, 6)
    # The pass had read the queue before that commit.
    await snapshots._write(due)
    assert late is not None
    [queued] = await world.coordination.due(SNAPSHOTS_KEY, 2**50, 9)
    assert queued.due_at == due.due_at + 1
    await snapshots.make_pass()
    assert (await snapshots_of(world))[-1].consumers[0].next_offset == 6
    assert await world.coordination.due(SNAPSHOTS_KEY, 2**50, 9) == []


async def test_a_crash_between_object_and_note_is_mended_by_the_next_pass(world: World) -> None:
    await store(world, 5)
    world.coordination.faults = [Fault.LOST_LATE]
    with pytest.raises(CoordinationUnknown):
        await ConsumerSnapshots(world.context).make_pass()
    await ConsumerSnapshots(world.context).make_pass()
    found = await snapshots_of(world)
    assert [snapshot.consumers[0].next_offset for snapshot in found] == [5, 5]
    pointer = await ConsumerOffsets(world.coordination).pointer(STREAM)
    assert pointer is not None
    key = consumers_key(STREAM, pointer.version, pointer.uid)
    assert decode_snapshot(await world.drive.get(key)) == found[-1]


async def test_of_two_processes_that_write_at_once_one_is_noted(world: World) -> None:
    await store(world, 5)
    await asyncio.gather(*(ConsumerSnapshots(world.context).make_pass() for _ in range(2)))
    pointer = await ConsumerOffsets(world.coordination).pointer(STREAM)
    assert pointer is not None
    found = await snapshots_of(world)
    assert [snapshot.consumers[0].next_offset for snapshot in found] == [5] * len(found)
    doomed = [due.member.decode() for due in await world.coordination.due(DELETES_KEY, 2**50, 9)]
    assert len(doomed) == len(found) - 1
    assert not any(pointer.uid in key for key in doomed)


async def test_what_a_snapshot_holds_is_restored(world: World) -> None:
    await store(world, 5)
    await store(world, 7, "audit")
    await ConsumerSnapshots(world.context).make_pass()
    [snapshot] = await snapshots_of(world)
    other = World()
    await other.streams.create(a_record())
    offsets = ConsumerOffsets(other.coordination)
    for _ in range(2):
        await offsets.restore(snapshot, other.context.new_uid())
    assert await offsets.all(STREAM) == snapshot.consumers
    pointer = await offsets.pointer(STREAM)
    assert isinstance(pointer, SnapshotPointer)
    assert pointer.version == snapshot.version


async def test_everything_of_a_stream_is_forgotten_also_where_there_are_many(world: World) -> None:
    offsets = ConsumerOffsets(world.coordination)
    for number in range(1_203):
        stored = StoredOffset(Reference(f"c{number:04d}"), number, 1, 1)
        await offsets.change(STREAM, stored.consumer, lambda _, stored=stored: stored, 1)  # type: ignore[misc]
    assert [one.next_offset for one in await offsets.all(STREAM)] == list(range(1_203))
    await offsets.forget_all(STREAM)
    assert await offsets.all(STREAM) == ()
    assert await offsets.find(STREAM, Reference("c0007")) is None
