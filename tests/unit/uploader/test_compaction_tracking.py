"""With what fragments of leaderless streams end, so that producers can be restored from them."""

from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compaction import CompactionWorld, a_world, piece_of, stream
from support.guards import remove
from support.leaderless import WalWriter
from unit.formats.examples import a_chunk

from bottomless.formats.chunk import decode_header, decode_trailer, trailer_of
from bottomless.formats.placing import Placed, place
from bottomless.formats.tracking import decode_tracking
from bottomless.model.chunk import AppendEntry, AppendMode, ChunkKind, TrackedEntry, TrackedKind
from bottomless_server.core.tracking.known_producers import TrackingBounds, tracked
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.leaderless.decided import KnownName, NewKnown
from bottomless_server.leaderless.tail_format import Known
from bottomless_server.stores.tail_commits import change_known
from bottomless_server.uploader.compaction.core.tracking_chunks import (
    FragmentTracking,
    LastTold,
    known_at,
    told_by,
)

BOUNDS: Final = TrackingBounds(1_000, 5, 1_000, 2**40)
ONE: Final = stream(1)


def appended(offset: int, producer: str, sequence: int, epoch: int = 0) -> Placed:
    """A placed chunk of two records of one strict append."""
    entry = AppendEntry(AppendMode.STRICT, 0, 2, 7, sequence, epoch, producer)
    chunk = a_chunk(0, entries=[entry], timestamp=0, epoch=0)
    (placed,) = place(chunk, first_offset=offset, record_count=2, timestamp=1_000 + offset, epoch=1)
    return placed


def take(tracking: Tracking, chunk: Placed) -> None:
    header = chunk.header
    start = header.filter_size + header.batches_size
    entries = decode_trailer(chunk.body[start : start + header.trailer_size])
    tracking.take_chunk(header.first_offset, header.timestamp, entries)


def known_of(tracking: Tracking, changed_at: dict[str, int]) -> list[Known]:
    """What coordination has of each producer."""
    return [
        Known(changed_at[name], list(tracked(name, producer)))
        for name, producer in tracking.producers.items()
    ]


def entries_of(raw: bytes) -> list[TrackedEntry]:
    header = decode_header(raw)
    assert header.kind is ChunkKind.TRACKING
    return decode_tracking(trailer_of(header, memoryview(raw)))


def restored(entries: Sequence[TrackedEntry], chunks: Sequence[Placed]) -> Tracking:
    """What a tracking chunk says, and the chunks after it."""
    tracking = Tracking(BOUNDS)
    tracking.take_tracked(entries)
    for chunk in chunks:
        take(tracking, chunk)
    return tracking


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.data())
def test_wherever_it_is_cut_the_same_is_restored_as_was_known_at_the_end(
    producers: list[str], data: st.DataObject
) -> None:
    """Values are read when more was appended already: what lies above is left out, and comes again
    with the chunks that say it."""
    whole, changed_at, numbers = Tracking(BOUNDS), dict[str, int](), dict[str, int]()
    chunks = []
    for number, name in enumerate(producers):
        chunks.append(appended(2 * number, name, numbers.get(name, 0)))
        numbers[name] = numbers.get(name, 0) + 2
        take(whole, chunks[-1])
        changed_at[name] = 2 * number + 2
    cut = data.draw(st.integers(1, len(chunks)))

    entries = known_at(known_of(whole, changed_at), told_by(chunks[:cut]), 2 * cut)

    assert all(entry.first_offset < 2 * cut for entry in entries)
    after = restored(entries, chunks[cut:])
    assert {name: one.last_sequence for name, one in after.producers.items()} == {
        name: one.last_sequence for name, one in whole.producers.items()
    }
    newest = {name: one.appends[-1] for name, one in after.producers.items()}
    assert newest == {name: one.appends[-1] for name, one in whole.producers.items()}
    assert all(one.epoch == whole.producers[name].epoch for name, one in after.producers.items())


def test_a_fragment_ends_with_all_that_is_known_where_trailers_take_more_room() -> None:
    tracking, chunks = (
        Tracking(BOUNDS),
        [appended(2 * number, "p", 2 * number) for number in range(40)],
    )
    for chunk in chunks:
        take(tracking, chunk)
    telling = FragmentTracking(known_of(tracking, {"p": 80}), LastTold())

    assert telling.after(chunks[:2]) is None
    raw = telling.after(chunks[2:])

    assert raw is not None
    assert decode_header(raw).first_offset == 80
    assert entries_of(raw) == list(tracked("p", tracking.producers["p"]))
    assert telling.last == LastTold(80)


