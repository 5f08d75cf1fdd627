"""Producing to super streams on a real server, also through deaths between the steps of a request.

Scenarios P of the design; P6, whose partition has to fail alone, is in
`unit/ingest/test_super_produce.py`, and P3, P4 are in `unit/manifest/test_super_api.py`.
"""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.contract import QUICK, Stream
from support.places import FREEING, free_local
from support.ports import lasting_ports
from support.served import PATIENT
from support.server import AllInOne
from support.waiting import until

SETTINGS = {**FREEING, **PATIENT, "BOTTOMLESS_FAULT_POINTS": "1"}
TEN = [f"hello{number}" for number in range(1, 11)]
BEFORE_THE_LAST_STEP = "ingest.super.before-complete"
POINTS_OF_REQUESTS = ("ingest.super.after-begin", "ingest.super.after-part", BEFORE_THE_LAST_STEP)

_numbers = itertools.count()


def _is_nothing_done(answer: httpx.Response) -> bool:
    return bool(answer.json()["outcome"] == "none")


class Sink:
    """Produces to one super stream, and finds out what became of it."""

    def __init__(self, server: AllInOne, **config: Any) -> None:
        self.server = server
        self.name = f"events-{next(_numbers)}"
        self.path = f"/v1/super-streams/{self.name}"
        made = self.ask("PUT", self.path, json=config or {"partitions": 3})
        assert made.status_code == 201, made.text
        self.streams = [one["stream"] for one in made.json()["partitions"]]

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """An answer other than 503 with nothing done, as it is for a while where a machine stands still."""

        def asked() -> httpx.Response | None:
            answer = httpx.request(method, self.server.url + path, timeout=240, **options)
            return None if answer.status_code == 503 and _is_nothing_done(answer) else answer

        return until(asked, what=f"an answer of {path}")

    def send(self, keys: Sequence[str], start: int | None = None, **headers: str) -> httpx.Response:
        """Records with these keys, of which each value is its key and number."""
        first = start or 0
        records = [{"value": f"{key} {first + n}", "key": key} for n, key in enumerate(keys)]
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if start is not None:
            named |= {"producer-id": "p", "producer-seq": str(start), **named}
        path = f"{self.path}/records"
        return self.ask("POST", path, json={"records": records}, headers=named)

    def values(self, index: int) -> list[str]:
        """All that a partition has: a page may end where object storage does."""
        path = f"/v1/streams/{self.streams[index]}/records?offset="
        page = self.ask("GET", f"{path}first").json()
        records = page["records"]
        while not page["up_to_date"]:
            page = self.ask("GET", f"{path}{page['next_offset']}").json()
            records += page["records"]
        return [record["value"] for record in records]

    def in_order(self) -> list[str]:
        """The values of all partitions, one partition after the other."""
        return [value for index in range(len(self.streams)) for value in self.values(index)]

    def all_values(self) -> list[str]:
        return sorted(self.in_order())

    def leave_the_tail(self) -> None:
        """Return when object storage alone holds what there is."""
        with self.server.client() as client:
            for name in self.streams:
                free_local(self.server, Stream(client, name))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    directory = tmp_path_factory.mktemp("super") / "data"
    with AllInOne(directory, SETTINGS, *lasting_ports(1)) as server:
        yield server


@pytest.fixture
def server(running: AllInOne) -> AllInOne:
    """One that is alive, also where the test before this one left it dead."""
    if running.is_dead:
        running.wait_dead()
    running.start()
    return running


def test_records_are_in_the_partitions_that_other_clients_would_read(server: AllInOne) -> None:
    """Scenarios P1, P2."""
    sink = Sink(server)
    answer = sink.send(TEN)
    assert answer.status_code == 200, answer.text
    assert sink.values(0) == ["hello2 1", "hello5 4", "hello7 6", "hello9 8"]
    assert sink.values(1) == ["hello1 0", "hello3 2", "hello8 7"]
    assert sink.values(2) == ["hello4 3", "hello6 5", "hello10 9"]
    others = sink.send(["", "é", "日本", "😀"]).json()
    indexes = {one["partition"]: one["record_indexes"] for one in others["results"]}
    assert indexes == {0: [3], 1: [0, 1, 2]}


