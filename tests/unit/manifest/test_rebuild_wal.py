"""A rebuild brings back what leaderless streams have in WAL objects alone, and uses no offset twice."""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from support.guards import remove
from support.leaderless import (
    INSTANCE,
    OTHER_INSTANCE,
    WalWriter,
    a_leaderless_harness,
    a_leaderless_record,
    a_leaderless_stream,
    tail_of,
)
from support.manifest import NEIGHBOUR, STREAM, Crash, GapRange, ManifestHarness
from support.object_keys import fragment_key
from support.rebuilding import nothing, put_registry, rebuild
from unit.formats.examples import a_piece
from unit.manifest.test_manifest_api import running

from bottomless.errors import Code, Exists, Unavailable
from bottomless.formats.fragment import HEADER_SIZE, decode_footer
from bottomless.formats.keys import wal_key
from bottomless.formats.placing import place
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import TENANT_DEFAULT, StreamName
from bottomless.model.stream import StreamState
from bottomless.model.wal import WalFlags
from bottomless_server.leaderless.noted import UNDECIDED_COUNT
from bottomless_server.leaderless.tail import TailState, first_epoch
from bottomless_server.manifest.leaderless.vacuum import Vacuum
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again
from bottomless_server.manifest.recovery.rebuild import Rebuild
from bottomless_server.manifest.tree.core.adoption_check import footer_piece
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.tail_keys import load_tails

WEEK_MS = 7 * 86_400_000


async def a_stream(harness: ManifestHarness, **changes: object) -> None:
    """One leaderless stream, in coordination and in the bucket."""
    record = await a_leaderless_stream(harness)
    if changes:
        record = await harness.streams.update(STREAM, lambda record: replace(record, **changes))  # type: ignore[arg-type]
    await put_registry(harness, record)


async def a_writer(harness: ManifestHarness, instance: str = INSTANCE) -> WalWriter:
    writer = WalWriter(harness, instance)  # type: ignore[arg-type]
    await writer.begin()
    return writer


async def with_two_flushes(**settings: object) -> tuple[ManifestHarness, WalWriter]:
    """Twice ten records, all of them noted."""
    harness = await a_leaderless_harness(**settings)
    await a_stream(harness)
    writer = await a_writer(harness)
    for _ in range(2):
        await writer.flush(STREAM, count=5)
        harness.clock.now += 1_000
    await writer.put()
    return harness, writer


async def publish_first(harness: ManifestHarness, chunk_count: int = 5) -> None:
    """An uploader publishes the first chunks of the stream."""
    mutators = Mutators(harness.context)
    mutator = mutators.of(STREAM)
    await mutator.begin("s1")
    (uid,) = (await mutator.intend("s1", [0])).uids
    fragment = await harness.put_fragment(uid, 0, epoch=first_epoch(0))
    assert fragment.next_offset == 2 * chunk_count
    await mutator.register("s1", [fragment])
    await mutator.flush()
    await mutators.aclose()


def bounds(entries: Sequence[FragmentInfo | GapRange]) -> list[tuple[str, int, int]]:
    return [
        ("gap" if isinstance(one, GapRange) else "leaf", one.first_offset, one.next_offset)
        for one in entries
    ]


async def found(harness: ManifestHarness) -> list[tuple[str, int, int]]:
    return bounds(await harness.entries())


async def chunks_of(harness: ManifestHarness, leaf: FragmentInfo) -> bytes:
    data = bytes(await harness.drive.get(fragment_key(STREAM, leaf.first_offset, leaf.uid)))
    footer = footer_piece(len(data))
    return data[HEADER_SIZE : decode_footer(data[footer.start :]).index_position]


