"""JSON values that come without an envelope: lines, items of an array, and one whole body."""

import gzip
from typing import Any

import httpx
import pytest

from bottomless_server.ingest.records.json_pointer import MISSING, follow, parse_pointer
from unit.ingest.harness import ROUTE, IngestHarness, problem

LINES = {"content-type": "application/x-ndjson"}
JSON = {"content-type": "application/json"}
ORDERS = b'{"customer": {"id": "a-1"}, "at": 1750000000000}\n{"customer": {"id": 7}, "at": 5}\n'


async def sent(
    harness: IngestHarness,
    body: bytes,
    query: str = "",
    media_type: str = "application/x-ndjson",
    **more: str,
) -> httpx.Response:
    headers = {"content-type": media_type, **more}
    return await harness.client.post(f"{ROUTE}{query}", content=body, headers=headers)


async def stored(harness: IngestHarness) -> list[Any]:
    return [(row["value"], row.get("content", 0)) for row in await harness.rows()]


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (b'{"id": 7}\n[1, 2]\n"text"\nnull\n12.50\n', "application/x-ndjson"),
        (b'{"id": 7}\r\n[1, 2]\r\n"text"\r\nnull\r\n12.50', "application/x-ndjson"),
        (b' [{"id": 7}, [1, 2],\n "text", null, 12.50]', "application/json"),
    ],
)
async def test_each_line_and_each_item_is_one_record_in_its_order(
    harness: IngestHarness, body: bytes, media_type: str
) -> None:
    answer = await sent(harness, body, media_type=media_type)
    assert (answer.status_code, answer.json()["count"]) == (200, 5)
    assert await stored(harness) == [
        (b'{"id":7}', 2),
        (b"[1,2]", 2),
        (b'"text"', 2),
        (b"null", 2),
        (b"12.5", 2),
    ]


@pytest.mark.parametrize(
    ("media_type", "body", "value", "content"),
    [
        ("application/json", b'{"records": [{"value": "a"}]}', b'{"records":[{"value":"a"}]}', 2),
        ("application/json", b"[1, 2]", b"[1,2]", 2),
        ("application/cloudevents+json; charset=utf-8", b' {"id": 1} ', b'{"id":1}', 2),
        ("text/csv; charset=utf-8", "a;ä\n".encode(), "a;ä\n".encode(), 1),
        ("application/xml", b"<a>\xff</a>", b"<a>\xff</a>", 0),
        ("multipart/form-data; boundary=x", b"--x--", b"--x--", 0),
        ("application/octet-stream", b"", b"", 0),
    ],
)
async def test_a_whole_body_is_one_record_where_that_is_asked_for(
    harness: IngestHarness, media_type: str, body: bytes, value: bytes, content: int
) -> None:
    named = {"stream-key": "k", "stream-filter-value": "emea"}
    answer = await sent(harness, body, "?as=value", media_type, **named)
    assert (answer.status_code, answer.json()["count"]) == (200, 1), answer.text
    [row] = await harness.rows()
    assert (row["value"], row.get("content", 0)) == (value, content)
    assert (row["key"], row["filter_value"]) == (b"k", "emea")


async def test_key_and_time_are_found_where_the_query_says(harness: IngestHarness) -> None:
    query = "?key=/customer/id&event_time=/at"
    assert (await sent(harness, ORDERS, query)).status_code == 200
    array = b'[{"customer": {"id": true}, "at": "1970-01-01T00:00:00Z"}]'
    assert (await sent(harness, array, query, "application/json")).status_code == 200
    one = b'{"customer": {"id": 2.5}, "at": 1}'
    assert (await sent(harness, one, f"{query}&as=value", "application/json")).status_code == 200

    rows = await harness.rows()
    assert [row["key"] for row in rows] == [b"a-1", b"7", b"true", b"2.5"]
    times = [int(row["event_time"].timestamp() * 1000) for row in rows]
    assert times == [1_750_000_000_000, 5, 0, 1]


