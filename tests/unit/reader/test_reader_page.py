"""Pages are cut like a list is."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.reader.harness import Sent, a_batch, a_chunk

from bottomless.errors import Corrupt, Outcome
from bottomless.formats.chunk import decode_header
from bottomless.model.record import Columns
from bottomless_server.reader.core.arrow_schema import COLUMNS, SCHEMA, Rows, as_table
from bottomless_server.reader.core.page import Gap, PageBuilder, record_ends
from bottomless_server.reader.page_reader import nowhere_yet

records = st.builds(
    Sent,
    value=st.binary(max_size=12),
    key=st.none() | st.binary(max_size=4),
    headers=st.none()
    | st.lists(st.tuples(st.text("ab", max_size=3), st.binary(max_size=3)), max_size=2),
    filter_value=st.none() | st.text("é", max_size=2),
)


def size_of(record: Sent) -> int:
    headers = sum(len(name) + len(value) for name, value in record.headers or ())
    filter_size = len((record.filter_value or "").encode())
    return len(record.value) + len(record.key or b"") + headers + filter_size


def expected(sent: list[Sent], start: int, limit: int, size_max: int, until: int) -> list[int]:
    """The offsets of a page, by the rule said in one sentence: stop before what does not fit."""
    offsets: list[int] = []
    size = 0
    for offset in range(start, min(len(sent), until)):
        size += size_of(sent[offset])
        if len(offsets) == limit or (offsets and size > size_max):
            break
        offsets.append(offset)
    return offsets


@given(
    chunks=st.lists(st.lists(records, min_size=1, max_size=7), min_size=1, max_size=5),
    batches=st.integers(1, 3),
    data=st.data(),
)
def test_a_page_is_the_slice_of_a_list(
    chunks: list[list[Sent]], batches: int, data: st.DataObject
) -> None:
    sent = [record for chunk in chunks for record in chunk]
    start = data.draw(st.integers(0, len(sent)))
    limit, size_max = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 100))
    until = data.draw(st.integers(0, len(sent) + 2))
    builder = PageBuilder(start, limit, size_max, until)
    first = 0
    for number, chunk in enumerate(chunks):
        made = a_chunk(first, chunk, timestamp=number, batches=min(batches, len(chunk)))
        builder.add(decode_header(made.data), memoryview(made.data))
        first = made.next_offset

    table = as_table(builder.rows)
    offsets = expected(sent, start, limit, size_max, until)
    assert table["offset"].to_pylist() == offsets
    assert table["value"].to_pylist() == [sent[offset].value for offset in offsets]
    assert table["key"].to_pylist() == [sent[offset].key for offset in offsets]
    assert builder.position == start + len(offsets)
    assert builder.size == sum(size_of(sent[offset]) for offset in offsets)
    assert builder.count_left == limit - len(offsets)


@given(st.lists(records, min_size=1, max_size=9), st.data())
def test_sizes_of_a_slice_are_those_of_its_records(sent: list[Sent], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sent) - 1))
    ends = record_ends(a_batch(sent).slice(start))

    sizes = [size_of(record) for record in sent[start:]]
    assert ends.tolist() == [sum(sizes[: n + 1]) for n in range(len(sizes))]


def test_a_page_of_plain_values_has_all_columns() -> None:
    batch = a_batch([Sent(b"a")], Columns.VALUE)
    builder = PageBuilder(0, 10, 100)
    builder._add_batch(0, 5, batch)

    table = as_table(builder.rows)

    assert table.schema.equals(SCHEMA)
    assert table.to_pylist()[0]["content"] == 0
    assert table["key"].null_count == 1
    assert isinstance(as_table([]), pa.Table)


def test_a_hole_between_chunks_is_never_stepped_over() -> None:
    builder = PageBuilder(0, 10, 100)
    made = a_chunk(3, [Sent(b"a")], timestamp=1)

    with pytest.raises(Corrupt, match="are missing"):
        builder.add(decode_header(made.data), memoryview(made.data))


def test_a_gap_moves_the_page_and_is_kept() -> None:
    builder = PageBuilder(5, 10, 100, until=9)
    builder.skip(Gap(3, 8))

    assert (builder.position, builder.gaps, builder.full) == (8, [Gap(3, 8)], False)
    builder.skip(Gap(8, 12))
    assert builder.full


@given(
    pages=st.lists(st.lists(records, min_size=1, max_size=5), max_size=4),
    stored=st.sampled_from([Columns.VALUE, Columns.VALUE | Columns.KEY, Columns.ALL]),
    wanted=st.sets(st.sampled_from(COLUMNS), min_size=1),
)
def test_a_table_of_some_columns_is_those_of_the_whole_one(
    pages: list[list[Sent]], stored: Columns, wanted: set[str]
) -> None:
    first, rows = 0, []
    for number, page in enumerate(pages):
        rows.append(Rows(first, number, a_batch(page, stored)))
        first += len(page)
    columns = tuple(name for name in COLUMNS if name in wanted)

    table = as_table(rows, columns)

    assert table.schema == pa.schema([SCHEMA.field(name) for name in columns])
    assert table.equals(as_table(rows).select(list(columns)))


def test_why_records_cannot_be_read_is_what_is_the_case() -> None:
    """It said that they move to object storage while their stream was passed to another node."""
    said = {
        (True, False): "they are moving to object storage",
        (True, True): "the stream is being passed to another node",
        (False, True): "the stream is being passed to another node",
        (False, False): "the node that owns the stream does not give them yet",
    }
    for (moved, passed_on), why in said.items():
        error = nowhere_yet(moved=moved, passed_on=passed_on)
        assert f"since {why};" in error.message
        assert (error.retryable, error.outcome) == (True, Outcome.NONE)
