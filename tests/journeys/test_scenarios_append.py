"""Appends over HTTP: scenarios A1 to A25, in the three content types that there are."""

import base64
import gzip
import io
import json
import random
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import httpx
import polars as pl
import pyarrow as pa
import pytest
from support.contract import (
    ARROW,
    JSON,
    Answer,
    Stream,
    connect,
    new_stream,
    pointers,
    problem_of,
    received,
)
from support.server import AllInOne
from support.waiting import until

from bottomless.formats.batch import Codec, encode_frame, schema_of
from bottomless.model.record import Columns

MIB = 1024 * 1024
JSON_BODY_LIMIT = 8 * MIB
BINARY_BODY_LIMIT = 16 * MIB
MOST_RECORDS = 10_000
CLIENTS, APPENDS, EACH = 20, 100, 5
FRAMES = "application/vnd.bottomless.batches"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("append") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def client(running: AllInOne) -> Iterator[httpx.Client]:
    with running.client() as connected:
        yield connected


@pytest.fixture
def stream(client: httpx.Client) -> Stream:
    return new_stream(client)


def ipc(table: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def send_arrow(stream: Stream, body: bytes, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return stream.client.post(
        stream.records, content=body, headers={"content-type": ARROW, **named}
    )


def send_json(stream: Stream, body: bytes, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return stream.client.post(stream.records, content=body, headers={"content-type": JSON, **named})


def arrow_of(stream: Stream) -> pa.Table:
    answer = stream.client.get(
        stream.records, params={"offset": "first"}, headers={"accept": ARROW}
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ARROW
    return pa.ipc.open_stream(answer.content).read_all()


# Records as JSON


def test_three_kinds_of_values_in_one_request_come_back_as_they_were(stream: Stream) -> None:
    """A1."""
    raw = bytes([0, 1, 2, 255])
    records: list[dict[str, Any]] = [
        {"value": "hello\r\n\u2028", "filter_value": "emea"},
        {"json": {"id": 7, "total": 12.5}, "key": "cust-9", "headers": {"type": "order"}},
        {"value_base64": base64.b64encode(raw).decode(), "event_time": "2026-08-22T09:19:59.120Z"},
    ]
    before = datetime.now(UTC)
    answer = stream.post(*records)
    assert answer.status_code == 200
    assert answer.headers["stream-next-offset"] == "3"
    acknowledged = answer.json()
    assert acknowledged["stream_id"] == answer.headers["stream-id"]
    assert acknowledged["first_offset"] == 0
    assert acknowledged["last_offset"] == 2
    assert (acknowledged["next_offset"], acknowledged["count"]) == (3, 3)
    assert acknowledged["duplicates"] == 0
    taken = datetime.fromisoformat(acknowledged["timestamp"])
    assert abs((taken - before).total_seconds()) < 30
    assert acknowledged["timestamp"].endswith("Z")
    found = stream.page()["records"]
    places = [
        {"offset": offset, "timestamp": acknowledged["timestamp"]} for offset in range(len(records))
    ]
    assert found == [place | record for place, record in zip(places, records, strict=True)]
    assert arrow_of(stream)["value"].to_pylist() == [
        b"hello\r\n\xe2\x80\xa8",
        b'{"id":7,"total":12.5}',
        raw,
    ]


def test_an_empty_value_is_a_value(stream: Stream) -> None:
    """A2: and differs from one that is not there."""
    records = [{"value": ""}, {"value_base64": ""}, {"json": None}, {"json": ""}]
    assert stream.post(*records).status_code == 200
    found = stream.page()["records"]
    assert (found[0]["value"], found[2]["json"], found[3]["json"]) == ("", None, "")
    assert found[1].get("value", found[1].get("value_base64")) == ""
    assert arrow_of(stream)["value"].to_pylist() == [b"", b"", b"null", b'""']


def test_no_records_are_no_append(stream: Stream) -> None:
    """A3."""
    problem = problem_of(stream.post(), 422, "validation-failed")
    assert problem["outcome"] == "none"
    assert pointers(problem) == ["/records"]
    assert stream.next_offset() == 0


@pytest.mark.parametrize(
    "text", ["AAE", "AAE_", "-_8=", "AA E=", "AAE=\n", "AAE==", "A", "=", "ÄÄE="]
)
def test_one_bad_base64_stores_none_of_its_neighbours(stream: Stream, text: str) -> None:
    """A4."""
    answer = stream.post({"value": "a"}, {"value_base64": text}, {"value": "c"})
    problem = problem_of(answer, 422, "validation-failed")
    assert pointers(problem) == ["/records/1/value_base64"]
    assert (problem["outcome"], problem["retryable"]) == ("none", False)
    assert stream.next_offset() == 0


@pytest.mark.parametrize(
    "record",
    [
        {"value": "a", "json": 1},
        {"value": "a", "value_base64": "YQ=="},
        {"key": "a"},
        {"value": None},
        {"value_base64": None},
        {"value": "a", "event_time": "yesterday"},
        {"value": "a", "event_time": "2026-13-01T00:00:00Z"},
        {"value": "a", "event_time": "2026-08-22T09:19:59"},
        {"value": "a", "event_time": 1.5},
        {"value": "a", "event_time": True},
        {"value": "a", "timestamp": "2026-08-22T09:19:59Z"},
        {"value": "a", "offset": 0},
        {"value": "a", "key": 1},
        {"value": "a", "key": "a", "key_base64": "YQ=="},
        {"value": "a", "headers": []},
        {"value": "a", "headers": {"a": 1}},
        {"value": "a", "headers": {"a": {"base64": "YQ"}}},
        {"value": "a", "headers": {"a": {"base64": "YQ==", "b": 1}}},
        {"value": "a", "filter_value": 1},
        "a",
        None,
        [],
    ],
)
def test_a_record_outside_the_schema_stores_none_of_its_neighbours(
    stream: Stream, record: Any
) -> None:
    """A5, and its relatives."""
    problem = problem_of(stream.post({"value": "a"}, record), 422, "validation-failed")
    assert problem["outcome"] == "none"
    assert all(pointer.startswith("/records/1") for pointer in pointers(problem))
    assert pointers(problem)
    assert stream.next_offset() == 0


def test_a_record_may_be_as_large_as_the_limit_and_no_larger(stream: Stream) -> None:
    """A6."""
    assert stream.post({"value": "x" * MIB}).status_code == 200
    problem = problem_of(stream.post({"value": "x" * (MIB + 1)}), 413, "record-too-large")
    assert str(MIB) in json.dumps(problem).replace(",", "").replace("_", "")
    assert problem["outcome"] == "none"
    assert stream.next_offset() == 1
    assert stream.page(max_bytes=2 * MIB)["records"][0]["value"] == "x" * MIB


@pytest.mark.parametrize(
    ("largest", "larger"),
    [
        ({"key": "k" * 1024}, {"key": "k" * 1025}),
        ({"filter_value": "f" * 255}, {"filter_value": "f" * 256}),
        ({"filter_value": "é" * 127}, {"filter_value": "é" * 128}),
        (
            {"headers": {f"h{number}": "v" for number in range(32)}},
            {"headers": {f"h{number}": "v" for number in range(33)}},
        ),
        ({"headers": {"h": "v" * 4000}}, {"headers": {"h": "v" * 4097}}),
    ],
    ids=["key", "filter value", "filter value in bytes", "header count", "header size"],
)
def test_what_goes_with_a_value_is_limited_too(
    stream: Stream, largest: dict[str, Any], larger: dict[str, Any]
) -> None:
    """A6, for keys, headers and filter values."""
    assert stream.post({"value": "a", **largest}).status_code == 200
    refused = stream.post({"value": "a", **larger})
    assert refused.status_code in {413, 422}
    assert problem_of(refused, refused.status_code, refused.json()["code"])["outcome"] == "none"
    assert stream.page()["records"][0].items() >= largest.items()
    assert stream.next_offset() == 1


def test_a_request_may_hold_as_many_records_as_the_limit_and_no_more(stream: Stream) -> None:
    """A7."""
    records = [{"value": str(number)} for number in range(MOST_RECORDS + 1)]
    assert stream.post(*records[:-1]).json()["next_offset"] == MOST_RECORDS
    problem = problem_of(stream.post(*records), 413, "batch-too-large")
    assert problem["outcome"] == "none"
    page = stream.page(limit=MOST_RECORDS, max_bytes=16 * MIB)
    assert [int(record["value"]) for record in page["records"]] == list(range(MOST_RECORDS))


def chunked(body: bytes, sizes: int = 65_536) -> Iterator[bytes]:
    for start in range(0, len(body), sizes):
        yield body[start : start + sizes]


def too_large(
    server: AllInOne, path: str, body: bytes, *, with_length: bool, media_type: str
) -> Answer:
    """Send as much as the server takes; the answer may come before the end."""
    connection = connect(server)
    connection.putrequest("POST", path)
    connection.putheader("Content-Type", media_type)
    length = ("Content-Length", str(len(body)))
    connection.putheader(*(length if with_length else ("Transfer-Encoding", "chunked")))
    connection.endheaders()
    try:
        for part in chunked(body):
            connection.send(part if with_length else b"%x\r\n%b\r\n" % (len(part), part))
        connection.send(b"" if with_length else b"0\r\n\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    answer = received(connection.getresponse())
    connection.close()
    return answer


@pytest.mark.parametrize(
    ("media_type", "limit"),
    [
        (JSON, JSON_BODY_LIMIT),
        (ARROW, BINARY_BODY_LIMIT),
        ("application/octet-stream", BINARY_BODY_LIMIT),
    ],
)
def test_a_body_over_the_limit_is_the_same_problem_however_it_is_sent(
    running: AllInOne, stream: Stream, media_type: str, limit: int
) -> None:
    """A8."""
    body = b'{"records": [{"value": "' + b"x" * (limit + MIB)
    problems = []
    for with_length in (True, False):
        answer = too_large(
            running, stream.records, body, with_length=with_length, media_type=media_type
        )
        problem = problem_of(answer, 413, answer.json()["code"])
        assert problem["code"] in {"body-too-large", "record-too-large"}
        problems.append({**problem, "request_id": None})
    assert problems[0] == problems[1]
    assert problems[0]["outcome"] == "none"
    assert stream.next_offset() == 0


def test_a_body_that_names_too_large_a_length_is_refused_before_it_is_sent(
    running: AllInOne, stream: Stream
) -> None:
    """A8: nobody has to send 10 GB to hear that it is too much."""
    connection = connect(running)
    connection.putrequest("POST", stream.records)
    connection.putheader("Content-Type", JSON)
    connection.putheader("Content-Length", str(10_000 * MIB))
    connection.endheaders()
    problem_of(received(connection.getresponse()), 413, "body-too-large")
    connection.close()
    assert stream.next_offset() == 0


# Arrow


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


# Frames as storage keeps them


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


# Content types and encodings


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip"])
def test_a_compressed_body_is_decoded_or_refused(stream: Stream, encoding: str) -> None:
    """A13."""
    plain = b'{"records": [{"value": "squeezed"}]}'
    packed = {
        "gzip": gzip.compress(plain),
        "identity, gzip": gzip.compress(plain),
        "deflate": zlib.compress(plain),
        "br": pa.compress(plain, codec="brotli", asbytes=True),
        "zstd": pa.compress(plain, codec="zstd", asbytes=True),
    }
    answer = send_json(stream, packed[encoding], content_encoding=encoding)
    if answer.status_code == 200:
        assert [record["value"] for record in stream.page()["records"]] == ["squeezed"]
    else:
        problem_of(answer, 415, "unsupported-media-type")
        assert stream.next_offset() == 0


def test_a_compressed_raw_record_is_decoded_or_refused(stream: Stream) -> None:
    """A13: raw bytes most of all, since nothing would notice."""
    answer = stream.client.post(
        stream.records,
        content=gzip.compress(b"squeezed"),
        headers={"content-type": "application/octet-stream", "content-encoding": "gzip"},
    )
    if answer.status_code == 200:
        assert [record["value"] for record in stream.page()["records"]] == ["squeezed"]
    else:
        problem_of(answer, 415, "unsupported-media-type")
        assert stream.next_offset() == 0


def test_a_compression_bomb_is_refused(stream: Stream) -> None:
    """A13: within the limit as it travels, far beyond it when unpacked."""
    bomb = pa.compress(b"\x00" * (100 * MIB), codec="zstd", asbytes=True)
    answer = send_arrow(stream, bomb, content_encoding="zstd")
    assert problem_of(answer, 413, "decompressed-too-large")["outcome"] == "none"
    assert stream.next_offset() == 0


@pytest.mark.parametrize("media_type", ["text/plain", "application/json; charset=utf-16", None])
def test_a_body_of_another_type_is_refused_with_the_types_there_are(
    running: AllInOne, stream: Stream, media_type: str | None
) -> None:
    """A14."""
    connection = connect(running)
    headers = {"Content-Type": media_type} if media_type else {}
    connection.request("POST", stream.records, b'{"records": [{"value": "a"}]}', headers)
    answer = received(connection.getresponse())
    connection.close()
    problem_of(answer, 415, "unsupported-media-type")
    offered = {part.strip() for part in answer.headers["accept-post"].split(",")}
    assert offered >= {JSON, ARROW, FRAMES, "application/octet-stream"}
    assert stream.next_offset() == 0


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_is_json_however_its_type_is_written(stream: Stream, media_type: str) -> None:
    """A14, from the other side."""
    answer = send_json(stream, b'{"records": [{"value": "a"}]}', content_type=media_type)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_are_none_are_unreadable(stream: Stream, number: bytes) -> None:
    """A15."""
    for body in (b'{"records": [{"value": %b}]}', b'{"records": [{"json": {"a": [%b]}}]}'):
        answer = send_json(stream, body % number)
        problem_of(answer, 400, "malformed-json")
    assert stream.next_offset() == 0


@pytest.mark.parametrize(
    "number", ["9007199254740993", "-9223372036854775808", "0.1", "1e300", "1.0"]
)
def test_a_number_is_what_was_sent(stream: Stream, number: str) -> None:
    """A15, from the other side: nothing is rounded."""
    assert send_json(stream, b'{"records": [{"json": %b}]}' % number.encode()).status_code == 200
    found = stream.get().text
    assert json.loads(found)["records"][0]["json"] == json.loads(number)
    assert isinstance(json.loads(found)["records"][0]["json"], type(json.loads(number)))


@pytest.mark.parametrize(
    "record",
    [
        b'{"value": "\\ud800"}',
        b'{"value": "a\\udfff"}',
        b'{"json": "\\ud800"}',
        b'{"json": {"\\ud800": 1}}',
        b'{"value": "a", "key": "\\ud800"}',
        b'{"value": "a", "filter_value": "\\ud800"}',
        b'{"value": "a", "headers": {"h": "\\ud800"}}',
        b'{"value": "a", "headers": {"\\ud800": "v"}}',
    ],
)
def test_half_a_character_is_refused_wherever_it_stands(stream: Stream, record: bytes) -> None:
    """A16."""
    answer = send_json(stream, b'{"records": [{"value": "a"}, %b]}' % record)
    problem_of(answer, 422, "validation-failed")
    assert stream.next_offset() == 0


@pytest.mark.parametrize(
    "body", [b'\xef\xbb\xbf{"records": [{"value": "a"}]}', b'{"records": [{"value": "\xc3("}]}']
)
def test_text_that_is_not_utf8_is_unreadable(stream: Stream, body: bytes) -> None:
    """A17: never replaced by U+FFFD."""
    problem_of(send_json(stream, body), 400, "malformed-json")
    assert stream.next_offset() == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"records": [], "records": [{"value": "a"}]}',
        b'{"records": [{"value": "a", "value": "b"}]}',
        b'{"records": [{"json": {"a": {"b": 1, "b": 2}}}]}',
        b'{"records": [{"json": {"a": 1, "\\u0061": 2}}]}',
    ],
)
def test_a_key_given_twice_is_unreadable_at_any_depth(stream: Stream, body: bytes) -> None:
    """A18."""
    problem_of(send_json(stream, body), 400, "malformed-json")
    assert stream.next_offset() == 0


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_deep_document_is_refused_quickly(stream: Stream, opening: bytes, closing: bytes) -> None:
    """A19."""
    inside = opening * 100_000 + b"1" + closing * 100_000
    body = b'{"records": [{"json": %b}]}' % inside
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        answer = send_json(stream, body)
        taken.append(time.perf_counter() - started)
        assert answer.status_code in {400, 422}
        assert problem_of(answer, answer.status_code, answer.json()["code"])["outcome"] == "none"
    assert min(taken) < 0.1
    assert stream.next_offset() == 0


# One raw record


def test_a_file_is_one_record(stream: Stream) -> None:
    """A1, by curl."""
    raw = random.Random(7).randbytes(100_000)
    answer = stream.client.post(
        stream.records,
        content=raw,
        headers={
            "content-type": "application/octet-stream",
            "stream-key": "cust-9",
            "stream-filter-value": "emea",
        },
    )
    assert (answer.json()["first_offset"], answer.json()["count"]) == (0, 1)
    record = stream.page()["records"][0]
    assert base64.b64decode(record["value_base64"], validate=True) == raw
    assert (record["key"], record["filter_value"]) == ("cust-9", "emea")


def test_an_empty_file_is_an_empty_record(stream: Stream) -> None:
    """A2, by curl."""
    headers = {"content-type": "application/octet-stream"}
    assert stream.client.post(stream.records, content=b"", headers=headers).status_code == 200
    assert arrow_of(stream)["value"].to_pylist() == [b""]


def test_who_wants_no_body_gets_none(stream: Stream) -> None:
    stream.append("before")
    answer = stream.client.post(
        stream.records,
        json={"records": [{"value": "a"}, {"value": "b"}]},
        headers={"prefer": "return=minimal"},
    )
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["stream-first-offset-appended"] == "1"
    assert answer.headers["stream-next-offset"] == "3"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("2026-08-22T09:19:59.120Z", "2026-08-22T09:19:59.120Z"),
        ("2026-08-22T11:19:59.12+02:00", "2026-08-22T09:19:59.120Z"),
        ("2026-08-22T09:19:59Z", "2026-08-22T09:19:59.000Z"),
        (1_787_390_399_120, "2026-08-22T09:19:59.120Z"),
        (0, "1970-01-01T00:00:00.000Z"),
    ],
)
def test_a_producers_own_time_is_kept_and_decides_nothing(
    stream: Stream, given: str | int, shown: str
) -> None:
    stream.append("before")
    assert stream.post({"value": "a", "event_time": given}).status_code == 200
    stream.append("after")
    records = stream.page()["records"]
    assert records[1]["event_time"] == shown
    assert sorted(records, key=lambda record: str(record["timestamp"])) == records