@pytest.mark.parametrize("missing", [b"{}", b'{"customer": {"id": null}}', b'[{"id": 1}]', b"3"])
async def test_a_pointer_that_leads_to_nothing_refuses_all_and_names_the_line(
    harness: IngestHarness, missing: bytes
) -> None:
    body = b'{"customer": {"id": 1}}\n' + missing + b'\n{"customer": {"id": 3}}\n'
    answer = await sent(harness, body, "?key=/customer/id")
    assert problem(answer) == (422, "validation-failed")
    [fault] = answer.json()["errors"]
    assert (fault["pointer"], fault["parameter"]) == ("/1", "key")
    assert fault["detail"].startswith("line 2: ")
    assert await harness.rows() == []

    answer = await sent(harness, body, "?key=/customer/id&key_optional=true")
    assert answer.status_code == 200
    assert [row["key"] for row in await harness.rows()] == [b"1", None, b"3"]


async def test_a_time_that_is_not_there_is_no_key_that_is_not_there(harness: IngestHarness) -> None:
    query = "?event_time=/at"
    answer = await sent(harness, b"[{}]", f"{query}&key=/a&key_optional=true", "application/json")
    assert problem(answer) == (422, "validation-failed")
    assert answer.json()["errors"][0]["parameter"] == "event_time"
    answer = await sent(harness, b"{}", f"{query}&event_time_optional=true")
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 422, "validation-failed"),
        (b"\n", 400, "malformed-json"),
        (b"1\n\n2\n", 400, "malformed-json"),
        (b"1\n \t\r\n2\n", 400, "malformed-json"),
        (b"1\n2\n\n", 400, "malformed-json"),
        (b"1\n\xef\xbb\xbf2\n", 400, "malformed-json"),
        (b"\xef\xbb\xbf1\n", 400, "malformed-json"),
        (b'1\n"\xff"\n', 400, "malformed-json"),
        (b'1\n{"a": 1, "a": 2}\n', 400, "malformed-json"),
        (b"1\n1 2\n", 400, "malformed-json"),
        (b"1\r2\n", 400, "malformed-json"),
        (b'{"a":\n1}\n', 400, "malformed-json"),
        (b"1\nNaN\n", 400, "malformed-json"),
        (b"1\n" + b"[" * 100_000 + b"\n", 400, "malformed-json"),
        (b"1\n" + b"[" * 300 + b"]" * 300 + b"\n", 422, "validation-failed"),
        (b"1\n1e400\n", 422, "number-out-of-range"),
        (b"1\n18446744073709551616\n", 422, "number-out-of-range"),
        (b"1\n" + b"9" * 5_000 + b"\n", 422, "number-out-of-range"),
        (b'1\n"\\ud800"\n', 422, "validation-failed"),
        (b'1\n"' + b"a" * 1024 * 1024 + b'"\n', 413, "record-too-large"),
        (b"1\n" * 10_001, 413, "batch-too-large"),
        (b"\n" * 8_000_000, 413, "batch-too-large"),
        (b"1\n" * 4_200_000, 413, "body-too-large"),
    ],
)
async def test_hostile_lines_are_refused_whole_and_with_their_number(
    harness: IngestHarness, body: bytes, status: int, code: str
) -> None:
    answer = await sent(harness, body)
    assert problem(answer) == (status, code)
    assert await harness.rows() == []
    if status != 413 and body.startswith(b"1\n1"):
        told = answer.json()
        assert "line 2" in told["detail"] or "line 2" in told["errors"][0]["detail"]