def test_binding_keys_route_and_an_unknown_one_leaves_nothing(server: AllInOne) -> None:
    """Scenarios P5, P8."""
    sink = Sink(server, binding_keys=["amer", "emea"])
    refused = sink.send(["emea", "apac"])
    assert (refused.status_code, refused.json()["code"]) == (422, "no-route")
    assert [fault["pointer"] for fault in refused.json()["errors"]] == ["/records/1/key"]
    bare = sink.ask("POST", f"{sink.path}/records", json={"records": [{"value": "x"}]})
    assert bare.status_code == 422
    assert sink.all_values() == []
    assert sink.send(["emea", "amer", "emea"]).status_code == 200
    assert (sink.values(0), sink.values(1)) == (["amer 1"], ["emea 0", "emea 2"])


def test_the_order_of_each_key_is_kept_under_ten_producers(server: AllInOne) -> None:
    """Scenario P7: as it is read from the tail, from object storage, and after a restart."""
    sink = Sink(server, partitions=3, **QUICK)

    def produce(key: str) -> None:
        for number in range(5):
            named = {"producer_id": key, "producer_seq": str(number)}
            assert sink.send([key], number, **named).status_code == 200

    with ThreadPoolExecutor(len(TEN)) as threads:
        list(threads.map(produce, TEN))
    stored = sink.in_order()
    for key in TEN:
        mine = [value for value in stored if value.partition(" ")[0] == key]
        assert mine == [f"{key} {number}" for number in range(5)]
    sink.leave_the_tail()
    assert sink.in_order() == stored
    server.kill()
    server.start()
    assert sink.in_order() == stored


def test_of_a_super_stream_that_is_deleted_no_partition_is_left(server: AllInOne) -> None:
    """Scenario P10."""
    sink = Sink(server)
    assert sink.send(TEN).status_code == 200
    assert sink.ask("DELETE", sink.path).status_code == 202
    gone = sink.send(TEN)
    assert (gone.status_code, gone.json()["code"]) == (404, "stream-not-found")
    for stream in sink.streams:
        assert sink.ask("GET", f"/v1/streams/{stream}").status_code == 404


@pytest.mark.parametrize("point", POINTS_OF_REQUESTS)
def test_a_request_that_died_is_stored_once_when_it_comes_again(
    server: AllInOne, point: str
) -> None:
    sink = Sink(server)
    assert sink.send(TEN, 0).status_code == 200
    server.arm(point)
    with pytest.raises(httpx.TransportError):
        sink.send(TEN, 10)
    server.wait_dead()
    server.start()

    later = sink.send(TEN, 20)
    assert (later.status_code, later.json()["code"]) == (409, "producer-sequence-gap")
    again = sink.send(TEN, 10)
    assert again.status_code == 200, again.text
    assert again.json()["count"] + again.json()["duplicates"] == 10
    assert sink.send(TEN, 20).status_code == 200
    repeated = sink.send(TEN, 10)
    assert repeated.headers["idempotent-replayed"] == "true"
    expected = [f"{key} {start + n}" for start in (0, 10, 20) for n, key in enumerate(TEN)]
    assert sink.all_values() == sorted(expected)


def test_a_request_that_died_before_a_growth_is_stored_once_after_it(server: AllInOne) -> None:
    sink = Sink(server)
    assert sink.send(TEN, 0).status_code == 200
    server.arm("ingest.super.after-part")
    with pytest.raises(httpx.TransportError):
        sink.send(TEN, 10)
    server.wait_dead()
    server.start()
    patch = {"partitions": 5, "accept_rehash": True}
    headers = {"if-match": "*", "content-type": "application/merge-patch+json"}
    grown = sink.ask("PATCH", sink.path, json=patch, headers=headers)
    assert grown.status_code == 200, grown.text
    sink.streams = [one["stream"] for one in grown.json()["partitions"]]

    again = sink.send(TEN, 10)
    assert again.status_code == 200, again.text
    assert {one["partition"] for one in again.json()["results"]} == {0, 1, 2}
    on = sink.send(TEN, 20)
    assert on.status_code == 200, on.text
    assert {one["partition"] for one in on.json()["results"]} > {3}
    assert sink.send(TEN, 10).headers["idempotent-replayed"] == "true"
    expected = [f"{key} {start + n}" for start in (0, 10, 20) for n, key in enumerate(TEN)]
    assert sink.all_values() == sorted(expected)
