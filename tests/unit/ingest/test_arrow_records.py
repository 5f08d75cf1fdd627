"""Arrow requests: every form that other libraries write, and none that lies."""

import io
import random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from bottomless.errors import Code, InvalidRequest
from bottomless.formats.batch import decode_frames
from bottomless.formats.rows import Frame
from bottomless.model.limits import MIB
from bottomless_server.ingest.records.arrow_records import BATCH_COUNT_KEPT, read_arrow
from unit.ingest.harness import arrow

FRAME_SIZE_MAX = 100_000


def frames_of(body: bytes) -> tuple[Frame, ...]:
    frames, ids = read_arrow(body, FRAME_SIZE_MAX)
    assert ids is None
    return frames


def taken(body: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for frame in frames_of(body):
        [batch] = decode_frames(memoryview(frame.data))
        assert batch.num_rows == frame.record_count
        rows += batch.to_pylist()
    return rows


def refused(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read_arrow(body, FRAME_SIZE_MAX)
    return caught.value


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_text_of_any_form_is_remembered_as_text(kind: pa.DataType) -> None:
    values = ["a", "é" * 30, "", "a"]

    rows = taken(arrow(pa.table({"value": pa.array(values, kind), "key": pa.array(values, kind)})))

    assert [row["value"].decode() for row in rows] == values
    assert [row["key"].decode() for row in rows] == values
    assert {row["content"] for row in rows} == {1}


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int8(), pa.binary())],
    ids=str,
)
def test_bytes_of_any_form_are_bytes(kind: pa.DataType) -> None:
    values = [b"\xff", b"x" * 30, b""]

    rows = taken(arrow(pa.table({"value": pa.array(values, kind)})))

    assert rows == [{"value": value} for value in values]


def test_all_columns_come_in_the_types_that_libraries_write() -> None:
    table = pa.table(
        {
            "filter_value": pa.array(["x", None]).dictionary_encode(),
            "value": pa.array([b"a", b"{}"]),
            "headers": pa.array([[("n", "v")], None], pa.map_(pa.large_string(), pa.string_view())),
            "event_time": pa.array([1_500, None], pa.timestamp("us", tz="Europe/Berlin")),
            "content": pa.array([0, 2], pa.int64()),
            "key": pa.nulls(2),
        }
    )

    rows = taken(arrow(table))

    assert rows[0].pop("event_time").microsecond == 1_000
    assert rows == [
        {"value": b"a", "headers": [("n", b"v")], "content": 0, "filter_value": "x"},
        {"value": b"{}", "headers": None, "event_time": None, "content": 2, "filter_value": None},
    ]


def test_polars_writes_views_and_categoricals() -> None:
    frame = pl.DataFrame(
        {"value": ["a", "b" * 40], "filter_value": ["x", "y"]},
        schema={"value": pl.String, "filter_value": pl.Categorical},
    )
    stream = io.BytesIO()
    frame.write_ipc_stream(stream)

    rows = taken(stream.getvalue())

    assert [(row["value"], row["filter_value"]) for row in rows] == [
        (b"a", "x"),
        (b"b" * 40, "y"),
    ]


