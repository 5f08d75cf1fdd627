"""Appends in binary: scenarios A7, A9, A10 and A13, as Arrow streams and as frames."""

import io
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import polars as pl
import pyarrow as pa
import pytest
from support.arrow import arrow_of, ipc, send_arrow
from support.contract import (
    Stream,
    problem_of,
)

from bottomless.formats.batch import Codec, encode_frame, schema_of
from bottomless.model.record import Columns

MIB = 1024 * 1024
FRAMES = "application/vnd.bottomless.batches"


def pyarrow_body() -> bytes:
    return ipc(pa.table({"value": [b"one", b"", b"\xff"], "key": [b"k", None, b"l"]}))


def polars_body() -> bytes:
    sink = io.BytesIO()
    pl.DataFrame({"value": [b"one", b"", b"\xff"], "key": [b"k", None, b"l"]}).write_ipc_stream(
        sink
    )
    return sink.getvalue()


@pytest.mark.parametrize("body", [pyarrow_body, polars_body])
def test_an_arrow_stream_of_other_peoples_making_is_an_append(
    stream: Stream, body: Callable[[], bytes]
) -> None:
    """A9."""
    answer = send_arrow(stream, body())
    assert answer.status_code == 200, answer.text
    assert (answer.json()["first_offset"], answer.json()["count"]) == (0, 3)
    found = [
        {name: value for name, value in record.items() if name != "timestamp"}
        for record in stream.page()["records"]
    ]
    assert found[0] == {"offset": 0, "value": "one", "key": "k"}
    assert found[1].get("value", found[1].get("value_base64")) == ""
    assert found[2] == {"offset": 2, "value_base64": "/w==", "key": "l"}


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.utf8(),
        pa.large_utf8(),
        pa.string_view(),
    ],
    ids=str,
)
def test_any_binary_or_text_column_is_a_value(stream: Stream, kind: pa.DataType) -> None:
    """A9: a long value too, which a view keeps elsewhere."""
    texts = ["short", "long " * 10, ""]
    values = texts if "str" in str(kind) else [text.encode() for text in texts]
    body = ipc(pa.table({"value": pa.array(values, kind)}))
    assert send_arrow(stream, body).status_code == 200
    assert [record["value"] for record in stream.page()["records"]] == texts
    assert arrow_of(stream)["value"].to_pylist() == [text.encode() for text in texts]


def test_all_columns_travel_both_ways(stream: Stream) -> None:
    """A9: what is read can be written again."""
    moment = datetime(2026, 8, 22, 9, 19, 59, 120_000, UTC)
    table = pa.table(
        {
            "value": pa.array([b"a", b'{"n":1}', b"\x00\xff"], pa.binary()),
            "key": pa.array([b"k", None, b"\xff"], pa.binary()),
            "headers": pa.array(
                [[("type", b"order")], None, [("raw", b"\xff")]], pa.map_(pa.utf8(), pa.binary())
            ),
            "event_time": pa.array([moment, None, None], pa.timestamp("ms", "UTC")),
            "filter_value": pa.array(["emea", None, ""], pa.utf8()),
            "content": pa.array([1, 2, 0], pa.uint8()),
        }
    )
    assert send_arrow(stream, ipc(table)).status_code == 200
    found = [
        {name: value for name, value in record.items() if name not in {"offset", "timestamp"}}
        for record in stream.page()["records"]
    ]
    assert found[0] == {
        "value": "a",
        "key": "k",
        "headers": {"type": "order"},
        "event_time": "2026-08-22T09:19:59.120Z",
        "filter_value": "emea",
    }
    assert found[1] == {"json": {"n": 1}}
    assert (
        found[2].items()
        >= {
            "value_base64": "AP8=",
            "key_base64": "/w==",
            "headers": {"raw": {"base64": "/w=="}},
        }.items()
    )
    back = arrow_of(stream)
    assert back["offset"].to_pylist() == [0, 1, 2]
    assert back.schema.field("timestamp").type == pa.timestamp("ms", "UTC")
    for name in table.column_names:
        assert back[name].to_pylist() == table[name].to_pylist(), name
    again = send_arrow(stream, ipc(back.drop_columns(["offset", "timestamp"])))
    assert again.status_code == 200, again.text
    assert again.json()["first_offset"] == 3