# Many at once, and those who leave


def test_many_clients_get_dense_offsets_in_their_own_order(
    running: AllInOne, stream: Stream
) -> None:
    """A22."""

    def produce(number: int) -> list[tuple[int, list[str]]]:
        acknowledged = []
        with running.client() as mine:
            own = Stream(mine, stream.name)
            for turn in range(APPENDS):
                values = [f"{number}.{turn}.{which}" for which in range(EACH)]
                answer = own.append(*values)
                assert answer["last_offset"] - answer["first_offset"] == EACH - 1
                acknowledged.append((int(answer["first_offset"]), values))
        return acknowledged

    with ThreadPoolExecutor(CLIENTS) as pool:
        by_client = list(pool.map(produce, range(CLIENTS)))
    expected: dict[int, str] = {}
    for acknowledged in by_client:
        assert all(before < after for (before, _), (after, _) in pairwise(acknowledged))
        for first, values in acknowledged:
            expected.update(enumerate(values, first))
    page = stream.page(limit=MOST_RECORDS)
    assert page["next_offset"] == CLIENTS * APPENDS * EACH
    assert {record["offset"]: record["value"] for record in page["records"]} == expected
    assert [record["offset"] for record in page["records"]] == list(range(len(expected)))


@pytest.mark.parametrize("framing", [b"Content-Length: 60\r\n", b"Transfer-Encoding: chunked\r\n"])
@pytest.mark.parametrize("media_type", [JSON, "application/octet-stream"])
def test_a_client_that_leaves_in_the_middle_of_its_body_stores_nothing(
    running: AllInOne, stream: Stream, framing: bytes, media_type: str
) -> None:
    """A23: not even where what arrived is whole by itself."""
    where = urlsplit(running.url)
    body = b'{"records": [{"value": "a"}]}'
    if b"chunked" in framing:
        body = b"%x\r\n%b\r\n" % (len(body), body)
    head = f"POST {stream.records} HTTP/1.1\r\nHost: x\r\nContent-Type: {media_type}\r\n".encode()
    with socket.create_connection((where.hostname or "", where.port or 0)) as leaving:
        leaving.sendall(head + framing + b"\r\n" + body)
        leaving.shutdown(socket.SHUT_WR)
        leaving.settimeout(10)
        while leaving.recv(65_536):
            pass
    assert stream.next_offset() == 0
    stream.append("the next one")
    assert [record["value"] for record in stream.page()["records"]] == ["the next one"]


