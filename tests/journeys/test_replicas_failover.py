"""Three ingest nodes that hold a stream, and strict producers, while its owner dies: RP1, RP2 and RP7.

How long the others take is printed, and no verdict: what is checked is that all of it is there, once.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final

import httpx
import pytest
from support.separate_processes import ThreeNodes, three_nodes
from support.waiting import until

SETTINGS: Final = {
    "BOTTOMLESS_INGEST_LEASE_MS": "10000",
    "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "1000",
    "BOTTOMLESS_INGEST_RENEW_MS": "500",
    "BOTTOMLESS_INGEST_REPLICA_JOIN_MS": "500",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "50",
}
CONFIG: Final = {
    # Nothing is uploaded, so what is read is on the disks of the nodes.
    "fragment": {"target_bytes": 67_108_864, "max_age_ms": 86_400_000},
    "replication": {"replicas": 3},
}
INGEST_NODES: Final = ("ingest", "ingest-2", "ingest-3")
PRODUCERS: Final = 3


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    with three_nodes(tmp_path_factory.mktemp("replicas"), SETTINGS) as deployment:
        yield deployment


@pytest.fixture
def deployment(running: ThreeNodes) -> Iterator[ThreeNodes]:
    running.start()
    yield running
    running.start()


class Stream:
    """One stream that three nodes hold."""

    def __init__(self, deployment: ThreeNodes, name: str) -> None:
        self.deployment = deployment
        self.path = f"/v1/streams/{name}"
        with deployment.client() as client:
            created = client.put(self.path, json=CONFIG)
            assert created.status_code == 201, created.text
            self.stream_id = created.json()["stream_id"]

    def nodes(self) -> list[dict[str, Any]]:
        with self.deployment.client() as client:
            answer = client.get(f"{self.path}/replicas")
            assert answer.status_code == 200, answer.text
            found: list[dict[str, Any]] = answer.json()["nodes"]
            return found

    def in_sync(self) -> list[str]:
        return [one["node"] for one in self.nodes() if one["in_sync"] and one["role"] != "away"]

    @property
    def owner(self) -> str:
        """The service that owns it."""
        with self.deployment.internal("manifest") as manifest:
            url = manifest.get(f"/internal/v1/streams/{self.stream_id}").json()["owner_url"]
        return next(name for name in INGEST_NODES if self.deployment.internal_url(name) == url)

    def entries(self) -> list[dict[str, Any]]:
        with self.deployment.client() as client:
            found: list[dict[str, Any]] = client.get(f"{self.path}/manifest").json()["entries"]
            return found

    def values(self) -> list[str]:
        """Of all records, whose offsets follow each other."""
        found: list[str] = []
        with self.deployment.client() as client:
            while True:

                def page(offset: int = len(found)) -> dict[str, Any] | None:
                    asked = {"offset": offset, "limit": 10_000}
                    answer = client.get(f"{self.path}/records", params=asked)
                    return answer.json() if answer.status_code == 200 else None

                got = until(page, what="a page")
                offsets = [one["offset"] for one in got["records"]]
                assert offsets == list(range(len(found), got["next_offset"]))
                found += [one["value"] for one in got["records"]]
                if got["up_to_date"]:
                    return found


@dataclass
class Producer:
    """Sends numbers in order, each append again until it is answered, to any node that is there."""

    name: str
    next_number: int = 0
    longest: float = 0.0
    """Seconds between two answers, at most."""

    def run(self, urls: list[str], path: str, stop: threading.Event) -> None:
        with ExitStack() as open_clients:
            made = [httpx.Client(base_url=url, timeout=60) for url in urls]
            clients = cycle([open_clients.enter_context(one) for one in made])
            client = next(clients)
            while not stop.is_set():
                began = time.monotonic()
                while not self.send(client, path):
                    client = next(clients)
                self.longest = max(self.longest, time.monotonic() - began)

    def send(self, client: httpx.Client, path: str) -> bool:
        body = {"records": [{"value": f"{self.name} {self.next_number}"}]}
        headers = {"producer-id": self.name, "producer-seq": str(self.next_number)}
        try:
            answer = client.post(f"{path}/records", json=body, headers=headers)
        except httpx.TransportError:
            return False
        if answer.status_code != httpx.codes.OK:
            assert answer.status_code in (503, 504), answer.text
            return False
        self.next_number += 1
        return True


@contextmanager
def producing(deployment: ThreeNodes, stream: Stream) -> Iterator[list[Producer]]:
    producers = [Producer(f"p{number}") for number in range(PRODUCERS)]
    urls = [deployment[name].url for name in INGEST_NODES]
    stop = threading.Event()
    threads = [
        threading.Thread(target=each.run, args=(urls, stream.path, stop), daemon=True)
        for each in producers
    ]
    for thread in threads:
        thread.start()
    try:
        yield producers
    finally:
        stop.set()
        for thread in threads:
            thread.join(240)
            assert not thread.is_alive(), "an append is sent again and again, and never answered"


def wait_for_answers(producers: list[Producer], count: int = 5) -> None:
    wanted = [each.next_number + count for each in producers]
    until(
        lambda: all(
            each.next_number >= least for each, least in zip(producers, wanted, strict=True)
        ),
        what="answers to every producer",
    )


def while_producing(
    deployment: ThreeNodes, name: str, trouble: Callable[[Stream], None]
) -> tuple[Stream, list[Producer]]:
    """A stream that all nodes hold, before and after a trouble."""
    stream = Stream(deployment, name)
    with producing(deployment, stream) as producers:
        wait_for_answers(producers)
        until(lambda: len(stream.in_sync()) == 3, what="all in sync")
        trouble(stream)
        wait_for_answers(producers)
    print(f"longest wait of a producer: {max(each.longest for each in producers):.1f} s")
    values = stream.values()
    for each in producers:
        numbers = [int(value.split()[1]) for value in values if value.split()[0] == each.name]
        assert numbers == list(range(each.next_number)), each.name
    return stream, producers


def test_another_node_goes_on_when_the_owner_is_killed_and_each_record_is_there_once(
    deployment: ThreeNodes,
) -> None:
    """RP1."""

    def kill(stream: Stream) -> None:
        owner = stream.owner
        deployment.kill(owner)
        until(lambda: stream.owner != owner, what="another owner")

    stream, _ = while_producing(deployment, "killed", kill)
    deployment.start()
    until(lambda: len(stream.in_sync()) == 3, what="all in sync again")


def test_a_stream_is_given_to_another_node_under_load(deployment: ThreeNodes) -> None:
    """RP7, the move."""

    def move(stream: Stream) -> None:
        target = next(one["node"] for one in stream.nodes() if one["role"] == "in-sync")
        with deployment.client() as client:
            path = f"/v1/admin{stream.path.removeprefix('/v1')}/owner"
            accepted = client.post(path, json={"node": target})
            assert accepted.status_code == 202, accepted.text
            operation = f"/v1/operations/{accepted.json()['operation_id']}"
            until(lambda: client.get(operation).json()["state"] == "succeeded", what="a new owner")
        assert stream.nodes()[0]["node"] == target

    while_producing(deployment, "moved", move)


def test_nothing_is_lost_with_the_disk_of_the_owner(deployment: ThreeNodes) -> None:
    """RP2."""

    def lose(stream: Stream) -> None:
        owner = stream.owner
        deployment.kill(owner)
        shutil.rmtree(deployment.ingest_dirs[owner].parent)
        until(lambda: stream.owner != owner, what="another owner")

    stream, _ = while_producing(deployment, "lost", lose)
    assert stream.entries() == [], "nothing is given up, and nothing was uploaded"