async def test_what_was_noted_comes_back_at_its_offsets_and_with_its_bytes() -> None:
    harness, _ = await with_two_flushes()
    before = await tail_of(harness)
    harness.coordination.lose()

    result = await rebuild(harness)

    assert (result["streams"], result["adopted_fragments"]) == (1, 1)
    assert await found(harness) == [("leaf", 0, 20)]
    (leaf,) = await harness.leaves()
    piece = b"".join(bytes(part) for part in a_piece(count=5).parts)
    placed = [
        chunk
        for first, timestamp in ((0, before.last_timestamp - 1_000), (10, before.last_timestamp))
        for chunk in place(
            piece, first_offset=first, record_count=10, timestamp=timestamp, epoch=first_epoch(0)
        )
    ]
    assert await chunks_of(harness, leaf) == b"".join(one.front + one.body for one in placed)
    tail = await tail_of(harness)
    assert (tail.state, tail.next_offset, tail.entry_count) == (TailState.OPEN, 20, 0)
    assert (tail.epoch, tail.last_timestamp) == (first_epoch(1), before.last_timestamp)
    record = await harness.record()
    assert (record.epoch, record.reserved_next, record.dirty) == (first_epoch(1), 0, False)


async def test_the_stream_goes_on_with_a_new_writer() -> None:
    harness, _ = await with_two_flushes()
    harness.coordination.lose()
    await rebuild(harness)

    writer = await a_writer(harness, OTHER_INSTANCE)
    await writer.flush(STREAM)

    assert (await tail_of(harness)).next_offset == 22


async def test_what_is_in_the_manifest_is_not_brought_back_again() -> None:
    harness, _ = await with_two_flushes()
    await publish_first(harness)
    harness.coordination.lose()

    await rebuild(harness)
    assert await found(harness) == [("leaf", 0, 10), ("leaf", 10, 20)]


async def test_a_manifest_may_end_in_the_middle_of_an_entry() -> None:
    harness = await a_leaderless_harness()
    await a_stream(harness)
    writer = await a_writer(harness)
    await writer.flush(STREAM, count=8)
    await writer.put()
    await publish_first(harness)
    harness.coordination.lose()

    await rebuild(harness)
    assert await found(harness) == [("leaf", 0, 10), ("leaf", 10, 16)]


async def test_what_one_node_had_not_noted_costs_nothing_that_another_has() -> None:
    """L32: two nodes on one stream, and one of them dies with its notes."""
    harness = await a_leaderless_harness()
    await a_stream(harness)
    writer, other = await a_writer(harness), await a_writer(harness, OTHER_INSTANCE)
    await writer.flush(STREAM, count=5)
    await other.flush(STREAM, count=5)
    await other.put()
    harness.coordination.lose()

    result = await rebuild(harness)

    end = 20 + UNDECIDED_COUNT
    assert await found(harness) == [("gap", 0, 10), ("leaf", 10, 20), ("gap", 20, end)]
    assert (await tail_of(harness)).next_offset == end
    doubt = {"instance": INSTANCE, "sequence": 0, "stream_count": 1, "record_count": 10}
    assert (result["in_doubt_count"], result["in_doubt"]) == (1, [doubt])


async def test_an_object_that_nobody_committed_may_have_been_read() -> None:
    harness = await a_leaderless_harness()
    await a_stream(harness)
    writer = await a_writer(harness)
    await writer.put(STREAM, flags=WalFlags.SYNC)
    harness.coordination.lose()

    result = await rebuild(harness)

    assert await found(harness) == [("gap", 0, UNDECIDED_COUNT)]
    # With `sync` nothing of it was answered.
    assert "in_doubt" not in result


async def offsets_after_a_loss(harness: ManifestHarness) -> int:
    """Somebody has read records 0 to 9; the offset of the first record after a rebuild."""
    await a_stream(harness)
    writer = await a_writer(harness)
    await writer.flush(STREAM, count=5)
    harness.coordination.lose()
    await rebuild(harness)
    return (await tail_of(harness)).next_offset


