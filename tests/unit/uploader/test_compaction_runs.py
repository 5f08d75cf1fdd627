"""What of a stream's entries becomes fragments in a round, and when the rest is wanted."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from hypothesis import given
from hypothesis import strategies as st
from support.chunks import a_chunk

from bottomless.formats.chunk import decode_header
from bottomless.model.chunk import ChunkFlags, ChunkHeader
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId, Uid
from bottomless_server.leaderless.tail import TailEntry
from bottomless_server.uploader.compaction.core.aside import COUNT_MAX, AsideStreams
from bottomless_server.uploader.compaction.core.runs import (
    ASIDE_REST_MS,
    batches_of,
    fragments_of,
    is_cut,
    left_aside,
    left_by,
    place_of,
    run_of,
    unpublished,
)
from bottomless_server.uploader.compaction.core.waiting import Left, Place, Why
from bottomless_server.uploader.compaction.stream_runs import (
    STREAM_SECONDS,
    STREAM_SECONDS_MIN,
    RoundTime,
    seconds_for,
)

MINUTE: Final = 60_000
INSTANCE: Final = Uid(f"{1:032x}")


def entries_of(counts: Sequence[int], *, objects: int = 4, timestamp: int = 0) -> list[TailEntry]:
    """Entries of so many records each, one after the other, in turn in so many objects."""
    return [
        TailEntry(
            end,
            number + 1,
            timestamp + number,
            64 * (number + 1),
            INSTANCE,
            number % objects,
            128,
            64,
            count,
        )
        for number, (count, end) in enumerate(zip(counts, accumulate(counts), strict=True))
    ]


COUNTS: Final = st.lists(st.integers(1, 5), min_size=1, max_size=20)


@given(COUNTS, st.data())
def test_a_run_goes_from_the_end_of_the_manifest_to_the_first_object_that_is_not_here(
    counts: list[int], data: st.DataObject
) -> None:
    entries = entries_of(counts)
    published = data.draw(st.integers(0, sum(counts)))
    taken = {Place(INSTANCE, number) for number in data.draw(st.sets(st.integers(0, 3)))}

    run = run_of(entries, published, taken)

    left = unpublished(entries, published)
    assert run == left[: len(run)]
    assert all(place_of(entry) in taken for entry in run)
    if len(run) < len(left):
        assert place_of(left[len(run)]) not in taken
    if run:
        assert run[0].first_offset <= published < run[0].next_offset
    assert all(one.next_offset == two.first_offset for one, two in pairwise(run))


def test_a_run_never_leaves_out_what_lies_between_it_and_the_manifest() -> None:
    entries = entries_of([2, 2, 2])
    everything = {place_of(entry) for entry in entries}

    assert run_of(entries[1:], 0, everything) == []
    assert run_of([entries[0], entries[2]], 0, everything) == entries[:1]


def test_a_run_is_cut_when_its_oldest_record_has_half_of_its_age() -> None:
    run = entries_of([2, 2])
    limits = {"max_age_ms": MINUTE, "target_bytes": 10**6}

    assert not is_cut(run, Why.AGE, waited_ms=29_999, **limits)
    assert is_cut(run, Why.AGE, waited_ms=30_000, **limits)


def test_a_record_has_waited_since_its_time_or_since_it_was_heard_of() -> None:
    at = RoundTime(Why.AGE, 7_000, 101_000, 0, {Place(INSTANCE, 0): 4_000})

    assert at.waited_ms(entries_of([1], timestamp=90_000)) == 11_000
    assert at.waited_ms(entries_of([1], timestamp=100_000)) == 3_000
    assert at.waited_ms(entries_of([1], timestamp=900_000)) == 3_000
    assert at._replace(known={}).waited_ms(entries_of([1], timestamp=900_000)) == 0
    assert at.waited_ms([]) == 0


def test_a_run_is_cut_when_it_has_its_size_and_where_all_is_cut() -> None:
    run = entries_of([2, 2])
    young = {"waited_ms": 0, "max_age_ms": MINUTE}

    assert is_cut(run, Why.AGE, target_bytes=128, **young)
    assert not is_cut(run, Why.AGE, target_bytes=129, **young)
    assert is_cut(run, Why.FULL, target_bytes=129, **young)
    assert is_cut(run, Why.ASKED, target_bytes=129, **young)
    assert not is_cut([], Why.FULL, target_bytes=1, **young)


def test_what_a_stream_leaves_it_wants_with_its_oldest_record() -> None:
    left = entries_of([1, 1, 1, 1, 1], objects=2)

    found = left_by(left, now=7_000, waited_ms=1_000, max_age_ms=MINUTE)

    since = 7_000 - 1_000
    wanted = (since + MINUTE // 2, since + MINUTE)
    assert found == {Place(INSTANCE, 0): Left(*wanted, 3), Place(INSTANCE, 1): Left(*wanted, 2)}
    assert left_by([], now=0, waited_ms=0, max_age_ms=1) == {}


def test_of_a_stream_that_is_set_aside_only_the_first_object_is_looked_at_soon() -> None:
    left = entries_of([1, 1, 1], objects=3)
    rest = Left(5_000 + ASIDE_REST_MS, 5_000 + ASIDE_REST_MS, 0)

    assert left_aside(left, now=5_000, until=6_000) == {
        Place(INSTANCE, 0): Left(6_000, 6_000, 0),
        Place(INSTANCE, 1): rest,
        Place(INSTANCE, 2): rest,
    }


def test_two_streams_leave_an_object_for_the_one_that_wants_it_first() -> None:
    assert Left(5, 10, 1).with_(Left(7, 8, 2)) == Left(5, 8, 3)


HEADER: Final = decode_header(a_chunk(0))


def chunk(size: int, *, more: bool) -> ChunkHeader:
    flags = ChunkFlags.MORE_FOLLOWS if more else ChunkFlags.NONE
    return HEADER._replace(total_size=size, flags=flags)


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=40), st.integers(1, 100))
def test_fragments_have_their_size_and_end_with_a_whole_append(
    chunks: list[tuple[int, bool]], target: int
) -> None:
    headers = [chunk(size, more=more) for size, more in chunks]
    if headers:
        headers[-1] = headers[-1]._replace(flags=ChunkFlags.NONE)

    found = list(fragments_of(headers, target))

    assert [number for one in found for number in one] == list(range(len(headers)))
    for one in found:
        sizes = [headers[number].total_size for number in one]
        assert headers[one[-1]].flags is ChunkFlags.NONE
        assert sum(sizes) >= target or one is found[-1]
        ends = [
            size
            for size, number in zip(accumulate(sizes), one, strict=True)
            if headers[number].flags is ChunkFlags.NONE
        ]
        assert all(size < target for size in ends[:-1])


@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=40),
    st.integers(1, 100),
    st.integers(1, 5),
)
def test_fragments_are_the_same_however_a_run_is_looked_at(
    chunks: list[tuple[int, bool]], target: int, step: int
) -> None:
    headers = [chunk(size, more=more) for size, more in chunks]
    found: list[list[ChunkHeader]] = []
    left: list[ChunkHeader] = []
    for start in range(0, len(headers), step):
        left += headers[start : start + step]
        parts = list(fragments_of(left, target, goes_on=start + step < len(headers)))
        found += [left[part.start : part.stop] for part in parts]
        del left[: parts[-1].stop if parts else 0]

    whole = fragments_of(headers, target)
    assert found == [headers[part.start : part.stop] for part in whole]


@given(st.lists(st.integers(1, 3), max_size=20), st.integers(1, 300))
def test_a_run_is_looked_at_in_parts_of_about_a_fragment(counts: list[int], target: int) -> None:
    run = entries_of(counts)

    batches = list(batches_of(run, target))

    assert [entry for batch in batches for entry in batch] == run
    sizes = [sum(entry.size for entry in batch) for batch in batches]
    assert all(size >= target for size in sizes[:-1])
    assert all(size - batch[-1].size < target for size, batch in zip(sizes, batches, strict=True))


def test_a_stream_that_fails_again_is_set_aside_for_twice_as_long_up_to_a_minute() -> None:
    aside, stream = AsideStreams(), StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d0000")
    now, waits = 0, []
    for _ in range(8):
        until = aside.set_aside(stream, now)
        assert aside.until(stream, now) == until
        assert aside.until(stream, until) is None
        waits.append(until - now)
        now = until

    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    aside.clear(stream)
    assert aside.set_aside(stream, 0) == 1_000


def test_of_streams_that_are_set_aside_so_many_are_remembered() -> None:
    aside = AsideStreams()
    names = [StreamId(f"0198d2a4-5b1e-7c3a-9a51-{number:012x}") for number in range(COUNT_MAX + 5)]
    for name in names:
        aside.set_aside(name, 0)

    assert len(aside) == COUNT_MAX
    assert aside.until(names[0], 0) is None
    assert aside.until(names[-1], 0) == 1_000


def test_a_stream_may_take_the_longer_the_more_it_has() -> None:
    assert seconds_for(0) == STREAM_SECONDS_MIN
    assert seconds_for(20 * MIB) == STREAM_SECONDS_MIN + 20
    assert seconds_for(512 * MIB) == STREAM_SECONDS