async def test_ten_thousand_lines_pass(harness: IngestHarness) -> None:
    assert (await sent(harness, b"1\n" * 10_000)).json()["count"] == 10_000


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        (b"[]", 422, "validation-failed", ""),
        (b"[1, 1e400]", 422, "number-out-of-range", None),
        (b"[1, 18446744073709551616]", 422, "number-out-of-range", "/1"),
        (b'[1, "\\ud800"]', 422, "validation-failed", "/1"),
        (b'[1, "' + b"a" * 1024 * 1024 + b'"]', 413, "record-too-large", "/1"),
        (b"[" + b"1," * 10_000 + b"1]", 413, "batch-too-large", None),
        (b'[{"a": 1, "a": 2}]', 400, "malformed-json", None),
    ],
)
async def test_hostile_arrays_are_refused_whole_with_a_pointer(
    harness: IngestHarness, body: bytes, status: int, code: str, pointer: str | None
) -> None:
    answer = await sent(harness, body, media_type="application/json")
    assert problem(answer) == (status, code)
    pointers = [fault.get("pointer") for fault in answer.json().get("errors", [])]
    assert pointers == ([pointer] if pointers else [])
    assert await harness.rows() == []


@pytest.mark.parametrize(
    ("query", "media_type", "body", "headers", "status", "code"),
    [
        ("?as=values", "application/json", b"[1]", {}, 400, "bad-parameter"),
        ("?as=value&as=value", "application/json", b"[1]", {}, 400, "duplicate-parameter"),
        ("?kye=/a", "application/x-ndjson", b"1", {}, 400, "unknown-parameter"),
        ("?key=", "application/x-ndjson", b"1", {}, 400, "bad-parameter"),
        ("?key=a", "application/x-ndjson", b"1", {}, 400, "bad-parameter"),
        ("?key=/a~2", "application/x-ndjson", b"1", {}, 400, "bad-parameter"),
        ("?key=/a~", "application/x-ndjson", b"1", {}, 400, "bad-parameter"),
        ("?key=/" + "a" * 1024, "application/x-ndjson", b"1", {}, 400, "bad-parameter"),
        ("?key=/%ff", "application/x-ndjson", b"1", {}, 400, "bad-parameter"),
        ("?key_optional=true", "application/x-ndjson", b"1", {}, 400, "bad-parameter"),
        ("?key=/a", "application/octet-stream", b"1", {}, 400, "bad-parameter"),
        ("?key=/a&as=value", "text/plain", b"1", {}, 400, "bad-parameter"),
        ("?key=/a", "application/json", b'{"records": []}', {}, 400, "bad-parameter"),
        ("?as=value", "application/x-ndjson", b"1", {}, 400, "bad-parameter"),
        ("?as=value", "application/vnd.apache.arrow.stream", b"", {}, 400, "bad-parameter"),
        ("?as=value", "application/vnd.bottomless.staged+json", b"{}", {}, 400, "bad-parameter"),
        ("?as=value", "text", b"", {}, 415, "unsupported-media-type"),
        ("?as=value", "text/plain; charset=latin-1", b"a", {}, 415, "unsupported-media-type"),
        ("?as=value", "text/plain", b"\xff", {}, 422, "validation-failed"),
        ("?as=value", "application/json", b"{} {}", {}, 400, "malformed-json"),
        ("?as=value", "application/json", b'"\\ud800"', {}, 422, "validation-failed"),
        ("", "text/plain", b"1", {}, 415, "unsupported-media-type"),
        ("?key=/a", "application/x-ndjson", b'{"a": []}', {}, 422, "validation-failed"),
        ("?key=/a", "application/x-ndjson", b'{"a": "\\ud800"}', {}, 422, "validation-failed"),
        ("?key=/a", "application/x-ndjson", b'{"a": 1' + b"0" * 30 + b"}", {}, 422, None),
        (
            "?key=/a",
            "application/x-ndjson",
            b'{"a": "' + b"k" * 1025 + b'"}',
            {},
            422,
            "validation-failed",
        ),
        ("?event_time=/a", "application/x-ndjson", b'{"a": 1.5}', {}, 422, "validation-failed"),
        ("?event_time=/a", "application/x-ndjson", b'{"a": "now"}', {}, 422, "validation-failed"),
        ("", "application/x-ndjson", b"1", {"producer-id": "p"}, 400, "bad-header"),
        ("", "application/x-ndjson", b"1", {"stream-key": "k"}, 400, "bad-header"),
        ("?key=/a&as=value", "application/json", b"1", {"stream-key": "k"}, 400, "bad-parameter"),
        ("?as=value", "application/json", b"1", {"stream-key": "k" * 1025}, 400, "bad-header"),
    ],
)
async def test_what_does_not_go_together_is_refused_and_nothing_is_stored(
    harness: IngestHarness,
    query: str,
    media_type: str,
    body: bytes,
    headers: dict[str, str],
    status: int,
    code: str | None,
) -> None:
    answer = await sent(harness, body, query, media_type, **headers)
    assert answer.status_code == status, answer.text
    assert code is None or answer.json()["code"] == code
    assert await harness.rows() == []


