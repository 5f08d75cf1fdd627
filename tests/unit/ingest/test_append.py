"""What an append request may be, and what it gets: api.md, section 3, and scenarios A1 to A19."""

import asyncio
import io
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from support.asgi import scope_of
from support.waiting import eventually

from bottomless.errors import Code, Unavailable
from bottomless.model.limits import MIB
from unit.ingest.harness import ROUTE, STREAM, IngestHarness, arrow, pointers, problem

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


async def test_who_asks_this_port_for_what_others_serve_hears_where_it_is(
    harness: IngestHarness,
) -> None:
    """A node that serves ingest alone is asked for pages and streams by who took it for a server."""
    described = await harness.client.get("/v1/streams/orders")
    page = await harness.client.get(ROUTE)
    nowhere = await harness.client.get("/v1/nowhere")

    assert (problem(described), problem(page)) == ((404, "not-found"), (405, "method-not-allowed"))
    assert page.headers["allow"] == "POST"
    for answer, service in ((described, "manifest"), (page, "reader")):
        assert f"the service {service} answers this" in answer.json()["detail"]
    assert nowhere.json()["detail"] == "nothing is served at this path"


async def test_who_asks_for_the_broker_contract_where_it_is_off_hears_how_to_turn_it_on(
    harness: IngestHarness,
) -> None:
    """A whole server has one port: it would be no help to hear that another port has it."""
    answers = {
        "ingest": await harness.client.post("/produce", json={"topic_partitions": []}),
        "reader": await harness.client.post("/consume", json={"topic_partitions": []}),
    }
    for service, answer in answers.items():
        assert problem(answer) == (404, "not-found")
        said = answer.json()["detail"]
        assert said == f"the service {service} answers this, if it runs with BOTTOMLESS_BROKER=1"
    health = await harness.client.get("/health")
    assert health.json()["detail"].endswith("BOTTOMLESS_BROKER=1; /readyz says how a server is")


