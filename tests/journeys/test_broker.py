"""L38 and L40: the broker contract over the real all-in-one, with partitions of every kind at once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import pytest
from support.served import Served
from support.waiting import until

from journeys.test_hostile_input import NAMES

SETTINGS: Final = {
    "BOTTOMLESS_BROKER": "1",
    "BOTTOMLESS_BROKER_CREATE": "1",
    # Tests wait for each flush of a leaderless stream.
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "5",
}


def to(topic: str, partition: int, *records: Any, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "records": list(records), **more}


def produce(client: httpx.Client, *partitions: dict[str, Any]) -> httpx.Response:
    return client.post("/produce", json={"topic_partitions": partitions})


def produced(client: httpx.Client, *partitions: dict[str, Any]) -> list[dict[str, Any]]:
    """What became of each, in order. One that is refused for now, of which nothing is stored, is sent
    again, as clients do: who makes a stream asks the manifest, which may be late on a busy machine."""
    taken: dict[tuple[str, int], dict[str, Any]] = {}

    def all_taken() -> bool:
        left = [one for one in partitions if (one["topic"], one["partition"]) not in taken]
        answer = produce(client, *left)
        said = answer.json()
        good = [one for one in said["results"] if one["ok"]]
        refused = [one for one in said["results"] if not one["ok"]]
        assert (said["success_count"], said["error_count"]) == (len(good), len(refused))
        for one in refused:
            assert (one["retryable"], one["outcome"]) == (True, "none"), one
        assert refused or answer.status_code == 200, answer.text
        taken.update({(one["topic"], one["partition"]): one for one in good})
        return not refused

    until(all_taken, what="all partitions written")
    return [taken[one["topic"], one["partition"]] for one in partitions]


def consume(client: httpx.Client, *partitions: tuple[str, int, int], **asked: Any) -> Any:
    listed = [
        {"topic": topic, "partition": partition, "fetch_offset": offset}
        for topic, partition, offset in partitions
    ]
    return client.post("/consume", json={"topic_partitions": listed, **asked})


@pytest.fixture(scope="module")
def fifty(client: httpx.Client) -> list[tuple[str, int]]:
    """Partitions of both profiles, and some whose streams nobody has made."""
    places = [(f"mixed-{number % 3}", number) for number in range(50)]
    for name, number in places[:20]:
        assert client.put(f"/v1/streams/{name}-{number}").status_code == 201
    for name, number in places[20:35]:
        given = {"profile": "leaderless"}
        assert client.put(f"/v1/streams/{name}-{number}", json=given).status_code == 201
    return places


def test_fifty_partitions_of_every_kind_are_written_and_read_as_one(
    client: httpx.Client, fifty: list[tuple[str, int]]
) -> None:
    """L38."""
    for turn in range(2):
        sender = {"id": "loader", "epoch": 0, "seq": turn * 2}
        sent = [
            to(*place, f"{place[1]}-{turn}", {"base64": "/w=="}, producer=sender) for place in fifty
        ]
        for again in (False, True):
            for one, place in zip(produced(client, *sent), fifty, strict=True):
                assert (one["topic"], one["partition"]) == place
                assert (one["start_offset"], one["end_offset"]) == (turn * 2, turn * 2 + 2)
                assert one["count"] == (0 if again else 2)

    answer = consume(client, *((*place, 0) for place in fifty), max_wait_ms=5000, min_bytes=1)
    assert answer.status_code == 200, answer.text
    for one, place in zip(answer.json()["results"], fifty, strict=True):
        values = [record.get("text", record.get("base64")) for record in one["records"]]
        assert values == [f"{place[1]}-0", "/w==", f"{place[1]}-1", "/w=="], place
        assert (one["next_offset"], one["high_watermark"], one["log_start"]) == (4, 4, 0)


def test_little_room_serves_each_in_its_turn(
    client: httpx.Client, fifty: list[tuple[str, int]]
) -> None:
    first = set()
    for _ in fifty:
        answer = consume(client, *((*place, 0) for place in fifty), max_bytes=1)
        served = [one["partition"] for one in answer.json()["results"] if one["records"]]
        assert len(served) == 1
        first.add(served[0])
    assert first == {partition for _, partition in fifty}


def test_whatever_is_sent_as_a_topic_it_is_told_apart(client: httpx.Client) -> None:
    """L38, with the names of H1; those that are good once a number stands behind them are none."""
    client.put("/v1/streams/good-0")
    names = [name for name in NAMES if name != "con"]
    answer = produce(client, to("good", 0, "a"), *(to(name, 0, "a") for name in names))
    assert answer.status_code == 409
    good, *others = answer.json()["results"]
    assert good["ok"]
    assert {one["error_type"] for one in others} == {"UnknownPartition"}
    assert {one["code"] for one in others} == {"bad-name"}
    read = consume(client, *((name, 0, 0) for name in names))
    assert {one["error_type"] for one in read.json()["results"]} == {"UnknownPartition"}
    listed = client.get("/v1/streams?limit=1000").json()["items"]
    assert not [one for one in listed if one["name"].removesuffix("-0") in names]


def test_what_is_wrong_as_a_whole_writes_nothing(client: httpx.Client) -> None:
    client.put("/v1/streams/whole-0")
    good = to("whole", 0, "a")
    for wrong in (
        {**good, "partition": True},
        {**good, "topic": ""},
        {**good, "records": []},
        {**good, "partition": 1, "records": [{"base64": "A"}]},
        good,
    ):
        answer = produce(client, good, wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad-parameter")
    bounds = client.get("/v1/streams/whole-0/offsets").json()
    assert bounds["next_offset"] == 0


def test_many_who_make_one_partition_at_once_make_one_and_lose_nothing(
    running: Served, client: httpx.Client
) -> None:
    """L40."""

    def send(number: int) -> int:
        with running.client() as connected:
            [told] = produced(connected, to("new", 0, f"{number}"))
            return int(told["start_offset"])

    with ThreadPoolExecutor(10) as threads:
        offsets = sorted(threads.map(send, range(10)))
    assert offsets == list(range(10))
    described = client.get("/v1/streams/new-0").json()
    assert described["profile"] == "leaderless"
    [one] = consume(client, ("new", 0, 0)).json()["results"]
    assert sorted(int(record["text"]) for record in one["records"]) == list(range(10))