def test_trailers_of_earlier_runs_count() -> None:
    tracking, chunk = Tracking(BOUNDS), appended(0, "p", 0)
    take(tracking, chunk)

    assert FragmentTracking(known_of(tracking, {"p": 2}), LastTold()).after([chunk]) is None
    assert (
        FragmentTracking(known_of(tracking, {"p": 2}), LastTold(0, 10**4)).after([chunk])
        is not None
    )


def test_without_its_guard_nothing_tells_of_whom_only_what_was_removed_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else nothing that is left tells of a producer who is silent, and a repeat would be stored anew."""
    tracking = Tracking(BOUNDS)
    chunks = [appended(0, "silent", 0), *(appended(2 * n, "busy", 2 * n) for n in range(1, 6))]
    for chunk in chunks:
        take(tracking, chunk)
    known = known_of(tracking, {"silent": 2, "busy": 12})

    def ends_with_all(last: LastTold, floor: int) -> bool:
        raw = FragmentTracking(known, last, floor).after(chunks[4:])
        told = [] if raw is None else [one.producer_id for one in entries_of(raw)]
        assert told == [] or {"silent", "busy"} <= set(told)
        return raw is not None

    assert not ends_with_all(LastTold(), 0), "everything is still there"
    assert ends_with_all(LastTold(), 2)
    assert ends_with_all(LastTold(4), 4), "the chunk that told of it is removed too"
    assert not ends_with_all(LastTold(6), 4), "the chunk that told of it is there"
    remove(monkeypatch, "a producer of whom only what was removed told", lambda *_: False)
    assert not ends_with_all(LastTold(), 2)


RAISED: Final = Known(
    2, [TrackedEntry(TrackedKind.PRODUCER, AppendMode.PLAIN, 0, 5, 0, 0, 0, 0, 3, "p")]
)


def test_an_epoch_that_was_raised_without_an_append_is_told_at_once_and_once() -> None:
    one, two, three = (appended(2 * number, "q", 2 * number) for number in range(3))

    telling = FragmentTracking([RAISED], LastTold())
    raw = telling.after([one])
    assert raw is not None
    assert entries_of(raw) == RAISED.entries
    # Nobody knows whether the fragment before was cut when it was raised at its end.
    assert telling.after([two]) is not None
    assert telling.after([three]) is None
    # What was raised later is of the next fragment.
    assert FragmentTracking([RAISED._replace(changed_at=3)], LastTold()).after([one]) is None


def test_what_is_not_known_any_more_is_not_told() -> None:
    assert FragmentTracking([], LastTold(0, 10**6)).after([appended(0, "p", 0)]) is None


def test_keys_are_told_that_were_used_below_the_end() -> None:
    def key(offset: int) -> Known:
        entry = TrackedEntry(
            TrackedKind.KEY, AppendMode.KEY, offset, 5, 2, 7, 0, 0, 0, idempotency_hash=bytes(16)
        )
        return Known(offset + 2, [entry])

    assert known_at([key(0), key(2), key(4)], told_by([]), 4) == [*key(0).entries, *key(2).entries]


async def raise_epoch(world: CompactionWorld, writer: WalWriter) -> None:
    name = KnownName("p", is_producer=True)
    now = NewKnown(RAISED.entries, world.now + 1_000_000)
    await change_known(world.coordination, ONE, name, writer.numbers.generation, lambda *_: now)


@pytest.mark.parametrize("guarded", [True, False])
async def test_without_its_guard_the_loss_of_coordination_lowers_an_epoch(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What coordination alone knows is in the bucket when a fragment ends there."""
    async with a_world() as world:
        await world.create(ONE)
        writer, compactor = WalWriter(world.harness), world.compactor()
        await writer.begin()
        await compactor.shards.renew()
        await writer.flush(ONE)
        await raise_epoch(world, writer)
        if not guarded:
            remove(monkeypatch, "an epoch that no append tells", lambda *_: False)

        await compactor.compact_now()

        chunks = await world.chunks(ONE)
        tracking = [raw for raw in chunks if decode_header(raw).kind is ChunkKind.TRACKING]
        assert [entries_of(raw) for raw in tracking] == ([RAISED.entries] if guarded else [])
        assert await world.published_next(ONE) == 2
        # A stream without producers asks for nothing, and has none.
        await world.append(writer, piece_of(ONE, b"a", b"b"))
        await compactor.compact_now()
        assert await world.published_next(ONE) == 4
