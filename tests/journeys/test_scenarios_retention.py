"""Retention, trim and leases over HTTP, against the real program: the T rows, R4, M19 to M26, L30.

Fragments of a few records, groups of four, no grace and short intervals, so that what takes
hours in production takes a second here; what is waited for is a fact, with a deadline.
What is cut and read afterwards is tried on streams of both profiles, in one bucket.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.contract import QUICK, Stream, first_offset_once_taken, new_stream, problem_of
from support.rounds import compact_now
from support.server import AllInOne
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_MANIFEST_FANOUT": "4",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "100",
    "BOTTOMLESS_MANIFEST_RETENTION_INTERVAL_MS": "300",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "2000",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "50",
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "1",
    "BOTTOMLESS_MANIFEST_WAL_VACUUM_MS": "200",
}
EACH = 10
LEADERLESS = {"profile": "leaderless", "fragment": {"max_age_ms": 1_800_000}}
"""It is compacted when a test asks for it."""
Fill = Callable[[int], Stream]
"""Makes a stream of so many fragments of ten records."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("retention") / "data", SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def client(running: AllInOne) -> Iterator[httpx.Client]:
    with running.client() as connected:
        yield connected


@dataclass(frozen=True)
class LeaderlessStream(Stream):
    """Its records are in object storage after a round of compaction."""

    server: AllInOne

    def uploaded(self) -> bool:
        compact_now(self.server)
        return super().uploaded()


@pytest.fixture(params=["local", "leaderless"])
def fill(request: pytest.FixtureRequest, running: AllInOne, client: httpx.Client) -> Fill:
    """L30: of a stream of each profile."""

    def made(fragments: int) -> Stream:
        if request.param == "local":
            return filled(client, fragments)
        stream = LeaderlessStream(client, new_stream(client, LEADERLESS).name, running)
        # A writer compares what it finds with the bucket first, and may be asked too early.
        first_offset_once_taken(
            lambda: stream.post(*({"value": f"value {n}"} for n in range(EACH)))
        )
        stream.wait_uploaded()
        grow(stream, fragments - 1)
        return stream

    return made


def filled(client: httpx.Client, fragments: int) -> Stream:
    """A stream of as many fragments of ten records, all in object storage."""
    stream = new_stream(client, QUICK)
    grow(stream, fragments)
    return stream


def grow(stream: Stream, fragments: int) -> None:
    for _ in range(fragments):
        first = stream.next_offset()
        stream.append(*(f"value {first + n}" for n in range(EACH)))
        stream.wait_uploaded()


