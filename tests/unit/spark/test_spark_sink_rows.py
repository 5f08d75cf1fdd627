"""What a DataFrame may be to be written, and what its rows become."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from bottomless.errors import InvalidRequest
from bottomless.formats.batch import decode_frames
from bottomless.spark import sink_rows
from bottomless.spark.sink_options import TXN_SIZE_MAX, SinkOptions, parse_sink_options
from bottomless.spark.sink_rows import Body, as_records, check_columns, encode_bodies

GIVEN = {"url": "http://127.0.0.1:1", "stream": "orders"}


def decoded(bodies: list[Body]) -> list[bytes]:
    found: list[bytes] = []
    for body in bodies:
        rows = [row for batch in decode_frames(memoryview(body.data)) for row in batch["value"]]
        assert len(rows) == body.record_count
        found += [row.as_py() for row in rows]
    return found


def values(*items: bytes | None) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(items, pa.binary())})


@given(sizes=st.lists(st.lists(st.integers(0, 300), max_size=20), max_size=6))
def test_bodies_hold_every_row_once_and_in_order_and_stay_below_their_bounds(
    sizes: list[list[int]],
) -> None:
    rows = [[b"%d" % number + b"x" * size for number, size in enumerate(one)] for one in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink_rows, "BODY_SIZE", 2000)
        patch.setattr(sink_rows, "FRAME_SIZE_MAX", 1000)
        patch.setattr(sink_rows, "RECORD_COUNT_MAX", 12)
        bodies = list(encode_bodies(values(*one) for one in rows))
    assert decoded(bodies) == [row for one in rows for row in one]
    assert all(len(body.data) <= 2000 and body.record_count <= 12 for body in bodies)


def test_no_row_is_no_body() -> None:
    assert list(encode_bodies([values(), values()])) == []


def test_a_value_that_is_null_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a row has no value"):
        list(encode_bodies([values(b"a", None)]))


def test_columns_become_the_types_that_are_stored_in_their_order() -> None:
    moment = dt.datetime(2026, 8, 22, 9, 19, 59, 120_456, tzinfo=dt.UTC)
    rows = pa.record_batch(
        {
            "event_time": pa.array([moment], pa.timestamp("us", tz="UTC")),
            "value": pa.array(["é"]),
            "headers": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
            "key": pa.array(["k"]),
        }
    )
    [row] = as_records(rows).to_pylist()
    assert row == {
        "value": "é".encode(),
        "key": b"k",
        "headers": [("a", b"b")],
        "event_time": moment.replace(microsecond=120_000),
        "content": 1,
    }


TEXT = StringType()


def schema_of(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ([("key", TEXT)], "the column value is missing"),
        ([("value", IntegerType())], "value int is no column"),
        ([("value", TEXT), ("offset", LongType())], "leave out what a read added"),
        ([("value", TEXT), ("event_time", TimestampNTZType())], "cast it to timestamp"),
        ([("value", TEXT), ("headers", MapType(TEXT, IntegerType()))], "headers map<string,int>"),
        ([("value", TEXT), ("value", BinaryType())], "two columns have the same name"),
    ],
)
def test_what_is_no_record_is_refused_by_its_columns(
    columns: list[tuple[str, DataType]], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        check_columns(schema_of(*columns))


@pytest.mark.parametrize("kind", [TEXT, BinaryType()])
def test_texts_and_bytes_are_taken(kind: DataType) -> None:
    headers = MapType(TEXT, kind, valueContainsNull=False)
    columns = [("value", kind), ("key", kind), ("headers", headers), ("filter_value", TEXT)]
    check_columns(schema_of(*columns, ("event_time", TimestampType())))


def test_options_of_a_batch_and_of_a_query() -> None:
    batch = parse_sink_options({**GIVEN, "TXNID": "7"}, streaming=False)
    assert batch == SinkOptions("http://127.0.0.1:1", batch.stream, None, "7")
    given = {**GIVEN, "txnAppId": "copy", "checkpointLocation": "/c"}
    assert parse_sink_options(given, streaming=True).txn_app_id == "copy"


@pytest.mark.parametrize(
    ("given", "streaming", "sentence"),
    [
        ({"stream": "orders"}, False, "the option url is missing"),
        ({"url": GIVEN["url"], "superStream": "rides"}, False, "client.super_producer"),
        ({**GIVEN, "columns": "value"}, False, "unknown option columns"),
        ({**GIVEN, "checkpointLocation": "/c"}, False, "unknown option checkpointlocation"),
        ({**GIVEN, "txnId": "a/b"}, False, "the option txnId"),
        ({**GIVEN, "txnId": "a" * (TXN_SIZE_MAX + 1)}, False, "at most 100 characters"),
        ({**GIVEN, "txnAppId": "a b"}, True, "txnAppId has at most 100 characters, starts"),
        (GIVEN, True, "the option txnAppId is missing"),
        ({**GIVEN, "txnAppId": "a", "txnId": "b"}, True, "txnId is for batches"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    given: dict[str, str], streaming: bool, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        parse_sink_options(given, streaming=streaming)