def test_several_record_batches_are_one_atomic_append(stream: Stream) -> None:
    """A9."""
    batches = [pa.record_batch({"value": [str(number).encode()] * 10}) for number in range(5)]
    answer = send_arrow(stream, ipc(pa.Table.from_batches(batches)))
    assert (answer.json()["first_offset"], answer.json()["last_offset"]) == (0, 49)
    found = [record["value"] for record in stream.page()["records"]]
    assert found == [str(number // 10) for number in range(50)]


def test_a_record_of_arrow_may_be_as_large_as_the_limit_and_no_larger(stream: Stream) -> None:
    """A6: and its neighbours are not stored either."""
    assert send_arrow(stream, ipc(pa.table({"value": [b"x" * MIB]}))).status_code == 200
    body = ipc(pa.table({"value": [b"a", b"x" * (MIB + 1), b"c"]}))
    problem = problem_of(send_arrow(stream, body), 413, "record-too-large")
    assert (problem["outcome"], stream.next_offset()) == ("none", 1)


def test_a_request_in_arrow_may_hold_a_million_records_and_no_more(stream: Stream) -> None:
    """A7: ten thousand is the limit of JSON alone."""
    one_too_many = ipc(pa.table({"value": pa.array([b""], pa.binary()).take([0] * 1_000_001)}))
    problem = problem_of(send_arrow(stream, one_too_many), 413, "batch-too-large")
    assert (problem["outcome"], stream.next_offset()) == ("none", 0)
    body = ipc(pa.table({"value": [b"a"] * 10_001}))
    assert send_arrow(stream, body).json()["count"] == 10_001


def arrow_with_a_null() -> bytes:
    return ipc(pa.table({"value": [b"a", None]}))


def arrow_with_another_column() -> bytes:
    return ipc(pa.table({"value": [b"a"], "offset": [1]}))


def arrow_without_values() -> bytes:
    return ipc(pa.table({"key": [b"a"]}))


def arrow_of_numbers() -> bytes:
    return ipc(pa.table({"value": [1, 2]}))


def arrow_without_rows() -> bytes:
    return ipc(pa.table({"value": pa.array([], pa.binary())}))


def arrow_with_compressed_buffers() -> bytes:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    return ipc(pa.table({"value": [b"a" * 1000] * 10}), options)


def arrow_with_text_that_is_none() -> bytes:
    return ipc(pa.table({"value": [b"\xff"], "content": pa.array([1], pa.uint8())}))


def arrow_with_json_that_is_none() -> bytes:
    return ipc(pa.table({"value": [b"{"], "content": pa.array([2], pa.uint8())}))


def arrow_with_unknown_content() -> bytes:
    return ipc(pa.table({"value": [b"a"], "content": pa.array([9], pa.uint8())}))


def arrow_with_two_value_columns() -> bytes:
    return ipc(pa.table([pa.array([b"a"]), pa.array([b"b"])], names=["value", "value"]))


@pytest.mark.parametrize(
    "body",
    [
        arrow_with_a_null,
        arrow_with_another_column,
        arrow_without_values,
        arrow_of_numbers,
        arrow_without_rows,
        arrow_with_compressed_buffers,
        arrow_with_text_that_is_none,
        arrow_with_unknown_content,
        arrow_with_two_value_columns,
    ],
)
def test_an_arrow_stream_outside_the_schema_stores_nothing(
    stream: Stream, body: Callable[[], bytes]
) -> None:
    """A9, from the other side."""
    problem = problem_of(send_arrow(stream, body()), 422, "validation-failed")
    assert problem["outcome"] == "none"
    assert stream.next_offset() == 0


def test_json_content_that_is_no_json_blocks_no_page(stream: Stream) -> None:
    """A9: refused, or shown as what it is."""
    answer = send_arrow(stream, arrow_with_json_that_is_none())
    if answer.status_code == 200:
        page = stream.page()
        assert page["next_offset"] == 1
        assert page["records"][0].get("value", page["records"][0].get("value_base64"))
    else:
        problem_of(answer, 422, "validation-failed")


def test_refused_compression_of_buffers_says_what_to_do_instead(stream: Stream) -> None:
    answer = send_arrow(stream, arrow_with_compressed_buffers())
    assert "Content-Encoding" in json.dumps(problem_of(answer, 422, "validation-failed"))


@pytest.mark.parametrize("end", [1, 9, 100, -1])
def test_an_arrow_stream_cut_short_stores_nothing(stream: Stream, end: int) -> None:
    answer = send_arrow(stream, ipc(pa.table({"value": [b"a" * 100] * 10}))[: end - 8])
    assert answer.status_code in {400, 422}, answer.text
    assert answer.json()["outcome"] == "none"
    assert stream.next_offset() == 0


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_arrow_stream_is_taken_whole(stream: Stream, codec: Any) -> None:
    """A13: never stored as it came."""
    plain = ipc(pa.table({"value": [b"a" * 1000] * 100}))
    body = pa.compress(plain, codec=codec, asbytes=True)
    assert send_arrow(stream, body, content_encoding=codec).json()["count"] == 100
    assert arrow_of(stream)["value"].to_pylist() == [b"a" * 1000] * 100


def frames(codec: Codec = Codec.NONE) -> bytes:
    batch = pa.record_batch([pa.array([b"a" * 200, b"b"])], schema=schema_of(Columns.VALUE))
    return encode_frame(batch, codec)


def send_frames(stream: Stream, body: bytes) -> httpx.Response:
    return stream.client.post(stream.records, content=body, headers={"content-type": FRAMES})


@pytest.mark.parametrize("codec", Codec)
def test_frames_are_an_append(stream: Stream, codec: Codec) -> None:
    """A9, by the client library."""
    assert send_frames(stream, frames(codec) * 2).json()["count"] == 4
    assert arrow_of(stream)["value"].to_pylist() == [b"a" * 200, b"b"] * 2


@pytest.mark.parametrize("codec", Codec)
def test_frames_with_one_bit_flipped_are_refused_by_their_checksum(
    stream: Stream, codec: Codec
) -> None:
    """A10."""
    chance = random.Random(10)
    for _ in range(20):
        damaged = bytearray(frames(codec))
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        problem_of(send_frames(stream, bytes(damaged)), 422, "crc-mismatch")
    assert stream.next_offset() == 0
