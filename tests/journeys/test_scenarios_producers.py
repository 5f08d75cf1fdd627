"""Idempotent and conditional appends over HTTP: scenarios D1 to D15, and M41; over both profiles."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.contract import (
    QUICK,
    Stream,
    first_offset_once_taken,
    new_stream,
    pointers,
    problem_of,
)
from support.served import Served
from support.server import AllInOne
from support.waiting import until

SMALL = {
    "BOTTOMLESS_INGEST_SEGMENT_SIZE_MAX": "65536",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "200",
}
"""Segments that fill up and go within a test."""


SETTINGS = {"BOTTOMLESS_INGEST_WAL_LINGER_MS": "1"}
"""A leaderless append waits for nobody."""


@pytest.fixture(scope="module", params=["local", "leaderless"])
def profile(client: httpx.Client, request: pytest.FixtureRequest) -> str:
    """Of the streams; appends to such a stream are taken."""
    # A writer of leaderless streams compares what it finds with the bucket first.
    first = new_stream(client, {"profile": request.param})
    first_offset_once_taken(lambda: first.post({"value": "first"}))
    found: str = request.param
    return found


@pytest.fixture
def stream(client: httpx.Client, profile: str) -> Stream:
    """A stream of its own, of either profile."""
    return new_stream(client, {"profile": profile})


def send(stream: Stream, *values: str, **headers: object) -> httpx.Response:
    named = {name.replace("_", "-"): str(value) for name, value in headers.items()}
    records = [{"value": value} for value in values]
    return stream.client.post(stream.records, json={"records": records}, headers=named)


def strict(
    stream: Stream, number: int, count: int = 10, who: str = "p", **headers: object
) -> httpx.Response:
    values = [f"{who}{n}" for n in range(number, number + count)]
    return send(stream, *values, producer_id=who, producer_seq=number, **headers)


def highwater(stream: Stream, *ids: int, who: str = "p") -> httpx.Response:
    records = [{"value": f"{who}{n}", "publishing_id": n} for n in ids]
    headers = {"producer-id": who}
    return stream.client.post(stream.records, json={"records": records}, headers=headers)


def producer(stream: Stream, name: str = "p") -> httpx.Response:
    return stream.client.get(f"{stream.path}/producers/{name}")


def values_of(stream: Stream) -> list[str]:
    return [record["value"] for record in stream.page(limit=10_000)["records"]]


def replayed(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["idempotent-replayed"] == "true"
    body: dict[str, Any] = answer.json()
    return body


def test_a_byte_identical_repeat_gets_the_same_offsets(stream: Stream) -> None:
    """D1."""
    first = strict(stream, 0)
    assert (first.status_code, first.json()["count"]) == (200, 10)
    again = replayed(strict(stream, 0))
    assert again == {**first.json(), "count": 0, "duplicates": 10}
    assert stream.next_offset() == 10


def test_a_gap_in_the_numbers_is_refused_and_can_be_filled(stream: Stream) -> None:
    """D2."""
    strict(stream, 0)
    gap = problem_of(strict(stream, 11), 409, "producer-sequence-gap")
    assert (gap["expected_seq"], gap["received_seq"]) == (10, 11)
    assert (gap["retryable"], gap["outcome"]) == (True, "none")
    assert strict(stream, 10, 1).status_code == 200
    assert strict(stream, 11).status_code == 200
    assert values_of(stream) == [f"p{n}" for n in range(21)]


def test_numbers_that_overlap_are_refused_with_the_last_one(stream: Stream) -> None:
    """D4."""
    strict(stream, 0)
    overlap = problem_of(strict(stream, 5), 409, "producer-sequence-overlap")
    assert (overlap["last_seq"], overlap["retryable"]) == (9, False)
    others = send(stream, *"0123456789", producer_id="p", producer_seq=0)
    assert problem_of(others, 409, "producer-sequence-overlap")["last_seq"] == 9
    assert stream.next_offset() == 10


def test_the_same_numbers_in_another_epoch_are_not_the_same_append(stream: Stream) -> None:
    """D4: somebody else wrote these."""
    strict(stream, 0)
    overlap = problem_of(strict(stream, 0, producer_epoch=1), 409, "producer-sequence-overlap")
    assert overlap["last_seq"] == 9
    assert strict(stream, 10, 1, producer_epoch=1).json()["first_offset"] == 10


def test_what_is_too_old_to_be_remembered_is_still_a_repeat(stream: Stream) -> None:
    """D1: nobody knows any more where it went, but that it was written."""
    for number in range(20):
        assert strict(stream, number, 1).status_code == 200
    forgotten = strict(stream, 0, 1)
    assert forgotten.status_code == 200
    assert (forgotten.json()["first_offset"], forgotten.json()["duplicates"]) == (None, 1)
    # The last five at least are remembered.
    for number in range(15, 20):
        assert replayed(strict(stream, number, 1))["first_offset"] == number
    assert stream.next_offset() == 20


def test_a_gap_that_is_filled_in_time_is_none(running: Served, stream: Stream) -> None:
    """D2: requests that overtook each other; in order, or refused to be sent again."""
    strict(stream, 0)

    def late() -> httpx.Response:
        with running.client() as mine:
            return strict(Stream(mine, stream.name), 20)

    with ThreadPoolExecutor(1) as pool:
        overtaking = pool.submit(late)
        with suppress(TimeoutError):
            overtaking.result(0.3)
        assert strict(stream, 10).json()["first_offset"] == 10
        answer = overtaking.result(240)
    if answer.status_code != 200:
        assert problem_of(answer, 409, "producer-sequence-gap")["retryable"] is True
        answer = strict(stream, 20)
    assert answer.json()["first_offset"] == 20
    assert values_of(stream) == [f"p{n}" for n in range(30)]


def test_an_older_epoch_is_fenced(stream: Stream) -> None:
    """D5."""
    strict(stream, 0, producer_epoch=2)
    fenced = problem_of(strict(stream, 10, producer_epoch=1), 409, "producer-fenced")
    assert (fenced["current_epoch"], fenced["retryable"]) == (2, False)
    raised = stream.client.post(f"{stream.path}/producers/p/epoch").json()
    assert (raised["epoch"], raised["last_seq"]) == (3, 9)
    problem_of(strict(stream, 10, producer_epoch=2), 409, "producer-fenced")
    assert strict(stream, 10, producer_epoch=3).json()["first_offset"] == 10


def test_what_a_high_water_mark_covers_is_dropped_and_reported(stream: Stream) -> None:
    """D7."""
    assert highwater(stream, 1, 2, 5).json()["count"] == 3
    mixed = highwater(stream, 3, 6).json()
    assert (mixed["first_offset"], mixed["count"], mixed["duplicates"]) == (3, 1, 1)
    assert values_of(stream) == ["p1", "p2", "p5", "p6"]
    assert producer(stream).json()["last_seq"] == 6


@pytest.mark.parametrize("ids", [(1, 1), (2, 1), (1, 3, 2)])
def test_ids_must_increase_within_a_request(stream: Stream, ids: tuple[int, ...]) -> None:
    """D8."""
    refused = problem_of(highwater(stream, *ids), 422, "validation-failed")
    assert pointers(refused) == [f"/records/{len(ids) - 1}/publishing_id"]
    assert stream.next_offset() == 0


def test_producers_are_independent_of_each_other(stream: Stream) -> None:
    """D9."""
    for who in ("a", "b"):
        assert highwater(stream, 1, 2, who=who).json()["duplicates"] == 0
        assert strict(stream, 0, 2, who=f"{who}s").json()["duplicates"] == 0
    assert stream.next_offset() == 8
    known = stream.client.get(f"{stream.path}/producers", params={"limit": 3}).json()
    assert [item["producer_id"] for item in known["items"]] == ["a", "as", "b"]
    assert known["next_page_token"]


def test_an_unknown_producer_in_the_middle_of_its_numbers_must_say_so(stream: Stream) -> None:
    """D10."""
    problem_of(strict(stream, 500), 409, "producer-unknown")
    assert strict(stream, 500, producer_start="any").status_code == 200
    assert replayed(strict(stream, 500, producer_start="any"))["first_offset"] == 0


def test_a_repeat_is_one_after_a_restart_of_everything(tmp_path: Path) -> None:
    """D11: by a stop and by a kill, and with the other modes."""
    server = AllInOne(tmp_path / "data")
    with server, server.client() as client:
        stream = new_stream(client)
        first = strict(stream, 0).json()
        highwater(stream, 1, 2, who="h")
        keyed = send(stream, "k", idempotency_key="k").json()
        send(stream, "t", producer_id="t", txn_number=7)
        assert server.stop() == 0
    for _ in range(2):
        with server, server.client() as client:
            stream = Stream(client, stream.name)
            assert replayed(strict(stream, 0))["first_offset"] == first["first_offset"]
            assert replayed(highwater(stream, 1, 2, who="h"))["duplicates"] == 2
            assert replayed(send(stream, "k", idempotency_key="k")) == keyed
            assert replayed(send(stream, "t", producer_id="t", txn_number=7))["duplicates"] == 1
            assert stream.next_offset() == 14
            server.kill()


def test_what_is_known_of_a_producer_can_be_asked(stream: Stream) -> None:
    """D12."""
    problem_of(producer(stream), 404, "producer-not-found")
    strict(stream, 0, 1)
    assert producer(stream).json()["last_seq"] == 0
    assert producer(stream).json()["mode"] == "strict"
    assert stream.client.delete(f"{stream.path}/producers/p").status_code == 204
    problem_of(producer(stream), 404, "producer-not-found")


def test_a_key_means_one_request(stream: Stream) -> None:
    """D14."""
    first = send(stream, "v", idempotency_key="key 1")
    assert replayed(send(stream, "v", idempotency_key="key 1")) == first.json()
    problem_of(send(stream, "w", idempotency_key="key 1"), 422, "idempotency-mismatch")
    assert stream.next_offset() == 1


def test_a_key_sent_by_many_at_once_is_stored_once(running: Served, stream: Stream) -> None:
    """D14, in parallel."""

    def once(_: int) -> httpx.Response:
        with running.client() as mine:
            return send(Stream(mine, stream.name), "v", idempotency_key="k")

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(once, range(10)))
    stored = [a for a in answers if a.status_code == 200]
    assert sum("idempotent-replayed" not in answer.headers for answer in stored) == 1
    assert {answer.json()["first_offset"] for answer in stored} == {0}
    for answer in answers:
        if answer.status_code != 200:
            problem = problem_of(answer, 409, "idempotency-in-flight")
            assert problem["retryable"]
            assert answer.headers["retry-after"] == "1"
    assert stream.next_offset() == 1


def test_of_ten_writers_who_expect_the_same_end_one_writes(running: Served, stream: Stream) -> None:
    """D15."""
    stream.append("before")

    def once(number: int) -> httpx.Response:
        with running.client() as mine:
            return send(Stream(mine, stream.name), str(number), stream_expected_offset=1)

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(once, range(10)))
    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 9
    for answer in answers:
        if answer.status_code == 412:
            assert problem_of(answer, 412, "offset-mismatch")["next_offset"] == 2
    assert stream.next_offset() == 2


@pytest.mark.parametrize(
    "headers",
    [
        {"producer_seq": 0},
        {"producer_id": "p", "producer_seq": "00"},
        {"producer_id": "p", "producer_seq": 0, "idempotency_key": "k"},
        {"producer_id": "a/b", "producer_seq": 0},
        {"stream_expected_offset": -1},
        {"idempotency_key": "k" * 256},
    ],
)
def test_headers_that_mean_nothing_are_refused(stream: Stream, headers: dict[str, Any]) -> None:
    problem = problem_of(send(stream, "v", **headers), 400, "bad-header")
    assert problem["errors"][0]["header"].replace("-", "_") in headers
    assert stream.next_offset() == 0


def test_a_producer_has_one_mode(stream: Stream) -> None:
    strict(stream, 0)
    conflict = problem_of(highwater(stream, 1), 409, "producer-mode-conflict")
    assert conflict["mode"] == "strict"


def test_a_repeat_is_one_after_its_original_left_the_local_disk(tmp_path: Path) -> None:
    """M41: and the chunks that say so trouble no reader of what was uploaded."""
    server = AllInOne(tmp_path / "data", SMALL)
    local = tmp_path / "data" / "ingest" / "streams"
    with server, server.client() as client:
        stream = new_stream(client, QUICK)
        answer = strict(stream, 0)
        assert answer.status_code == 200, answer.text
        first = answer.json()
        filling = "x" * 30_000
        for number in range(6):
            send(stream, filling, producer_id="f", producer_seq=number)
            # Writes a chunk without records, which is uploaded with those around it.
            raised = client.post(f"{stream.path}/producers/q/epoch")
            assert raised.json()["epoch"] == number + 1
        stream.wait_uploaded()
        segments = local / first["stream_id"]
        until(lambda: len(list(segments.glob("*.segment"))) == 1, what="old segments to go")
        assert int(next(segments.glob("*.segment")).name[:20]) > first["last_offset"]
        assert replayed(strict(stream, 0))["first_offset"] == first["first_offset"]
        server.kill()
    with server, server.client() as client:
        stream = Stream(client, stream.name)
        assert replayed(strict(stream, 0))["first_offset"] == first["first_offset"]
        assert strict(stream, 10, 1).json()["first_offset"] == 16
        page = stream.page(limit=100)
        assert [record["offset"] for record in page["records"]] == list(range(17))
        stream.wait_uploaded()
        assert stream.client.get(f"{stream.path}/producers/q").json()["epoch"] == 6
        by_time = stream.page(f"timestamp:{page['records'][12]['timestamp']}", limit=1)
        assert by_time["records"][0]["timestamp"] == page["records"][12]["timestamp"]
        assert [r["value"] for r in stream.page(limit=100)["records"]] == [
            *[f"p{n}" for n in range(10)],
            *[filling] * 6,
            "p10",
        ]
