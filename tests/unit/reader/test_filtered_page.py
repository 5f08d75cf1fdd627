"""Pages with a filter are those of a plain list, however it is cut into chunks."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.reader.harness import LocalChunk, Sent, a_chunk
from unit.reader.test_reader_page import size_of

from bottomless.errors import Corrupt
from bottomless.formats.chunk import decode_header, split_chunks
from bottomless.model.filter import Filter
from bottomless_server.reader.core.arrow_schema import as_table
from bottomless_server.reader.core.filtered_page import (
    FilteredChunkPageBuilder,
    FilteredPageBuilder,
)
from bottomless_server.reader.core.page import Gap
from bottomless_server.reader.core.scan import Scan, ScanBounds

BOUNDS = ScanBounds(size_max=1 << 20, group_count_max=2, seconds_max=2.0)
A = Filter(("a",))
records = st.builds(
    Sent,
    value=st.binary(max_size=12),
    key=st.none() | st.sampled_from([b"k", b"l"]),
    filter_value=st.none() | st.sampled_from(["", "a", "b"]),
)
filters = st.sampled_from(
    [
        A,
        Filter(("", "b")),
        Filter(("a",), True),
        Filter(None, False, (b"k",)),
        Filter(("a", "b"), True, (b"k",)),
    ]
)
lists = st.lists(st.lists(records, min_size=1, max_size=7), min_size=1, max_size=6)


def matches(wanted: Filter, record: Sent) -> bool:
    value = record.filter_value
    by_value = wanted.values is None or value in wanted.values
    by_value = by_value or (wanted.match_unfiltered and value is None)
    return by_value and (wanted.keys is None or record.key in wanted.keys)


def chunks_of(lists: list[list[Sent]], batches: int = 1) -> list[LocalChunk]:
    made: list[LocalChunk] = []
    for number, sent in enumerate(lists):
        first = made[-1].next_offset if made else 0
        made.append(a_chunk(first, sent, timestamp=number, batches=min(batches, len(sent))))
    return made


def add(builder: Any, made: LocalChunk) -> None:
    builder.add(decode_header(made.data), memoryview(made.data))


@given(lists, st.integers(1, 3), filters, st.data())
def test_pages_one_after_the_other_are_what_a_list_holds(
    lists: list[list[Sent]], batches: int, wanted: Filter, data: st.DataObject
) -> None:
    sent = [record for chunk in lists for record in chunk]
    start, until = (data.draw(st.integers(0, len(sent))) for _ in range(2))
    limit, size_max = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 60))
    scan_size = data.draw(st.sampled_from([1, 600, 1 << 20]))
    found: list[dict[str, Any]] = []
    position = start
    while position < min(until, len(sent)):
        scan = Scan(wanted, replace_size(scan_size))
        builder = FilteredPageBuilder(position, limit, size_max, until, scan)
        for made in chunks_of(lists, batches):
            add(builder, made)
        page = as_table(builder.rows).to_pylist()

        assert builder.position > position, "each page comes further"
        assert builder.count == len(page) <= limit
        assert builder.size == sum(size_of(sent[record["offset"]]) for record in page)
        assert builder.size <= size_max or builder.count == 1
        ends_before = builder.full or builder.spent
        assert ends_before or builder.position == len(sent)
        if builder.lasting:
            assert builder.position == page[-1]["offset"] + 1
        found += page
        position = builder.position

    expected = [n for n in range(start, min(until, len(sent))) if matches(wanted, sent[n])]
    assert [record["offset"] for record in found] == expected
    for record in found:
        of_list = sent[record["offset"]]
        assert record["value"] == of_list.value
        assert (record["key"], record["filter_value"]) == (of_list.key, of_list.filter_value)


def replace_size(size: int) -> ScanBounds:
    return BOUNDS._replace(size_max=size)


@given(lists, filters, st.integers(1, 2_000), st.data())
def test_chunks_are_those_that_hold_something(
    lists: list[list[Sent]], wanted: Filter, size_max: int, data: st.DataObject
) -> None:
    sent = [record for chunk in lists for record in chunk]
    start = data.draw(st.integers(0, len(sent)))
    found: list[tuple[int, int]] = []
    position = start
    while position < len(sent):
        builder = FilteredChunkPageBuilder(position, 100, size_max, None, Scan(wanted, BOUNDS))
        for made in chunks_of(lists):
            add(builder, made)
        assert builder.position > position
        assert builder.size <= size_max or len(builder.chunks) == 1
        for chunk in builder.chunks:
            ((header, _),) = split_chunks(chunk)
            found.append((header.first_offset, header.next_offset))
        position = builder.position

    expected = [
        (made.first_offset, made.next_offset)
        for made in chunks_of(lists)
        if any(
            matches(wanted, sent[n]) for n in range(max(made.first_offset, start), made.next_offset)
        )
    ]
    assert found == expected


def test_a_page_that_may_look_no_further_says_how_far_it_came() -> None:
    builder = FilteredPageBuilder(0, 10, 100, None, Scan(A, replace_size(1)))
    for made in chunks_of([[Sent(b"x"), Sent(b"y")], [Sent(b"z", filter_value="a")]]):
        add(builder, made)

    assert (builder.position, builder.count, builder.spent, builder.full) == (2, 0, True, False)
    assert not builder.lasting


def test_what_is_passed_over_is_counted_and_never_beyond_the_end_that_was_asked_for() -> None:
    builder = FilteredPageBuilder(3, 10, 100, 50, Scan(A, BOUNDS))
    builder.pass_over(20, 1_000, 2)
    builder.pass_over(90, 500, 1)

    assert (builder.position, builder.full) == (50, True)
    assert (builder.scan.skipped_size, builder.scan.skipped_count) == (1_500, 3)


def test_a_hole_between_chunks_is_never_stepped_over_with_a_filter() -> None:
    builder = FilteredPageBuilder(0, 10, 100, None, Scan(A, BOUNDS))

    with pytest.raises(Corrupt, match="are missing"):
        add(builder, a_chunk(3, [Sent(b"a")], timestamp=1))


def test_a_gap_moves_a_page_with_a_filter_and_is_kept() -> None:
    builder = FilteredPageBuilder(5, 10, 100, None, Scan(A, BOUNDS))
    builder.skip(Gap(3, 8))

    assert (builder.position, builder.gaps, builder.advanced) == (8, [Gap(3, 8)], True)


def test_a_page_asks_for_more_and_more_at_once_while_it_finds_nothing() -> None:
    scan = Scan(A, replace_size(10_000))
    steps = []
    for _ in range(5):
        steps.append(scan.step(1_000))
        scan.look_at(steps[-1])

    assert steps == [1_000, 1_000, 2_000, 4_000, 2_000]
    assert scan.spent


def test_groups_are_bounded_but_for_those_on_the_way() -> None:
    scan = Scan(A, BOUNDS)
    entered = [scan.enter(bytes([n]), on_the_way=n == 0) for n in (0, 1, 1, 2)]
    assert entered == [True, True, True, False]
    assert scan.enter(b"deep", on_the_way=True)
    assert not scan.spent, "what was planned is looked at first"
    scan.end_plan()
    assert scan.spent


def test_time_at_the_end_of_a_stream_is_not_time_for_looking() -> None:
    scan = Scan(A, BOUNDS)
    scan.begin(10.0)
    scan.check_time(11.5)
    scan.pause(11.5)
    scan.begin(100.0)
    scan.check_time(100.4)
    assert not scan.spent
    scan.check_time(100.5)
    assert scan.spent


def test_a_table_of_chosen_records_has_their_own_offsets() -> None:
    builder = FilteredPageBuilder(0, 10, 100, None, Scan(A, BOUNDS))
    sent = [Sent(b"x", filter_value="a"), Sent(b"y"), Sent(b"z", filter_value="a")]
    add(builder, chunks_of([sent])[0])
    add(builder, a_chunk(3, [replace(sent[0], value=b"w")], timestamp=7))

    table = as_table(builder.rows, ("offset", "value"))
    assert table.column("offset").type == pa.int64()
    assert table.to_pylist() == [
        {"offset": 0, "value": b"x"},
        {"offset": 2, "value": b"z"},
        {"offset": 3, "value": b"w"},
    ]