MAP = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("columns", "pointer"),
    [
        ({"key": [b"k"]}, "/value"),
        ({"value": [b"a"], "offset": [1]}, None),
        ({"value": [b"a", None]}, "/value"),
        ({"value": [1]}, "/value"),
        ({"value": [b"a"], "key": [b"k" * 1025]}, "/key"),
        ({"value": [b"a"], "filter_value": ["k" * 256]}, "/filter_value"),
        ({"value": [b"a"], "filter_value": [b"\xff"]}, "/filter_value"),
        ({"value": [b"a"], "content": [3]}, "/content"),
        ({"value": [b"a"], "content": [-1]}, "/content"),
        ({"value": [b"a"], "content": pa.array([None], pa.uint8())}, "/content"),
        ({"value": [b"\xff"], "content": [1]}, "/value"),
        ({"value": [b"{"], "content": [2]}, "/value"),
        ({"value": [b"a"], "event_time": pa.array([1], pa.timestamp("ms"))}, "/event_time"),
        (
            {"value": [b"a"], "event_time": pa.array([2**60], pa.timestamp("s", "UTC"))},
            "/event_time",
        ),
        (
            {"value": [b"a"], "event_time": pa.array([2**60], pa.timestamp("ms", "UTC"))},
            "/event_time",
        ),
        ({"value": [b"a"], "headers": pa.array([[("n", "v"), ("n", "w")]], MAP)}, "/headers"),
        ({"value": [b"a"], "headers": pa.array([[("n", None)]], MAP)}, "/headers"),
        ({"value": [b"a"], "headers": pa.array([[("n", "v" * 4096)]], MAP)}, "/headers"),
        (
            {"value": [b"a"], "headers": pa.array([[(str(n), "") for n in range(33)]], MAP)},
            "/headers",
        ),
    ],
)
def test_a_column_that_does_not_fit_is_named(columns: dict[str, Any], pointer: str | None) -> None:
    error = refused(arrow(pa.table(columns)))

    assert error.code is Code.VALIDATION_FAILED
    assert [fault.pointer for fault in error.faults] == [pointer]


@pytest.mark.parametrize(
    "ids", [[1.0, 2.0], ["1", "2"], [-1, 2], [1, None], [1, 1], [1, 2**53]], ids=str
)
def test_publishing_ids_that_are_none_are_refused(ids: list[Any]) -> None:
    table = pa.table({"value": [b"a", b"b"], "publishing_id": ids})
    with pytest.raises(InvalidRequest) as refused:
        read_arrow(arrow(table), 8 * MIB, numbered=True)
    assert [fault.pointer for fault in refused.value.faults] == ["/publishing_id"]


def test_a_value_beyond_the_limit_is_too_large() -> None:
    assert refused(arrow(pa.table({"value": [b"a" * (MIB + 1)]}))).code is Code.RECORD_TOO_LARGE


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string()], ids=str)
def test_a_dictionary_with_a_null_among_its_values_is_no_way_to_store_one(
    kind: pa.DataType,
) -> None:
    hiding = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 0], pa.int8()), pa.array(["a", None], kind)
    )
    assert hiding.null_count == 0

    fault = refused(arrow(pa.table({"value": hiding})))
    assert fault.faults[0].pointer == "/value"
    assert fault.message == "the records are not valid at /value: the column must have no nulls"

    rows = taken(arrow(pa.table({"value": ["x", "y", "z"], "key": hiding})))
    assert [row["key"] for row in rows] == [b"a", None, b"a"]


@pytest.mark.parametrize(
    "value",
    [b"18446744073709551616", b'{"a": [-9223372036854775809]}', b"1" * 300, b"-" + b"9" * 20],
)
def test_json_with_a_number_that_readers_would_round_is_refused(value: bytes) -> None:
    contents = pa.array([2, 2], pa.uint8())
    fault = refused(arrow(pa.table({"value": [b"1", value], "content": contents})))
    assert (fault.code, fault.faults[0].pointer) == (Code.NUMBER_OUT_OF_RANGE, "/value")


@pytest.mark.parametrize("deep", [b"[", b'{"a":'])
def test_json_is_nested_no_deeper_than_where_it_comes_as_json(deep: bytes) -> None:
    """A reader's parser stopped at such a record, and with it at all that stood on its page."""

    def nested(levels: int) -> bytes:
        return deep * levels + b"0" + (b"]" if deep == b"[" else b"}") * levels

    contents = pa.array([2, 2], pa.uint8())
    fault = refused(arrow(pa.table({"value": [b"1", nested(255)], "content": contents})))
    assert (fault.code, fault.faults[0].pointer) == (Code.VALIDATION_FAILED, "/value")
    wide = b"[" + b",".join([b"[]"] * 500) + b"]"
    assert len(taken(arrow(pa.table({"value": [nested(254), wide], "content": contents})))) == 2


