"""What a page looks like: JSON, Arrow, headers, and the problems of bad requests."""

import io
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from unit.reader.harness import ARROW, ReaderHarness, Sent
from unit.reader.protocol import STREAM_ID

from bottomless.model.record import Content

ALL_KINDS = (
    Sent(b"text", content=Content.TEXT),
    Sent(b'{"id":7,"total":12.5}', b"cust-9", [("type", b"order")], content=Content.JSON),
    Sent(b"\x00\x01\x02\xff", b"\xff", [("raw", b"\xfe")], 1_755_854_399_120),
    Sent(b"", content=Content.TEXT, filter_value="emea"),
    Sent(b'1],"x":[', content=Content.JSON),
)


async def test_json_shows_what_was_sent(harness: ReaderHarness) -> None:
    harness.append(*ALL_KINDS, timestamp=1_755_854_401_004)
    same: dict[str, Any] = {"timestamp": "2025-08-22T09:20:01.004Z"}

    records = (await harness.read(0))["records"]

    assert records == [
        {"offset": 0, **same, "value": "text"},
        {
            "offset": 1,
            **same,
            "json": {"id": 7, "total": 12.5},
            "key": "cust-9",
            "headers": {"type": "order"},
        },
        {
            "offset": 2,
            **same,
            "value_base64": "AAEC/w==",
            "key_base64": "/w==",
            "headers": {"raw": {"base64": "/g=="}},
            "event_time": "2025-08-22T09:19:59.120Z",
        },
        {"offset": 3, **same, "value": "", "filter_value": "emea"},
        {"offset": 4, **same, "value": '1],"x":['},
    ]


async def test_value_encodings(harness: ReaderHarness) -> None:
    harness.append(*ALL_KINDS)

    base64 = (await harness.read(0, value_encoding="base64"))["records"]
    text = (await harness.read(0, value_encoding="text"))["records"]

    assert [record["value_base64"] for record in base64][:3] == [
        "dGV4dA==",
        "eyJpZCI6NywidG90YWwiOjEyLjV9",
        "AAEC/w==",
    ]
    assert text[1]["value"] == '{"id":7,"total":12.5}'
    assert text[2]["value_base64"] == "AAEC/w=="


async def test_arrow_holds_the_same_records_and_other_libraries_read_it(
    hundred: ReaderHarness,
) -> None:
    page = await hundred.get("/records?offset=5&limit=60", accept=ARROW)
    empty = await hundred.get("/records?offset=next", accept=ARROW)

    table = pa.ipc.open_stream(page.content).read_all()
    frame = pl.read_ipc_stream(io.BytesIO(page.content))
    rows = duckdb.from_arrow(table).project('"offset", "value"').fetchall()
    expected = [(n, value.encode()) for n, value in hundred.texts(5, 65)]
    assert (
        list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)) == expected
    )
    assert rows == expected
    assert list(zip(frame["offset"], frame["value"], strict=True)) == expected
    assert pa.ipc.open_stream(empty.content).read_all().schema == table.schema
    assert page.headers["Page-Next-Offset"] == "65"


async def test_arrow_keeps_headers_and_keys_for_polars(harness: ReaderHarness) -> None:
    harness.append(*ALL_KINDS)
    answer = await harness.get("/records?offset=first", accept=ARROW)

    frame = pl.read_ipc_stream(io.BytesIO(answer.content))
    table = pa.ipc.open_stream(answer.content).read_all()

    assert frame["key"].to_list() == [None, b"cust-9", b"\xff", None, None]
    assert table["headers"].to_pylist()[1:3] == [[("type", b"order")], [("raw", b"\xfe")]]
    assert table["content"].to_pylist() == [1, 2, 0, 1, 2]


async def test_headers_say_where_the_page_and_the_stream_end(harness: ReaderHarness) -> None:
    harness.fill(20)
    answer = await harness.get("/records?offset=3&limit=2")

    wanted = {
        "stream-id": STREAM_ID,
        "stream-first-offset": "0",
        "page-next-offset": "5",
        "stream-next-offset": "20",
        "stream-committed-offset": "19",
        "stream-up-to-date": "false",
        "cache-control": "private, no-cache",
        "link": '</v1/streams/orders/records?offset=5&limit=2>; rel="next"',
    }
    assert {name: answer.headers[name] for name in wanted} == wanted
    assert answer.json()["lag_records"] == 15


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/records", 400, "bad-parameter"),
        ("/records?offset=1&offset=2", 400, "duplicate-parameter"),
        ("/records?ofset=1", 400, "unknown-parameter"),
        ("/records?offset=-1", 400, "bad-offset-spec"),
        ("/records?offset=interval:1x", 400, "bad-offset-spec"),
        ("/records?offset=stored", 400, "bad-parameter"),
        ("/records?offset=9007199254740992", 400, "bad-offset-spec"),
        ("/records?offset=0&max_wait_ms=30001", 400, "bad-parameter"),
        ("/records?offset=0&limit=0", 400, "bad-parameter"),
        ("/records?offset=0&limit=10001", 400, "bad-parameter"),
        ("/records?offset=0&max_bytes=0", 400, "bad-parameter"),
        ("/records?offset=0&value_encoding=hex", 400, "bad-parameter"),
        ("/records?offset=0&expect_stream_id=x", 400, "bad-parameter"),
        ("/offsets?x=1", 400, "unknown-parameter"),
        ("/fragments?urls=presigned", 400, "bad-parameter"),
        ("/fragments?page_token=abc", 400, "bad-parameter"),
        ("/fragments/x", 404, "fragment-not-found"),
        (f"/fragments/{0:020d}-{'a' * 32}", 404, "fragment-not-found"),
        ("/records/", 404, "not-found"),
    ],
)
async def test_bad_requests_are_problems(
    harness: ReaderHarness, path: str, status: int, code: str
) -> None:
    answer = await harness.get(path)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"


async def test_media_types_are_negotiated(harness: ReaderHarness) -> None:
    json = "application/json"
    for accept, status, media_type in (
        ("*/*", 200, json),
        ("application/xml", 406, "application/problem+json"),
        (f"{json};q=0.1, {ARROW}", 200, ARROW),
        (f"{json}, {ARROW};q=0.5", 200, json),
    ):
        answer = await harness.get("/records?offset=0", accept=accept)
        assert (answer.status_code, answer.headers["content-type"]) == (status, media_type)