async def test_no_fault_repeats_what_was_sent(harness: IngestHarness) -> None:
    canary = "canary-7f3a"
    body = f'{{"{canary}": "{canary}"}}\n'.encode()
    for query in (f"?key=/{canary}x", f"?event_time=/{canary}", f"?key={canary}"):
        answer = await sent(harness, body, query)
        assert answer.status_code in (400, 422)
        assert canary not in answer.text


async def test_a_key_stands_for_the_body_and_for_what_the_query_makes_of_it(
    harness: IngestHarness,
) -> None:
    key = {"idempotency-key": "once"}
    for replayed in (None, "true"):
        answer = await sent(harness, b"[1, 2]", media_type="application/json", **key)
        assert answer.headers.get("idempotent-replayed") == replayed
    for query, media_type in (
        ("", "application/x-ndjson"),
        ("?as=value", "application/json"),
        ("?as=value", "text/plain"),
    ):
        answer = await sent(harness, b"[1, 2]", query, media_type, **key)
        assert problem(answer) == (422, "idempotency-mismatch"), (query, media_type)
    other = {"idempotency-key": "keys"}
    body = b'{"a": 1, "b": 2}'
    assert (await sent(harness, body, "?key=/a", **other)).status_code == 200
    for query in ("?key=/b", "?event_time=/a", "?key=/a&key_optional=true", ""):
        assert problem(await sent(harness, body, query, **other)) == (422, "idempotency-mismatch")
    assert len(await harness.rows()) == 3


async def test_a_numbered_repeat_of_lines_is_one_and_other_lines_are_an_overlap(
    harness: IngestHarness,
) -> None:
    numbered = {"producer-id": "p", "producer-seq": "0"}
    for duplicates in (0, 2):
        answer = await sent(harness, ORDERS, "?key=/customer/id", **numbered)
        assert answer.json()["duplicates"] == duplicates
    answer = await sent(harness, ORDERS, **numbered)
    assert problem(answer) == (409, "producer-sequence-overlap")


async def test_lines_may_come_compressed_and_are_bounded_as_json(harness: IngestHarness) -> None:
    packed = {"content-encoding": "gzip"}
    assert (await sent(harness, gzip.compress(ORDERS), **packed)).json()["count"] == 2
    bomb = gzip.compress(b"1" * (8 * 1024 * 1024 + 1))
    for query, media_type in (("", LINES["content-type"]), ("?as=value", JSON["content-type"])):
        answer = await sent(harness, bomb, query, media_type, **packed)
        assert problem(answer) == (413, "decompressed-too-large")
        assert answer.json()["limit_bytes"] == 8 * 1024 * 1024


def test_a_pointer_finds_what_rfc_6901_says() -> None:
    value = {"a/b": 1, "m~n": 2, "~1": 3, "list": [{"x": 4}, 5], "": 6, "0": 7}
    found = {
        "/a~1b": 1,
        "/m~0n": 2,
        "/~01": 3,
        "/list/0/x": 4,
        "/list/1": 5,
        "/": 6,
        "/0": 7,
    }
    assert {text: follow(value, parse_pointer(text)) for text in found} == found
    for text in ("/list/2", "/list/-", "/list/01", "/list/x", "/list/" + "9" * 900, "/0/0", "/ü"):
        assert follow(value, parse_pointer(text)) is MISSING, text
