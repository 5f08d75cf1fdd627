"""Stored offsets of consumers over HTTP: scenarios C1 to C8 and C11."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from support.contract import QUICK, Stream, new_stream, problem_of
from support.server import AllInOne
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "300",
    "BOTTOMLESS_MANIFEST_CONSUMER_SNAPSHOT_MS": "200",
    "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "50",
}


@pytest.fixture
def stream(client: httpx.Client) -> Stream:
    """Twenty records, none of them processed."""
    made = new_stream(client, QUICK)
    made.append(*(f"r{number}" for number in range(20)))
    return made


def place(stream: Stream, consumer: str = "billing") -> str:
    return f"{stream.path}/consumers/{consumer}/offset"


def commit(stream: Stream, consumer: str = "billing", /, **body: Any) -> httpx.Response:
    return stream.client.put(place(stream, consumer), json=body)


def stored(stream: Stream, consumer: str = "billing") -> dict[str, Any]:
    answer = stream.client.get(place(stream, consumer))
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_after_the_commit_of_offset_0_a_consumer_goes_on_at_1(stream: Stream) -> None:
    """C1."""
    answer = commit(stream, offset=0)
    assert answer.status_code == 200
    body = answer.json()
    assert (body["consumer"], body["offset"], body["next_offset"]) == ("billing", 0, 1)
    assert (body["changed"], body["lag_records"]) == (True, 19)
    assert answer.headers["etag"] == body["etag"]
    page = stream.page("stored", consumer="billing")
    assert page["records"][0]["offset"] == 1


def test_what_was_never_committed_is_not_offset_0(stream: Stream) -> None:
    """C2."""
    client = stream.client
    problem_of(client.get(place(stream)), 404, "offset-not-found")
    problem_of(client.get(f"{stream.path}/consumers/billing"), 404, "consumer-not-found")
    problem_of(client.delete(place(stream)), 404, "offset-not-found")
    unknown = Stream(client, "never-created")
    problem_of(client.get(place(unknown)), 404, "stream-not-found")
    problem_of(commit(unknown, offset=0), 404, "stream-not-found")
    listed = client.get(f"{stream.path}/consumers").json()
    assert listed == {"items": [], "next_page_token": None, "unreadable": []}


def test_a_stored_offset_goes_back_only_where_that_is_said(stream: Stream) -> None:
    """C3."""
    commit(stream, offset=10)
    problem = problem_of(commit(stream, offset=5), 409, "offset-regression")
    assert (problem["offset"], problem["next_offset"], problem["outcome"]) == (10, 11, "none")
    assert stored(stream)["offset"] == 10

    assert commit(stream, offset=5, allow_regression=True).json()["offset"] == 5
    assert stored(stream)["next_offset"] == 6
    start = commit(stream, next_offset=0, allow_regression=True).json()
    assert (start["offset"], start["next_offset"]) == (None, 0)


def test_nobody_has_processed_what_is_not_there(stream: Stream) -> None:
    """C4: the end itself is there, and one record beyond it is not."""
    problem = problem_of(commit(stream, offset=20), 422, "offset-beyond-end")
    assert problem["next_offset"] == 20
    problem_of(commit(stream, next_offset=21), 422, "offset-beyond-end")
    problem_of(stream.client.get(place(stream)), 404, "offset-not-found")
    assert commit(stream, offset=19).json()["lag_records"] == 0
    problem_of(commit(new_stream(stream.client), offset=0), 422, "offset-beyond-end")


def test_the_same_commit_again_changes_nothing(stream: Stream) -> None:
    """C5."""
    first, second = commit(stream, offset=3), commit(stream, next_offset=4)
    assert (first.json()["changed"], second.json()["changed"]) == (True, False)
    assert first.headers["etag"] == second.headers["etag"]
    assert first.json()["committed_at"] == second.json()["committed_at"]


def test_a_consumer_that_trim_has_passed_hears_of_it(client: httpx.Client) -> None:
    """C7, C8: what is gone is no lag."""
    stream = new_stream(client, QUICK)
    for _ in range(3):
        stream.append(*("x" * 700 for _ in range(100)))
        stream.wait_uploaded()
    commit(stream, offset=9)
    assert stored(stream)["lag_records"] == 290
    answer = client.post(f"{stream.path}/trim", json={"before_offset": 150})
    assert answer.status_code == 202, answer.text
    floor = answer.json()["effective_before_offset"]
    assert 10 < floor <= 150
    until(lambda: stream.bounds()["first_offset"] == floor, what="the trim")

    problem_of(
        stream.get("stored", consumer="billing", on_out_of_range="error"), 410, "offset-trimmed"
    )
    page = stream.page("stored", consumer="billing")
    assert (page["start_offset"], page["clamped"]) == (floor, "low")
    seen = stored(stream)
    assert (seen["lag_records"], seen["clamped_on_resume"]) == (300 - floor, True)
    assert seen["next_offset"] == 10


def test_lag_is_exact_at_the_tail_behind_it_and_of_an_empty_stream(stream: Stream) -> None:
    """C8."""
    commit(stream, offset=19)
    seen = stored(stream)
    assert (seen["lag_records"], seen["lag_seconds"], seen["lag_bytes"]) == (0, 0, 0)
    stream.append("a", "b", "c")
    seen = stored(stream)
    assert seen["lag_records"] == 3
    assert 0 <= seen["lag_seconds"] < 240
    assert seen["lag_bytes"] > 3
    (listed,) = stream.client.get(f"{stream.path}/consumers").json()["items"]
    assert listed["lag_records"] == 3
    assert listed["lag_bytes"] > 3
    stream.wait_uploaded()
    assert stored(stream)["lag_bytes"] > 3, "the manifest tells it by now"
    empty = new_stream(stream.client)
    assert commit(empty, next_offset=0).json()["lag_records"] == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"offset": 1, "next_offset": 2}',
        b"{}",
        b'{"offset": null}',
        b'{"offset": "5"}',
        b'{"offset": 5.0}',
        b'{"offset": true}',
        b'{"offset": -1}',
        b'{"offset": 9007199254740992}',
        b'{"next_offset": 9007199254740993}',
        b'{"offset": 1, "generation": "1"}',
        b'{"offset": 1, "allow_regression": "yes"}',
        b'{"offset": 1, "allow_regression": 1}',
        b"[]",
        b"null",
        b"7",
    ],
)
def test_a_commit_outside_the_schema_stores_nothing(stream: Stream, body: bytes) -> None:
    """C11."""
    headers = {"content-type": "application/json"}
    answer = stream.client.put(place(stream), content=body, headers=headers)
    problem = problem_of(answer, 422, "validation-failed")
    assert problem["errors"]
    problem_of(stream.client.get(place(stream)), 404, "offset-not-found")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 415),
        (b'{"offset": 1, "offset": 2}', 400),
        (b'{"offset": NaN}', 400),
        (b'{"offset": 1e400}', 422),
        (b'{"offset": 18446744073709551616}', 422),
        (b"{" + b" " * 5000 + b"}", 413),
    ],
)
def test_an_unreadable_commit_stores_nothing(stream: Stream, body: bytes, code: int) -> None:
    headers = {"content-type": "application/json"} if body else {}
    answer = stream.client.put(place(stream), content=body, headers=headers)
    assert answer.status_code == code, answer.text
    problem_of(stream.client.get(place(stream)), 404, "offset-not-found")


def test_a_commit_may_depend_on_the_one_before(stream: Stream) -> None:
    first = commit(stream, offset=1).headers["etag"]
    headers = {"if-match": first}
    client, path = stream.client, place(stream)
    second = client.put(path, json={"offset": 2}, headers=headers)
    assert second.status_code == 200
    problem = problem_of(
        client.put(path, json={"offset": 3}, headers=headers), 412, "etag-mismatch"
    )
    assert problem["current_etag"] == second.headers["etag"] != first
    problem_of(client.delete(path, headers=headers), 412, "etag-mismatch")
    nobody = client.put(place(stream, "nobody"), json={"offset": 1}, headers={"if-match": "*"})
    assert problem_of(nobody, 412, "etag-mismatch")["current_etag"] is None


def test_a_forgotten_consumer_is_gone_and_begins_anew_under_another_tag(stream: Stream) -> None:
    first = commit(stream, offset=1).headers["etag"]
    answer = stream.client.delete(place(stream))
    assert (answer.status_code, answer.content) == (204, b"")
    problem_of(stream.client.get(place(stream)), 404, "offset-not-found")
    assert commit(stream, offset=1).headers["etag"] != first


def test_consumers_are_listed_in_the_order_of_their_names(stream: Stream) -> None:
    for number, consumer in enumerate(["b", "a-1", "a", "B", "a.1"]):
        commit(stream, consumer, offset=number)
    commit(new_stream(stream.client), "elsewhere", next_offset=0)
    found, token = [], None
    while True:
        query: dict[str, Any] = {"limit": 2} | ({} if token is None else {"page_token": token})
        answer = stream.client.get(f"{stream.path}/consumers", params=query).json()
        found += answer["items"]
        token = answer["next_page_token"]
        if token is None:
            break
    assert [item["consumer"] for item in found] == ["B", "a", "a-1", "a.1", "b"]
    assert [item["offset"] for item in found] == [3, 2, 1, 4, 0]
    assert found[1]["lag_records"] == 17
    one = stream.client.get(f"{stream.path}/consumers/a").json()
    # What grows, or is told by the manifest once it is uploaded.
    later = {name: one[name] for name in ("durability", "lag_seconds", "lag_bytes")}
    assert {**found[1], **later} == one


def test_a_commit_reaches_the_object_store_and_says_so(running: AllInOne, stream: Stream) -> None:
    assert commit(stream, offset=7).json()["durability"] == "coordination"
    until(lambda: stored(stream)["durability"] == "snapshot", what="the snapshot")
    stream_id = stream.client.get(stream.path).json()["stream_id"]
    metadata = running.objects / "default" / stream_id / "metadata"
    newest = max(metadata.glob("consumers.*.json"))
    assert b'["billing",8,' in newest.read_bytes()
    commit(stream, offset=8)
    until(lambda: stored(stream)["durability"] == "snapshot", what="the next snapshot")
    assert b'["billing",9,' in max(metadata.glob("consumers.*.json")).read_bytes()


def test_commits_survive_kill_9(tmp_path: Path) -> None:
    """A commit that was answered is kept, whatever it had reached."""
    with AllInOne(tmp_path / "data", SETTINGS) as server:
        with server.client() as client:
            stream = new_stream(client)
            stream.append(*"abcdef")
            for offset in range(5):
                assert commit(stream, offset=offset).status_code == 200
        server.kill()
        server.start()
        with server.client() as client:
            again = Stream(client, stream.name)
            assert stored(again)["offset"] == 4
            until(lambda: stored(again)["durability"] == "snapshot", what="the snapshot")