def ask(stream: Stream, path: str, body: Any = None, status: int = 200) -> dict[str, Any]:
    answer = stream.client.post(f"{stream.path}/{path}", json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def finished(stream: Stream, accepted: dict[str, Any]) -> dict[str, Any]:
    """The operation behind a 202, when it has succeeded."""
    found: dict[str, Any] = {}

    def done() -> bool:
        found.update(stream.client.get(f"/v1/operations/{accepted['operation_id']}").json())
        assert found["state"] != "failed", found
        return bool(found["state"] == "succeeded")

    until(done, what="the operation finished")
    return found


def trim(stream: Stream, before_offset: int, **members: Any) -> dict[str, Any]:
    accepted = ask(stream, "trim", {"before_offset": before_offset, **members}, 202)
    result = finished(stream, accepted)["result"]
    wait_floor(stream, result["first_offset"])
    return accepted


def wait_floor(stream: Stream, floor: int) -> None:
    until(lambda: stream.bounds()["first_offset"] == floor, what=f"a floor of {floor}")


def fragments(stream: Stream) -> list[dict[str, Any]]:
    answer = stream.client.get(f"{stream.path}/fragments")
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["fragments"]
    return items


def limit(stream: Stream, **retention: Any) -> None:
    answer = stream.client.patch(
        stream.path,
        json={"retention": retention},
        headers={
            "content-type": "application/merge-patch+json",
            "if-match": stream.client.get(stream.path).headers["etag"],
        },
    )
    assert answer.status_code == 200, answer.text


def test_a_trim_goes_to_the_start_of_the_fragment_and_never_further(fill: Fill) -> None:
    """T6, R4."""
    stream = fill(8)

    accepted = trim(stream, 57)

    assert accepted["effective_before_offset"] == 50
    page = stream.page(10, limit=1)
    assert (page["records"][0]["offset"], page["clamped"]) == (50, "low")
    refused = problem_of(stream.get(10, on_out_of_range="error"), 410, "offset-trimmed")
    assert (refused["first_offset"], refused["next_offset"]) == (50, 80)
    assert [item["first_offset"] for item in fragments(stream)] == [50, 60, 70]
    assert stream.client.get(stream.path).json()["fragment_count"] == 3
    listed = stream.client.get(f"{stream.path}/fragments", params={"from_offset": 49})
    problem_of(listed, 410, "offset-trimmed")


def test_a_trim_beyond_the_end_is_refused_one_of_nothing_does_nothing_two_are_one(
    client: httpx.Client,
) -> None:
    """T7."""
    stream = filled(client, 3)
    refused = stream.client.post(f"{stream.path}/trim", json={"before_offset": 31})
    assert problem_of(refused, 422, "offset-beyond-end")["published_next"] == 30

    assert trim(stream, 0)["effective_before_offset"] == 0
    assert stream.bounds()["first_offset"] == 0
    for _ in range(2):
        assert trim(stream, 25)["effective_before_offset"] == 20
    assert [item["first_offset"] for item in fragments(stream)] == [20]


def test_a_trim_of_another_stream_of_this_name_is_refused(client: httpx.Client) -> None:
    stream = filled(client, 1)
    body = {"before_offset": 0, "expect_stream_id": "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"}

    refused = stream.client.post(f"{stream.path}/trim", json=body)

    problem_of(refused, 409, "stream-replaced")


@pytest.mark.parametrize(
    "body", [{}, {"before_offset": -1}, {"before_offset": "1"}, {"before_offset": 0, "x": 1}]
)
def test_a_trim_that_says_something_else_is_refused(client: httpx.Client, body: Any) -> None:
    stream = new_stream(client)

    problem_of(stream.client.post(f"{stream.path}/trim", json=body), 422, "validation-failed")


def test_a_stream_may_be_emptied_and_goes_on_at_its_next_offset(fill: Fill) -> None:
    """M22."""
    stream = fill(3)
    trim(stream, 30)
    assert [item["first_offset"] for item in fragments(stream)] == [20]

    trim(stream, 30, allow_empty=True)

    bounds = stream.bounds()
    assert (bounds["first_offset"], bounds["next_offset"]) == (30, 30)
    assert stream.page("first")["records"] == []
    assert fragments(stream) == []
    grow(stream, 1)
    assert [record["offset"] for record in stream.page("first")["records"]] == list(range(30, 40))


def test_max_bytes_below_one_fragment_keeps_one(fill: Fill) -> None:
    """T1."""
    stream = fill(5)
    told = ask(stream, "retention/preview", {"retention": {"max_bytes": 1}})
    assert told["kept_because_last_fragment"] is True

    limit(stream, max_bytes=1)
    wait_floor(stream, 40)

    assert len(stream.page("first")["records"]) == EACH


def test_an_age_that_everything_has_passed_keeps_the_newest_and_needs_no_write(
    fill: Fill,
) -> None:
    """T2, T17: evaluated by the timer, on a stream that nobody touches."""
    stream = fill(5)

    limit(stream, max_age="1s")

    wait_floor(stream, 40)
    assert [record["offset"] for record in stream.page("first")["records"]] == list(range(40, 50))


def test_a_preview_changes_nothing_and_is_what_an_evaluation_removes(fill: Fill) -> None:
    """T3, M19."""
    stream = fill(6)
    sizes = [item["size_bytes"] for item in fragments(stream)]
    asked = {"retention": {"max_bytes": sum(sizes[-2:])}}
    told = ask(stream, "retention/preview", asked)
    assert told["would_delete"] == {
        "fragments": 4,
        "bytes": sum(sizes[:4]),
        "records": 40,
        "from_offset": 0,
        "to_offset": 39,
        "newest_timestamp": told["would_delete"]["newest_timestamp"],
    }
    assert told["reason"] == {"max_age": 0, "max_bytes": 4}
    assert (told["new_first_offset"], told["excess_bytes"]) == (40, 0)
    assert len(fragments(stream)) == 6

    limit(stream, **asked["retention"])
    accepted = ask(stream, "retention/evaluate", None, 202)
    finished(stream, accepted)
    wait_floor(stream, 40)

    assert [item["size_bytes"] for item in fragments(stream)] == sizes[-2:]
    assert stream.client.get(stream.path).json()["size_bytes"] == sum(sizes[-2:])
    again = ask(stream, "retention/preview")
    assert (again["would_delete"]["fragments"], again["would_delete"]["from_offset"]) == (0, None)


def test_a_preview_names_the_consumers_that_would_lose_records(fill: Fill) -> None:
    """T4."""
    stream = fill(5)
    for consumer, offset in (("audit", 11), ("billing", 29), ("mailer", 45)):
        where = f"{stream.path}/consumers/{consumer}/offset"
        assert stream.client.put(where, json={"offset": offset}).status_code == 200
    sizes = [item["size_bytes"] for item in fragments(stream)]

    told = ask(stream, "retention/preview", {"retention": {"max_bytes": sum(sizes[-2:])}})

    assert told["affected_consumers"] == [
        {"consumer": "audit", "next_offset": 12, "would_lose_records": 18}
    ]


def test_after_a_trim_a_consumer_behind_it_is_told_or_moved_and_lag_counts_what_is_there(
    fill: Fill,
) -> None:
    """C7, C8."""
    stream = fill(5)
    where = f"{stream.path}/consumers/audit/offset"
    assert stream.client.put(where, json={"offset": 11}).json()["lag_records"] == 38
    trim(stream, 30)

    assert stream.client.get(where).json()["lag_records"] == 20
    refused = stream.get("stored", consumer="audit", on_out_of_range="error")
    problem_of(refused, 410, "offset-trimmed")
    page = stream.page("stored", consumer="audit", limit=1)
    assert (page["records"][0]["offset"], page["clamped"]) == (30, "low")


def objects_of(running: AllInOne, stream: Stream) -> list[Path]:
    stream_id = stream.client.get(stream.path).json()["stream_id"]
    return [path for path in running.objects.rglob("*") if stream_id in str(path)]


def count(running: AllInOne, stream: Stream, suffix: str) -> int:
    return sum(path.suffix.startswith(suffix) for path in objects_of(running, stream))


def test_a_cut_inside_a_group_keeps_the_group_and_whole_groups_go_with_all_below(
    running: AllInOne, client: httpx.Client
) -> None:
    """M20, M21, M47: 40 fragments, groups of four and of sixteen."""
    stream = filled(client, 40)
    groups = count(running, stream, ".g")
    assert count(running, stream, ".g2") == 1

    trim(stream, 25)
    until(lambda: count(running, stream, ".fragment") == 38, what="two fragments deleted")
    assert count(running, stream, ".g") == groups
    problem_of(stream.get(19, on_out_of_range="error"), 410, "offset-trimmed")
    assert stream.page("timestamp:0", limit=1)["records"][0]["offset"] == 20
    assert stream.page("first", limit=1)["records"][0]["offset"] == 20

    trim(stream, 205)
    until(lambda: count(running, stream, ".fragment") == 20, what="eighteen more deleted")
    until(lambda: count(running, stream, ".g2") == 0, what="the kilo-group deleted")
    page = stream.page("first", limit=1_000)
    assert [record["offset"] for record in page["records"]] == list(range(200, 400))


def test_a_fragment_stays_readable_for_the_grace_and_is_gone_after_it(client: httpx.Client) -> None:
    """T14, M25."""
    stream = filled(client, 3)
    oldest = fragments(stream)[0]
    trim(stream, 15)

    assert stream.client.get(oldest["href"]).status_code == 200
    until(
        lambda: stream.client.get(oldest["href"]).status_code in (404, 410),
        what="the fragment deleted",
    )


def test_a_lease_holds_what_is_trimmed_until_it_is_given_back(
    running: AllInOne, client: httpx.Client, fill: Fill
) -> None:
    """M26."""
    stream = fill(4)
    body = {"first_offset": 10, "ttl_seconds": 3600, "holder": "spark-7"}
    granted = client.post(f"{stream.path}/leases", json=body)
    assert granted.status_code == 201, granted.text
    where = granted.headers["location"]
    trim(stream, 30)

    until(lambda: count(running, stream, ".fragment") == 3, what="one fragment deleted")
    renewed = client.put(where, json={"ttl_seconds": 1800})
    assert renewed.json()["expires_at"] < granted.json()["expires_at"]
    refused = client.post(f"{stream.path}/leases", json={"first_offset": 9})
    assert problem_of(refused, 410, "range-condemned")["first_offset"] == 10
    oldest = client.get(f"{stream.path}/fragments").json()["fragments"][0]
    assert client.get(oldest["href"]).status_code == 200
    assert client.delete(where).status_code == 204
    assert client.delete(where).status_code == 204

    problem_of(client.put(where, json={}), 404, "lease-not-found")
    until(lambda: count(running, stream, ".fragment") == 1, what="the rest deleted")


def test_streams_of_both_profiles_share_a_bucket_and_no_object(
    running: AllInOne, client: httpx.Client
) -> None:
    """L30: each has its fragments under its own prefix, and one reader serves both; what is trimmed of
    one is there of the other, and both are sound."""
    local = filled(client, 3)
    other = LeaderlessStream(client, new_stream(client, LEADERLESS).name, running)
    first_offset_once_taken(lambda: other.post(*({"value": f"value {n}"} for n in range(EACH))))
    other.wait_uploaded()
    grow(other, 2)
    trim(other, 20)

    keys = [set(objects_of(running, one)) for one in (local, other)]
    assert all(keys)
    assert not keys[0] & keys[1]
    both = [local.page("first", limit=100), other.page("first", limit=100)]
    assert [len(page["records"]) for page in both] == [30, 10]
    assert both[0]["records"][20:] == [
        {**record, "timestamp": both[0]["records"][20 + n]["timestamp"]}
        for n, record in enumerate(both[1]["records"])
    ], "the same values at the same offsets"
    for stream in (local, other):
        accepted = ask(stream, "manifest/verify", {"checksums": True}, 202)
        assert finished(stream, accepted)["result"]["sound"] is True


def test_a_lease_lasts_no_longer_than_the_server_allows(client: httpx.Client) -> None:
    stream = filled(client, 1)

    granted, shorter = (
        datetime.fromisoformat(
            client.post(
                f"{stream.path}/leases", json={"first_offset": 0, "ttl_seconds": seconds}
            ).json()["expires_at"]
        )
        for seconds in (86_400, 6 * 3600)
    )

    # The second one was asked for a moment later.
    assert timedelta(0) <= shorter - granted < timedelta(hours=1)
    for body in ({}, {"first_offset": 1, "next_offset": 0}, {"first_offset": 0, "ttl_seconds": 0}):
        refused = client.post(f"{stream.path}/leases", json=body)
        problem_of(refused, 422, "validation-failed")


def test_a_home_that_is_alive_cannot_be_taken_from(client: httpx.Client) -> None:
    stream = filled(client, 1)
    path = f"/v1/admin/streams/{stream.name}/takeover"

    refused = client.post(path, json={"accept_loss": True, "expect_home": "0" * 32})
    home = problem_of(refused, 409, "home-live")["home"]
    refused = client.post(path, json={"accept_loss": True, "expect_home": home})
    problem_of(refused, 409, "home-live")
    refused = client.post(path, json={"accept_loss": False, "expect_home": "0" * 32})
    problem_of(refused, 422, "validation-failed")


def test_retention_and_groups_made_at_once_leave_one_of_the_two_orders(
    client: httpx.Client,
) -> None:
    """M23."""
    stream = filled(client, 7)
    sizes = [item["size_bytes"] for item in fragments(stream)]
    limit(stream, max_bytes=sum(sizes[-3:]))
    # The eighth makes a group of the first four, which retention is about to remove.
    grow(stream, 3)

    until(lambda: stream.bounds()["first_offset"] >= 70, what="the newest three kept")
    found = fragments(stream)
    assert sum(item["size_bytes"] for item in found) <= sum(sizes[-3:])
    assert found[-1]["last_offset"] == 99
    assert all(a["last_offset"] + 1 == b["first_offset"] for a, b in itertools.pairwise(found))