def test_a_client_that_does_not_wait_for_its_answer_has_appended(
    running: AllInOne, stream: Stream
) -> None:
    """A23, from the other side: a whole body is an append, whole."""
    connection = connect(running)
    body = b'{"records": [{"value": "a"}, {"value": "b"}]}'
    connection.request("POST", stream.records, body, {"Content-Type": JSON})
    connection.close()
    until(lambda: stream.next_offset() in {0, 2}, what="all or nothing")
    assert len(stream.page()["records"]) in {0, 2}


def test_what_was_acknowledged_is_there_for_every_reader_at_once(
    running: AllInOne, stream: Stream
) -> None:
    """A25."""
    with running.client() as other:
        for number in range(50):
            acknowledged = stream.append(str(number))
            elsewhere = Stream(other, stream.name)
            page = elsewhere.page(acknowledged["first_offset"])
            assert [record["value"] for record in page["records"]] == [str(number)]
            assert elsewhere.bounds()["next_offset"] == number + 1
            described = other.get(stream.path).json()["offsets"]
            assert described == {"first": 0, "committed": number, "next": number + 1}


def test_an_append_to_an_unknown_stream_makes_none(client: httpx.Client) -> None:
    problem = problem_of(Stream(client, "nobody").post({"value": "a"}), 404, "stream-not-found")
    assert problem["outcome"] == "none"
    assert client.get("/v1/streams/nobody").status_code == 404


