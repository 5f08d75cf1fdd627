"""Batches as Spark wants them: types to the letter, sizes within bounds, records in order."""

import numpy as np
import pyarrow as pa
import pytest

from bottomless.formats.batch import schema_of
from bottomless.model.filter import Filter
from bottomless.model.record import Columns
from bottomless.spark.rows import (
    BATCH_ROW_COUNT_MAX,
    BATCH_ROW_COUNT_WANTED,
    BATCH_SIZE_MAX,
    RowShape,
    bounded,
)

SPARK = pa.schema(
    [  # type: ignore[arg-type]  # the stubs want fields of one type
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.map_(pa.utf8(), pa.binary())),
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("content", pa.int8()),
        pa.field("filter_value", pa.utf8()),
    ]
)


def numbered(count: int, width: int = 8) -> pa.RecordBatch:
    values = [str(number).rjust(width).encode() for number in range(count)]
    return pa.record_batch([pa.array(values, pa.binary())], names=["value"])


def data_address(batch: pa.RecordBatch) -> int:
    data = batch.column("value").buffers()[2]
    assert data is not None
    return data.address


def test_a_plain_batch_gets_offsets_times_and_nulls() -> None:
    stored = pa.record_batch([pa.array([b"a", b"b"])], schema=schema_of(Columns.VALUE))
    fitted = RowShape(SPARK).of_chunk(stored, first_offset=40, timestamp=1500)
    assert fitted.schema.equals(SPARK)
    rows = fitted.to_pylist()
    assert [(row["offset"], row["value"], row["content"]) for row in rows] == [
        (40, b"a", 0),
        (41, b"b", 0),
    ]
    assert {row["timestamp"].timestamp() for row in rows} == {1.5}
    absent = ("key", "headers", "event_time", "filter_value")
    assert {row[name] for row in rows for name in absent} == {None}


def test_stored_columns_come_through() -> None:
    stored = pa.RecordBatch.from_pylist(
        [
            {
                "value": b"{}",
                "key": b"k",
                "headers": [("type", b"order")],
                "event_time": 1500,
                "content": 2,
                "filter_value": "emea",
            }
        ],
        schema=schema_of(Columns.ALL),
    )
    row = RowShape(SPARK).of_chunk(stored, 0, 0).to_pylist()[0]
    assert (row["key"], row["headers"], row["content"]) == (b"k", [("type", b"order")], 2)
    assert (row["event_time"].timestamp(), row["filter_value"]) == (1.5, "emea")


def test_values_are_viewed_and_not_copied() -> None:
    stored = numbered(100)
    fitted = RowShape(pa.schema([("value", pa.binary())])).of_chunk(stored, 0, 0)
    assert data_address(fitted) == data_address(stored)


@pytest.mark.parametrize(
    "sizes",
    [
        [(1, 10)] * 500,
        [(BATCH_ROW_COUNT_MAX * 3 + 1, 8)],
        [(3, 10), (BATCH_ROW_COUNT_WANTED, 10), (3, 10)],
        [(20, 1_000_000), (1, 10)],
        [(1, BATCH_SIZE_MAX + 1000), (2, 5)],
    ],
    ids=["many small ones", "many records", "around a good one", "much data", "one huge record"],
)
def test_batches_are_bounded_and_nothing_is_lost(sizes: list[tuple[int, int]]) -> None:
    given = [numbered(count, width) for count, width in sizes]
    taken = list(bounded(given))
    assert pa.Table.from_batches(taken).equals(pa.Table.from_batches(given))
    for batch in taken:
        assert batch.num_rows <= BATCH_ROW_COUNT_MAX
        assert batch.nbytes <= BATCH_SIZE_MAX or batch.num_rows == 1


def test_small_batches_are_joined() -> None:
    assert len(list(bounded([numbered(1) for _ in range(500)]))) == 1


def test_offsets_and_times_of_a_page_are_kept() -> None:
    page = pa.record_batch(
        [
            pa.array(np.arange(5, 8)),
            pa.array([1, 2, 3], pa.timestamp("ms", tz="UTC")),
            pa.array([b"a", b"b", b"c"]),
        ],
        names=["offset", "timestamp", "value"],
    )
    rows = RowShape(pa.schema(list(SPARK)[:3])).of_page(page).to_pylist()
    assert [row["offset"] for row in rows] == [5, 6, 7]
    assert [row["timestamp"].microsecond for row in rows] == [1000, 2000, 3000]


@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        (Filter(("emea",)), [40, 43]),
        (Filter(("", "emea")), [40, 42, 43]),
        (Filter(("emea",), True), [40, 41, 43]),
        (Filter(("nobody",)), []),
        (Filter(("emea",), keys=(b"k",)), [43]),
        (Filter(keys=(b"k", b"l")), [41, 43]),
    ],
)
def test_records_are_chosen_by_filter_value_and_key_and_keep_their_offsets(
    wanted: Filter, offsets: list[int]
) -> None:
    stored = pa.record_batch(
        {
            "value": [b"a", b"b", b"c", b"d"],
            "key": [None, b"l", b"m", b"k"],
            "filter_value": ["emea", None, "", "emea"],
        }
    )
    schema = pa.schema([("offset", pa.int64())])
    chosen = RowShape(schema, wanted).of_chunk(stored, first_offset=40, timestamp=0)
    assert chosen.column("offset").to_pylist() == offsets


@pytest.mark.parametrize(("unfiltered", "count"), [(True, 2), (False, 0)])
def test_a_batch_without_filter_values_is_all_unfiltered(unfiltered: bool, count: int) -> None:
    stored = pa.record_batch({"value": [b"a", b"b"]})
    shape = RowShape(pa.schema([("offset", pa.int64())]), Filter(("emea",), unfiltered))
    assert shape.of_chunk(stored, 0, 0).num_rows == count