def test_json_with_large_numbers_and_many_digits_is_stored_as_it_is() -> None:
    values = [b"18446744073709551615", b"-9223372036854775808", b"0.10000000000000000000000001"]
    values.append(b'"1234567890123456789012345"')
    contents = pa.array([2] * len(values), pa.uint8())
    rows = taken(arrow(pa.table({"value": values, "content": contents})))
    assert [row["value"] for row in rows] == values


def test_a_dictionary_or_a_view_that_names_one_value_often_is_measured_first() -> None:
    often = pa.array([0] * 100_000, pa.int32())
    large = pa.DictionaryArray.from_arrays(often, pa.array([b"a" * MIB]))
    assert "decode to more" in refused(arrow(pa.table({"value": large}))).faults[0].detail

    one = pa.array([b"a" * MIB], pa.binary_view())
    buffers = one.buffers()
    assert buffers[1] is not None
    views = pa.py_buffer(buffers[1].to_pybytes()[:16] * 1_000)
    many = pa.Array.from_buffers(pa.binary_view(), 1_000, [None, views, *buffers[2:]])
    assert "decode to more" in refused(arrow(pa.table({"value": many}))).faults[0].detail


def test_compression_by_arrow_is_refused_before_it_is_obeyed() -> None:
    body = arrow(pa.table({"value": [b"a" * 10_000]}), compression="zstd")

    assert "Content-Encoding: zstd" in refused(body).faults[0].detail


def test_what_follows_the_end_of_a_stream_is_not_dropped() -> None:
    body = arrow(pa.table({"value": [b"a"]}))

    assert "follow" in refused(body + body).faults[0].detail
    assert taken(body[:-8]) == taken(body)


def test_a_stream_without_records_is_refused() -> None:
    assert refused(arrow(pa.table({"value": pa.array([], pa.binary())})))
    assert refused(b"")


def test_many_small_batches_are_put_together_and_large_ones_taken_apart() -> None:
    table = pa.table({"value": [b"a"] * 1_000})
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)

    assert len(frames_of(stream.getvalue())) < BATCH_COUNT_KEPT
    frames = frames_of(arrow(pa.table({"value": [b"x" * 1_000] * 1_000})))
    assert max(len(frame.data) for frame in frames) <= FRAME_SIZE_MAX
    assert sum(frame.record_count for frame in frames) == 1_000


def test_a_stream_cut_anywhere_is_refused_or_whole() -> None:
    body = arrow(pa.table({"value": ["a", "b"], "key": ["k", None]}))

    whole = [size for size in range(len(body)) if _is_taken(body[:size])]

    assert whole == [len(body) - 8]


def test_flipped_bits_never_end_in_anything_but_a_refusal_or_valid_records() -> None:
    body = arrow(
        pa.table(
            {
                "value": pa.array(["a", "b", "a"]).dictionary_encode(),
                "headers": pa.array([[("a", "x")], None, [("b", "y")]], MAP),
                "key": pa.array(["k", None, "l" * 20], pa.string_view()),
            }
        )
    )
    dice = random.Random(7)
    for _ in range(2_000):
        damaged = bytearray(body)
        damaged[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
        _is_taken(bytes(damaged))


def _is_taken(body: bytes) -> bool:
    try:
        return bool(taken(body))
    except InvalidRequest:
        return False


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_what_stands_under_a_null_is_never_followed(kind: pa.DataType) -> None:
    """Arrow validates views that are valid and casts them all: this once ended the process."""
    whole = pa.array(["a" * 20, None, "b"], kind)
    validity, views, *data = whole.buffers()
    assert views is not None
    for hidden in (b"\xff" * 16, b"\x00\x00\x00\x80" * 4, b"\x20\x00\x00\x00" + b"\x7f" * 12):
        slots = bytearray(views.to_pybytes())
        slots[16:32] = hidden
        lying = pa.Array.from_buffers(kind, 3, [validity, pa.py_buffer(bytes(slots)), *data])

        rows = taken(arrow(pa.table({"value": [b"x"] * 3, "key": lying})))

        assert [row["key"] for row in rows] == [b"a" * 20, None, b"b"]