# Expect: 100-continue


def expecting(running: AllInOne, stream: Stream, media_type: str, size: int) -> socket.socket:
    where = urlsplit(running.url)
    connection = socket.create_connection((where.hostname or "", where.port or 0), timeout=10)
    head = (
        f"POST {stream.records} HTTP/1.1\r\nHost: x\r\nContent-Type: {media_type}\r\n"
        f"Content-Length: {size}\r\nExpect: 100-continue\r\n\r\n"
    )
    connection.sendall(head.encode())
    return connection


def test_who_waits_for_100_continue_is_told_to_go_on(running: AllInOne, stream: Stream) -> None:
    body = b'{"records": [{"value": "a"}]}'
    with expecting(running, stream, JSON, len(body)) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(body)
        assert connection.recv(4000).startswith(b"HTTP/1.1 200 ")
    assert stream.next_offset() == 1


@pytest.mark.parametrize(
    ("media_type", "size", "status"),
    [("text/plain", 100, b"415"), (JSON, JSON_BODY_LIMIT + 1, b"413")],
)
def test_who_waits_for_100_continue_in_vain_is_answered_and_cut_off(
    running: AllInOne, stream: Stream, media_type: str, size: int, status: bytes
) -> None:
    """Nobody can know whether the body still comes, so the connection ends."""
    with expecting(running, stream, media_type, size) as connection:
        received = b""
        while part := connection.recv(65_536):
            received += part
    assert received.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in received
    assert stream.next_offset() == 0
