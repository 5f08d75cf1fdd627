from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # it comes without types
import polars as pl
import pyarrow as pa
import pytest

from bottomless.client.encoding import joined_json_body, json_body
from bottomless.client.tables import arrow_bodies, as_table, frames_body
from bottomless.errors import InvalidRequest
from bottomless.formats.batch import Codec, decode_message, split_frames
from bottomless.model.limits import BINARY_BODY_SIZE_MAX, RECORD_VALUE_SIZE_MAX
from bottomless.model.rows import Rows

ROWS = Rows([b"a", b"b" * 1000], [0, 1], keys=[None, b"k"])


def rows_of(body: bytes) -> list[dict[str, Any]]:
    frames = split_frames(memoryview(body))
    return [row for head, data in frames for row in decode_message(head, data).to_pylist()]


@pytest.mark.parametrize(
    ("columns", "place"),
    [
        ({"value": pa.array(["a", None])}, "/value"),
        ({"value": pa.array(["a", None]).dictionary_encode(null_encoding="encode")}, "/value"),
        ({"value": pa.nulls(2)}, "/value"),
        ({"value": [1, 2]}, "/value"),
        ({"value": ["a", "b" * (RECORD_VALUE_SIZE_MAX + 1)]}, "/value"),
        ({"value": ["a", "b"], "key": [b"k", b"k" * 1025]}, "/key"),
        ({"value": ["a", "b"], "filter_value": [b"f", b"g"]}, "/filter_value"),
        ({"value": ["a", "b"], "event_time": pa.array([0, 1], pa.timestamp("us"))}, "/event_time"),
        ({"value": ["a", "b"], "content": ["0", "1"]}, "/content"),
        ({"value": ["a", "b"], "headers": ["h", "h"]}, "/headers"),
    ],
)
def test_rows_that_no_server_takes_are_refused_before_anything_is_handed_over(
    columns: dict[str, Any], place: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        as_table(pa.table(columns))
    assert caught.value.faults[0].pointer == place


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_rows_become_frames_that_storage_keeps(compression: Any) -> None:
    body = frames_body(ROWS, compression)
    assert rows_of(body) == [
        {"value": b"a", "key": None, "content": 0},
        {"value": b"b" * 1000, "key": b"k", "content": 1},
    ]
    ((head, _),) = split_frames(memoryview(body))
    assert head.codec is {None: Codec.NONE, "zstd": Codec.ZSTD, "lz4": Codec.LZ4}[compression]


def test_the_same_rows_are_the_same_bytes() -> None:
    assert frames_body(ROWS, "zstd") == frames_body(ROWS, "zstd")


def test_many_rows_become_frames_of_a_bounded_size() -> None:
    body = frames_body(Rows([b"x" * 2**20] * 9, [0] * 9))
    frames = list(split_frames(memoryview(body)))
    assert sum(head.record_count for head, _ in frames) == 9
    assert max(head.raw_size for head, _ in frames) < 5 * 2**20


def test_records_that_are_json_already_are_put_together_as_they_are() -> None:
    assert joined_json_body([b'{"value":"a"}', b'{"value":"b"}']) == json_body(
        [{"value": "a"}, {"value": "b"}]
    )


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        json_body([{"value": object()}])


TABLES = {
    "table": pa.table({"value": ["a", "b"], "key": [b"k", None]}),
    "batch": pa.record_batch({"value": ["a", "b"], "key": [b"k", None]}),
    "pandas": pd.DataFrame({"value": ["a", "b"], "key": [b"k", None]}, index=[7, 9]),
    "polars": pl.DataFrame({"value": ["a", "b"], "key": [b"k", None]}),
}


@pytest.mark.parametrize("name", TABLES)
def test_whatever_is_tabular_is_taken(name: str) -> None:
    assert as_table(TABLES[name]).to_pylist() == [
        {"value": "a", "key": b"k"},
        {"value": "b", "key": None},
    ]


def test_the_columns_of_a_read_are_left_out() -> None:
    read = pa.table({"offset": [1], "timestamp": [2], "value": [b"x"]})
    assert as_table(read).column_names == ["value"]


@pytest.mark.parametrize(
    "rows",
    [pa.table({"valve": ["x"]}), pa.table({"key": ["x"]}), 7, None],
    ids=["another column", "no value", "number", "nothing"],
)
def test_what_is_no_table_of_records_is_refused(rows: object) -> None:
    with pytest.raises(InvalidRequest):
        as_table(rows)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_a_table_is_sent_in_bodies_of_a_bounded_size(compression: Any) -> None:
    values = [b"x" * (n % 7) for n in range(1000)] + [b"y" * 2**20] * 20
    bodies = list(arrow_bodies(pa.table({"value": values}), size=1000, compression=compression))
    assert max(len(body.body) for body in bodies) < BINARY_BODY_SIZE_MAX
    found: list[Any] = []
    for body in bodies:
        data: Any = pa.BufferReader(body.body)
        stream = data if compression is None else pa.CompressedInputStream(data, compression)
        table = pa.ipc.open_stream(stream).read_all()
        assert table.num_rows == body.record_count
        found += table.column("value").to_pylist()
    assert found == values