@pytest.mark.parametrize(
    ("guard", "variant"),
    [
        ("what is not noted before a loss, taken for undecided", lambda *_: False),
        ("offsets after what was not decided before a loss", lambda next_offset: next_offset),
    ],
)
async def test_without_a_guard_offsets_are_used_twice(
    guard: str, variant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await offsets_after_a_loss(await a_leaderless_harness()) >= 10
    remove(monkeypatch, guard, variant)  # type: ignore[arg-type]
    assert await offsets_after_a_loss(await a_leaderless_harness()) < 10


async def test_a_damaged_piece_is_a_gap_and_the_rest_comes_back() -> None:
    harness, writer = await with_two_flushes()
    harness.drive.flip(wal_key(writer.instance, 0), 300)
    harness.coordination.lose()

    result = await rebuild(harness)

    assert (result["damaged_streams"], result["damaged"]) == (1, ["orders"])
    assert await found(harness) == [("gap", 0, 10), ("leaf", 10, 20)]


async def test_an_object_that_cannot_be_read_is_named() -> None:
    harness, writer = await with_two_flushes()
    harness.drive.flip(wal_key(writer.instance, 1), 5)
    harness.coordination.lose()

    result = await rebuild(harness)

    assert result["unreadable_wal"] == [wal_key(writer.instance, 1)]
    # The note of the first was in it, and nobody knows of which streams the second was.
    assert await found(harness) == [("gap", 0, UNDECIDED_COUNT)]
    await Vacuum(harness.context).make_pass()
    assert await writer.objects() == [0, 1, 2]


async def test_fragments_have_the_size_that_the_stream_asks_for() -> None:
    harness = await a_leaderless_harness()
    config = a_leaderless_record().config
    small = config.fragment.model_copy(update={"target_bytes": 65_536})
    await a_stream(harness, config=config.model_copy(update={"fragment": small}))
    writer = await a_writer(harness)
    for _ in range(3):
        piece = a_piece(STREAM, values=(b"x" * 40_000, b"y" * 40_000))
        await writer.commit(await writer.put_pieces([piece]))
    await writer.put()
    harness.coordination.lose()

    await rebuild(harness)
    assert await found(harness) == [("leaf", 0, 2), ("leaf", 2, 4), ("leaf", 4, 6)]


async def test_old_objects_are_reclaimed_afterwards_and_those_in_doubt_after_a_week() -> None:
    harness, writer = await with_two_flushes()
    other = await a_writer(harness, OTHER_INSTANCE)
    await other.flush(STREAM)
    harness.coordination.lose()
    await rebuild(harness)
    for one in (writer, other):
        record = one.record()
        assert record is not None
        assert (record.url, record.generation) == (None, 1)
        assert record.settled == record.reserved
    vacuum = Vacuum(harness.context)

    assert await vacuum.make_pass() == 3
    assert (await writer.objects(), await other.objects()) == ([], [0])
    harness.clock.now += WEEK_MS
    await vacuum.make_pass()
    assert await other.objects() == []


async def objects_after_a_rebuild_that_lost_some() -> list[int]:
    """The objects that a vacuum leaves, where a piece was damaged."""
    harness, writer = await with_two_flushes()
    harness.drive.flip(wal_key(writer.instance, 0), 300)
    harness.coordination.lose()
    await rebuild(harness)
    await Vacuum(harness.context).make_pass()
    return await writer.objects()


async def test_what_did_not_come_back_whole_is_kept() -> None:
    assert await objects_after_a_rebuild_that_lost_some() == [0, 1, 2]


async def test_without_its_guard_what_did_not_come_back_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard = "WAL objects of what did not come back whole, after a rebuild"
    remove(monkeypatch, guard, lambda *_, **__: False)
    assert await objects_after_a_rebuild_that_lost_some() == []


async def test_a_second_rebuild_changes_nothing() -> None:
    """What is of an older generation was decided by the first one."""
    harness = await a_leaderless_harness()
    await a_stream(harness)
    writer = await a_writer(harness)
    await writer.flush(STREAM, count=5)
    for _ in range(2):
        harness.coordination.lose()
        await rebuild(harness)
    assert await found(harness) == [("gap", 0, UNDECIDED_COUNT)]


async def test_wherever_it_dies_the_next_one_comes_to_the_same() -> None:
    for changes in itertools.count():
        harness, _ = await with_two_flushes()
        other = await a_writer(harness, OTHER_INSTANCE)
        await other.flush(STREAM, count=5)
        harness.coordination.lose()
        harness.fuse.left = changes
        try:
            await rebuild(harness)
            died = False
        except Crash:
            died = True
            harness.fuse.left = None
            # Where coordination is intact, only the end was not noted.
            with suppress(Exists):
                await rebuild(harness)
            harness.streams.generation = await check_generation(harness.drive, harness.coordination)
        expected = [("leaf", 0, 20), ("gap", 20, 20 + UNDECIDED_COUNT)]
        assert await found(harness) == expected, changes
        assert (await tail_of(harness)).next_offset == 20 + UNDECIDED_COUNT
        if not died:
            assert changes > 10
            break


async def test_a_fence_stays() -> None:
    harness = await a_leaderless_harness()
    config = a_leaderless_record().config.model_copy(update={"fenced": True})
    await a_stream(harness, config=config)
    harness.coordination.lose()

    await rebuild(harness)
    assert (await tail_of(harness)).state is TailState.FENCED


async def test_a_deleted_stream_stays_deleted_and_its_sweep_goes_on() -> None:
    harness = await a_leaderless_harness()
    await a_stream(harness)
    writer = await a_writer(harness)
    await writer.flush(STREAM)
    tombstone = a_leaderless_record(state=StreamState.DELETING, registry_version=2)
    await put_registry(harness, tombstone)
    harness.coordination.lose()

    result = await rebuild(harness)

    assert (result["streams"], result["deleted_streams"]) == (0, 1)
    assert (await load_tails(harness.coordination, [STREAM], 1))[STREAM] is None
    assert (await harness.record()).state is StreamState.DELETING


async def test_of_two_of_one_name_the_older_is_closed() -> None:
    harness = await a_leaderless_harness()
    await a_stream(harness)
    younger = a_leaderless_record(stream_id=NEIGHBOUR, name=StreamName("orders"))
    await put_registry(harness, younger)
    harness.coordination.lose()

    await rebuild(harness)

    tails = await load_tails(harness.coordination, [STREAM, NEIGHBOUR], 1)
    states = [getattr(tail, "state", None) for tail in tails.values()]
    assert states == [TailState.CLOSED, TailState.OPEN]


@pytest.mark.parametrize("ahead_ms", [0, 86_400_000, -86_400_000])
async def test_it_waits_for_the_notes_of_nodes_that_live(ahead_ms: int) -> None:
    """As long as it has to, also if the clock by which it was asked for is set right then."""
    harness = await a_leaderless_harness(manifest_rebuild_wal_wait_ms=31_000)
    await a_stream(harness)
    writer = await a_writer(harness)
    await writer.flush(STREAM, count=5)
    harness.coordination.lose()
    operations = Operations(harness.context)
    rebuilding = Rebuild(harness.context, operations, nothing)
    harness.clock.skew_ms = ahead_ms
    operation = await rebuilding.begin(TENANT_DEFAULT)
    harness.clock.skew_ms = 0
    waiting = replace(operation, progress={"phase": "wal"})

    outcome = await rebuilding.step(harness.context, waiting)
    assert outcome == Again({"phase": "wal"}, harness.clock.now + 31_000)

    await writer.put()
    harness.clock.now += 31_000
    outcome = await rebuilding.step(harness.context, waiting)
    assert isinstance(outcome, Again)
    assert (outcome.progress["phase"], outcome.due_at) == ("streams", 0)


async def test_a_bucket_without_wal_objects_is_not_waited_for() -> None:
    harness = await a_leaderless_harness(manifest_rebuild_wal_wait_ms=31_000)
    await a_stream(harness)
    harness.coordination.lose()

    assert (await rebuild(harness))["streams"] == 1


async def test_a_service_does_not_start_on_an_older_copy() -> None:
    """L33: it has the generation of the bucket, and would give the same offsets again."""
    harness = await a_leaderless_harness()
    await a_stream(harness)
    copy = harness.coordination.copy()
    writer = await a_writer(harness)
    for _ in range(2):
        await writer.flush(STREAM)
    async with running(harness):
        pass
    harness.coordination.put_back(copy)

    with pytest.raises(Unavailable) as raised:
        async with running(harness):
            pass
    assert raised.value.code is Code.COORDINATION_REGRESSED
    assert "has to empty it" in raised.value.message