async def test_a_body_without_a_type_hears_which_types_there_are(harness: IngestHarness) -> None:
    """What `curl -d` sends where nobody thinks of a type."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = await harness.client.post(ROUTE, content=b'{"records":[{"value":"a"}]}', headers=form)
    assert problem(answer) == (415, "unsupported-media-type")
    assert "accepted here: application/json, " in answer.json()["detail"]


async def test_text_json_and_base64_in_one_request_are_read_back_as_they_were(
    harness: IngestHarness,
) -> None:
    records = [
        {"value": "hellö", "filter_value": "emea"},
        {"json": {"id": 7, "total": 12.5, "n": None}, "key": "cust-9", "headers": {"type": "o"}},
        {
            "value_base64": "AAEC/w==",
            "event_time": "2026-08-22T09:19:59.120Z",
            "key_base64": "/w==",
        },
        {"value": "", "headers": {"b": {"base64": "/w=="}}},
    ]

    answer = await harness.client.post(ROUTE, json={"records": records})

    assert answer.json() == {
        "stream_id": STREAM,
        "first_offset": 0,
        "last_offset": 3,
        "next_offset": 4,
        "count": 4,
        "duplicates": 0,
        "timestamp": "2025-06-15T15:06:40.000Z",
        "durability": "fsync",
    }
    assert answer.headers["stream-next-offset"] == "4"
    assert answer.headers["stream-id"] == STREAM
    rows = await harness.rows()
    assert [row["value"] for row in rows] == [
        "hellö".encode(),
        b'{"id":7,"total":12.5,"n":null}',
        b"\x00\x01\x02\xff",
        b"",
    ]
    assert [row["content"] for row in rows] == [1, 2, 0, 1]
    assert [row["key"] for row in rows] == [None, b"cust-9", b"\xff", None]
    assert [row["headers"] for row in rows] == [None, [("type", b"o")], None, [("b", b"\xff")]]
    assert [row["filter_value"] for row in rows] == ["emea", None, None, None]
    assert rows[2]["event_time"].isoformat() == "2026-08-22T09:19:59.120000+00:00"


@pytest.mark.parametrize(
    ("records", "pointer"),
    [
        ([], "/records"),
        ([{"value": "a", "json": 1}], "/records/0"),
        ([{"value": "a"}, {}], "/records/1"),
        ([{"value": "a"}, {"value_base64": "AAEC_w=="}], "/records/1/value_base64"),
        ([{"value": "a"}, {"value_base64": "AAE"}], "/records/1/value_base64"),
        ([{"value_base64": "A A="}], "/records/0/value_base64"),
        ([{"value_base64": "AB=="}], "/records/0/value_base64"),
        ([{"value": 7}], "/records/0/value"),
        ([{"value": "a", "timestamp": 1}], "/records/0"),
        ([{"value": "a", "key": "k", "key_base64": ""}], "/records/0"),
        ([{"value": "a", "key": "k" * 1025}], "/records/0/key"),
        ([{"value": "a", "filter_value": "é" * 128}], "/records/0/filter_value"),
        ([{"value": "a", "headers": {"a": 1}}], "/records/0/headers"),
        ([{"value": "a", "headers": {"a": {"base64": "", "x": 1}}}], "/records/0/headers"),
        ([{"value": "a", "headers": {"a": "b" * 4096}}], "/records/0/headers"),
        ([{"value": "a", "headers": {str(n): "" for n in range(33)}}], "/records/0/headers"),
        ([{"value": "a", "event_time": "yesterday"}], "/records/0/event_time"),
        ([{"value": "a", "event_time": True}], "/records/0/event_time"),
        ([{"value": "a", "event_time": 10**15}], "/records/0/event_time"),
        (["a"], "/records/0"),
    ],
)
async def test_a_fault_is_named_by_its_place_and_nothing_is_stored(
    harness: IngestHarness, records: list[Any], pointer: str
) -> None:
    answer = await harness.client.post(ROUTE, json={"records": records})

    assert problem(answer) == (422, "validation-failed")
    assert pointers(answer) == [pointer]
    assert answer.json()["outcome"] == "none"
    assert (await harness.append("next")).json()["first_offset"] == 0


async def test_every_fault_of_a_request_is_named(harness: IngestHarness) -> None:
    answer = await harness.client.post(ROUTE, json={"records": [{}, {"value": "a"}, {"value": 1}]})

    assert pointers(answer) == ["/records/0", "/records/2/value"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"records":[{"json":NaN}]}', 400, "malformed-json"),
        (b'{"records":[{"json":Infinity}]}', 400, "malformed-json"),
        (b'\xef\xbb\xbf{"records":[{"json":1}]}', 400, "malformed-json"),
        (b'{"records":[{"value":"\xff"}]}', 400, "malformed-json"),
        (b'{"records":[],"records":[{"value":"a"}]}', 400, "malformed-json"),
        (b'{"records":[{"json":{"a":1,"a":2}}]}', 400, "malformed-json"),
        (b'{"records":[{"json":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", 400, "malformed-json"),
        (b'{"records":[{"json":' + b"[" * 300 + b"]" * 300 + b"}]}", 422, "validation-failed"),
        (b'{"records":[{"value":"\\ud800"}]}', 422, "validation-failed"),
        (b'{"records":[{"json":["\\ud800"]}]}', 422, "validation-failed"),
        (b'{"records":[{"json":18446744073709551616}]}', 422, "number-out-of-range"),
        (b'{"records":[{"json":1e400}]}', 422, "number-out-of-range"),
        (b'{"record":[]}', 422, "validation-failed"),
        (b"[]", 422, "validation-failed"),
        (b"", 400, "malformed-json"),
    ],
)
async def test_json_with_two_meanings_or_none_is_refused(
    harness: IngestHarness, body: bytes, status: int, code: str
) -> None:
    assert problem(await harness.append_raw(body)) == (status, code)
    assert await harness.append("next")


async def test_integers_of_64_bits_are_kept_and_larger_ones_refused(harness: IngestHarness) -> None:
    body = b'{"records":[{"json":[18446744073709551615,-9223372036854775808]}]}'
    await harness.append_raw(body)

    assert await harness.values() == [b"[18446744073709551615,-9223372036854775808]"]


async def test_a_record_of_one_mib_passes_and_one_byte_more_does_not(
    harness: IngestHarness,
) -> None:
    assert (await harness.append("a" * MIB)).status_code == 200
    answer = await harness.append("b", "a" * (MIB + 1))

    assert problem(answer) == (413, "record-too-large")
    assert answer.json()["limit_bytes"] == MIB
    assert pointers(answer) == ["/records/1/value"]


async def test_ten_thousand_records_pass_and_one_more_does_not(harness: IngestHarness) -> None:
    assert (await harness.append(*["a"] * 10_000)).json()["count"] == 10_000

    assert problem(await harness.append(*["a"] * 10_001)) == (413, "batch-too-large")


async def test_a_large_body_is_refused_alike_with_and_without_its_length(
    harness: IngestHarness,
) -> None:
    async def in_parts() -> Any:
        for _ in range(9):
            yield b"a" * MIB

    json = {"content-type": "application/json"}
    declared = await harness.client.post(ROUTE, content=b"a" * 9 * MIB, headers=json)
    chunked = await harness.client.post(ROUTE, content=in_parts(), headers=json)

    assert problem(declared) == problem(chunked) == (413, "body-too-large")
    members = declared.json(), chunked.json()
    assert members[0].keys() == members[1].keys()


async def test_a_raw_record_is_stored_as_it_is(harness: IngestHarness) -> None:
    headers = {"content-type": "application/octet-stream", "stream-key": "k"}
    answer = await harness.append_raw(b"\x00\xff", **headers, **{"stream-filter-value": "f"})
    await harness.append_raw(b"", **headers)

    assert answer.json()["count"] == 1
    rows = await harness.rows()
    assert rows[0] == {"offset": 0, "value": b"\x00\xff", "key": b"k", "filter_value": "f"}
    assert rows[1]["value"] == b""
    long_key = {**headers, "stream-key": "k" * 1025}
    assert problem(await harness.append_raw(b"", **long_key)) == (400, "bad-header")
    assert problem(await harness.append_raw(b"a" * (MIB + 1), **headers)) == (
        413,
        "record-too-large",
    )


@pytest.mark.parametrize("name", ["stream-key", "stream-filter-value"])
async def test_a_header_of_raw_records_is_refused_with_others_and_never_dropped(
    harness: IngestHarness, name: str
) -> None:
    json = {"content-type": "application/json", name: "k"}
    answer = await harness.append_raw(b'{"records": [{"value": "a"}]}', **json)

    assert problem(answer) == (400, "bad-header")
    assert answer.json()["errors"][0]["header"] == name
    assert await harness.rows() == []


@pytest.mark.parametrize("media_type", ["text/plain", "", "application/json; charset=utf-16"])
async def test_another_media_type_is_refused_with_those_that_are_taken(
    harness: IngestHarness, media_type: str
) -> None:
    answer = await harness.append_raw(b"{}", **{"content-type": media_type})

    assert problem(answer) == (415, "unsupported-media-type")
    assert "application/vnd.apache.arrow.stream" in answer.headers["accept-post"]


@pytest.mark.parametrize(
    ("headers", "query", "expected"),
    [
        ({"content-encoding": "deflate"}, "", (415, "unsupported-media-type")),
        ({"content-encoding": "gzip, zstd"}, "", (415, "unsupported-media-type")),
        ({"producer-seq": "0"}, "", (400, "bad-header")),
        ({}, "?sync=true", (400, "unknown-parameter")),
    ],
)
async def test_what_is_not_known_is_never_ignored(
    harness: IngestHarness, headers: dict[str, str], query: str, expected: tuple[int, str]
) -> None:
    answer = await harness.client.post(
        ROUTE + query, json={"records": [{"value": "a"}]}, headers=headers
    )

    assert problem(answer) == expected


async def test_who_wants_no_body_gets_none(harness: IngestHarness) -> None:
    answer = await harness.client.post(
        ROUTE, json={"records": [{"value": "a"}]}, headers={"prefer": "wait=5, return=minimal"}
    )

    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["stream-first-offset-appended"] == "0"
    assert answer.headers["stream-next-offset"] == "1"
    assert answer.headers["preference-applied"] == "return=minimal"


async def test_streams_that_do_not_exist_and_names_that_cannot(harness: IngestHarness) -> None:
    body = {"records": [{"value": "a"}]}

    unknown = await harness.client.post("/v1/streams/nobody/records", json=body)
    impossible = await harness.client.post("/v1/streams/..%2e/records", json=body)
    wrong_method = await harness.client.put(ROUTE, json=body)

    assert problem(unknown) == (404, "stream-not-found")
    assert impossible.status_code in (400, 404)
    assert problem(wrong_method) == (405, "method-not-allowed")
    assert wrong_method.headers["allow"] == "POST"


async def test_a_client_that_leaves_within_its_body_stores_nothing(harness: IngestHarness) -> None:
    messages = [
        {"type": "http.request", "body": b'{"records":[', "more_body": True},
        {"type": "http.disconnect"},
    ]
    scope = scope_of({"content-type": "application/json"}, method="POST", path=ROUTE)
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await harness.service.public(scope, receive, send)

    assert sent == []
    assert (await harness.append("next")).json()["first_offset"] == 0


async def test_arrow_streams_of_pyarrow_and_polars_are_taken(harness: IngestHarness) -> None:
    table = pa.table({"value": [b"a", b"b", b"c"], "key": [None, b"k", None]})
    frame = pl.DataFrame({"value": ["d", "e" * 40, ""], "key": ["x", None, "y" * 20]})
    polars_stream = io.BytesIO()
    frame.write_ipc_stream(polars_stream)

    first = await harness.append_raw(arrow(table), **ARROW)
    second = await harness.append_raw(polars_stream.getvalue(), **ARROW)

    assert first.json()["count"] == second.json()["count"] == 3
    assert await harness.values() == [b"a", b"b", b"c", b"d", b"e" * 40, b""]
    rows = await harness.rows()
    assert [row["key"] for row in rows] == [None, b"k", None, b"x", None, b"y" * 20]
    assert [row.get("content") for row in rows] == [None, None, None, 1, 1, 1]


async def test_appends_at_once_get_dense_offsets_and_keep_their_order(
    harness: IngestHarness,
) -> None:
    """Scenario A22, smaller."""

    async def client(number: int) -> list[tuple[int, list[bytes]]]:
        acknowledged = []
        for turn in range(20):
            values = [f"{number}.{turn}.{item}" for item in range(5)]
            if number % 2:
                answer = await harness.append(*values)
            else:
                answer = await harness.append_raw(arrow(pa.table({"value": values})), **ARROW)
            acknowledged.append((answer.json()["first_offset"], [v.encode() for v in values]))
        return acknowledged

    acknowledged = await asyncio.gather(*(client(number) for number in range(10)))
    stored = await harness.values()

    assert len(stored) == 1000
    for appends in acknowledged:
        assert [first for first, _ in appends] == sorted(first for first, _ in appends)
        for first, values in appends:
            assert stored[first : first + 5] == values


async def test_an_append_larger_than_a_chunk_is_a_group_that_is_never_split(tmp_path: Any) -> None:
    harness = await IngestHarness(tmp_path / "ingest", ingest_chunk_size_max=4096).declare()
    await harness.start()
    await harness.append("before")
    answer = await harness.append(*[f"{n:04}" + "x" * 1000 for n in range(20)])
    await harness.append("after")

    assert answer.json()["count"] == 20
    run = await harness.chunks(1, max_bytes=1)
    assert int(run.headers["chunks-next-offset"]) == 21
    assert len(await harness.values()) == 22
    after = harness.after_crash()
    await after.start()
    assert await after.values() == await harness.values()
    await after.aclose()
    await harness.aclose()


async def test_names_are_asked_once_for_many_appends(harness: IngestHarness) -> None:
    await asyncio.gather(*(harness.append("a") for _ in range(10)))

    assert harness.manifest.questions == 1
    harness.time.advance(7_999)
    await harness.append("b")
    await eventually(lambda: harness.manifest.questions == 2)


async def test_a_close_that_is_broken_off_lets_the_round_end_and_another_close_goes_on(
    harness: IngestHarness,
) -> None:
    """A stop of the service breaks off a look at claims, which may just be closing a stream.

    It ended the round in the middle of a write then, and the stop with it; no test broke off
    the one and went on with the other, and only a slow machine met it by luck.
    """
    await harness.append("before")
    appender, why = harness.appender, Unavailable("it stops", code=Code.DRAINING)
    with harness.files.standing_still():
        answer = asyncio.create_task(harness.append("under way"))
        await eventually(lambda: appender.tracking.busy)
        closing = asyncio.create_task(appender.close(why, leave=True))
        await eventually(lambda: appender.stopped is not None)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert (await answer).status_code == 200

    await appender.close(why, leave=True)
    assert appender.closed
