"""Appends over HTTP: scenarios A1 to A7, A22, A23, as JSON and as one raw record."""

import base64
import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.arrow import arrow_of
from support.contract import (
    JSON,
    Stream,
    connect,
    pointers,
    problem_of,
)
from support.served import Served
from support.waiting import until

MIB = 1024 * 1024
MOST_RECORDS = 10_000
CLIENTS, APPENDS, EACH = 20, 100, 5


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


def test_a_file_may_be_as_large_as_the_limit_and_no_larger(stream: Stream) -> None:
    """A6, by curl, and in bytes and not characters."""
    headers = {"content-type": "application/octet-stream"}
    client = stream.client
    assert client.post(stream.records, content=bytes(MIB), headers=headers).status_code == 200
    answer = client.post(stream.records, content=bytes(MIB + 1), headers=headers)
    assert problem_of(answer, 413, "record-too-large")["outcome"] == "none"
    assert stream.post({"value": "é" * (MIB // 2)}).status_code == 200
    problem_of(stream.post({"value": "é" * (MIB // 2 + 1)}), 413, "record-too-large")
    encoded = base64.b64encode(bytes(MIB + 1)).decode()
    problem_of(stream.post({"value_base64": encoded}), 413, "record-too-large")
    assert stream.next_offset() == 2


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


def test_many_clients_get_dense_offsets_in_their_own_order(running: Served, stream: Stream) -> None:
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
    running: Served, stream: Stream, framing: bytes, media_type: str
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
        leaving.settimeout(240)
        while leaving.recv(65_536):
            pass
    assert stream.next_offset() == 0
    stream.append("the next one")
    assert [record["value"] for record in stream.page()["records"]] == ["the next one"]


def test_a_client_that_does_not_wait_for_its_answer_has_appended(
    running: Served, stream: Stream
) -> None:
    """A23, from the other side: a whole body is an append, whole."""
    connection = connect(running)
    body = b'{"records": [{"value": "a"}, {"value": "b"}]}'
    connection.request("POST", stream.records, body, {"Content-Type": JSON})
    connection.close()
    until(lambda: stream.next_offset() in {0, 2}, what="all or nothing")
    assert len(stream.page()["records"]) in {0, 2}


def test_an_append_to_an_unknown_stream_makes_none(client: httpx.Client) -> None:
    problem = problem_of(Stream(client, "nobody").post({"value": "a"}), 404, "stream-not-found")
    assert problem["outcome"] == "none"
    assert client.get("/v1/streams/nobody").status_code == 404
