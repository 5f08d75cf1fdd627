"""A super stream from its creation to its end, in a process as users run it."""

from typing import Any

import httpx
import pytest
from support.served import Served
from support.waiting import until

EVENTS = "/v1/super-streams/events"


def _asked(client: httpx.Client, method: str, path: str, **how: Any) -> httpx.Response:
    """An answer other than 503 with nothing done: who routes by what he knew before a growth is refused so,
    and whoever asks while a machine stands still."""

    def asked() -> httpx.Response | None:
        answer = client.request(method, path, **how)
        refused = answer.status_code == 503 and answer.json()["outcome"] == "none"
        return None if refused else answer

    return until(asked, what=f"an answer of {path}")


def _send(client: httpx.Client, keys: list[str]) -> list[dict[str, object]]:
    records = {"records": [{"key": key, "value": key} for key in keys]}
    answer = _asked(client, "POST", f"{EVENTS}/records", json=records)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, object]] = answer.json()["results"]
    return results


def _ends(client: httpx.Client) -> dict[str, int]:
    answer = _asked(client, "GET", f"{EVENTS}/offsets")
    assert answer.status_code == 200, answer.text
    return {one["stream"]: one["next_offset"] for one in answer.json()["partitions"]}


def _keys(client: httpx.Client, partition: str) -> list[str]:
    page = _asked(client, "GET", f"/v1/streams/{partition}/records?offset=first").json()
    return [record["key"] for record in page["records"]]


def test_a_super_stream_is_written_read_made_larger_and_deleted(running: Served) -> None:
    # Not the client that holds streams to their promises: it does not know super streams.
    with httpx.Client(base_url=running.url, timeout=240) as client:
        _story(client)


def _story(client: httpx.Client) -> None:
    assert client.put(EVENTS, json={"partitions": 3}).status_code == 201
    assert _ends(client) == {"events-0": 0, "events-1": 0, "events-2": 0}
    keys = [f"hello{number}" for number in range(1, 11)]
    _send(client, keys)
    assert _ends(client) == {"events-0": 4, "events-1": 3, "events-2": 3}
    assert _keys(client, "events-1") == ["hello1", "hello3", "hello8"]

    more = {"partitions": 5, "accept_rehash": True}
    grown = _asked(client, "PATCH", EVENTS, json=more, headers={"if-match": "*"})
    assert grown.status_code == 200, grown.text
    for key in keys:
        found = _asked(client, "GET", f"{EVENTS}/route", params={"key": key}).json()["partitions"]
        [result] = _send(client, [key])
        assert result["stream"] == found[0]["stream"]
    ends = _ends(client)
    assert (len(ends), sum(ends.values())) == (5, 20)

    gone = client.delete(EVENTS)
    assert gone.status_code == 202, gone.text
    assert client.get(f"{EVENTS}/offsets").status_code == 404
    assert client.post(f"{EVENTS}/records", json={"records": []}).status_code in (404, 422)
    for partition in ends:
        assert client.get(f"/v1/streams/{partition}").status_code == 404
    assert client.put(EVENTS, json={"partitions": 1}).status_code == 201

    def ends_of_the_new_one() -> bool:
        # The reader may know the partition of before by this name for a moment.
        told = _asked(client, "GET", f"{EVENTS}/offsets")
        assert told.status_code in (200, 409), told.text
        return told.status_code == 200 and _ends(client) == {"events-0": 0}

    until(ends_of_the_new_one, what="the new super stream")


@pytest.mark.parametrize(("count", "status"), [(0, 422), (1, 201), (1000, 201), (1001, 422)])
def test_p3_it_has_from_one_to_a_thousand_partitions(
    running: Served, count: int, status: int
) -> None:
    path = f"/v1/super-streams/p3-{count}"
    with httpx.Client(base_url=running.url, timeout=240) as client:
        made = client.put(path, json={"partitions": count})
        assert made.status_code == status, made.text
        assert client.get(path).status_code == (200 if status == 201 else 404)
        if status == 201:
            assert len(made.json()["partitions"]) == count
            assert client.get(f"/v1/streams/p3-{count}-{count - 1}").status_code == 200


def test_p4_where_one_partitions_name_is_taken_no_other_partition_is_left(running: Served) -> None:
    with httpx.Client(base_url=running.url, timeout=240) as client:
        assert client.put("/v1/streams/p4-1", json={}).status_code == 201
        refused = client.put("/v1/super-streams/p4", json={"partitions": 3})
        assert (refused.status_code, refused.json()["taken_partitions"]) == (409, [1])
        for path in ("/v1/super-streams/p4", "/v1/streams/p4-0", "/v1/streams/p4-2"):
            assert client.get(path).status_code == 404
        assert client.get("/v1/streams/p4-1").status_code == 200
