"""Two ingest nodes with a disk each, behind nginx: M13, M14, M16, M17 and item 4 of the faults.

Fragments are cut by nothing but a drain (`SLOW`), so what is uploaded is uploaded by it, and
what is not stays on one disk for sure.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from support.contract import first_offset_once_taken, problem_of
from support.processes import Process
from support.separate_processes import TwoNodes, two_nodes
from support.waiting import until

from bottomless_server.ingest.producers.super_requests import coordinating_partition

SETTINGS: Final = {
    # Whoever lives renews in time, also on a machine on which a process stands still for seconds.
    "BOTTOMLESS_INGEST_LEASE_MS": "10000",
    "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "1000",
    "BOTTOMLESS_INGEST_RENEW_MS": "500",
    "BOTTOMLESS_INGEST_FORWARD_MS": "15000",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "50",
    "BOTTOMLESS_UPLOADER_RETRY_MAX_SECONDS": "1",
    "BOTTOMLESS_UPLOADER_RETRY_JITTER_SECONDS": "0.1",
}
SLOW: Final = {"fragment": {"target_bytes": 67_108_864, "max_age_ms": 86_400_000}}
NODES: Final = ("ingest", "ingest-2")
PRODUCERS: Final = 3
RAW: Final = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path_factory.mktemp("failover"), SETTINGS) as deployment:
        yield deployment


@pytest.fixture
def deployment(running: TwoNodes) -> Iterator[TwoNodes]:
    """All of it runs, before and afterwards."""
    running.start()
    yield running
    running.start()


class Stream:
    """One stream, asked of any node."""

    def __init__(self, deployment: TwoNodes, name: str) -> None:
        self.deployment = deployment
        self.path = f"/v1/streams/{name}"
        with deployment.client() as client:
            created = client.put(self.path, json=SLOW)
            assert created.status_code in (200, 201), created.text
            self.stream_id = created.json()["stream_id"]

    def record(self) -> dict[str, Any]:
        with self.deployment.internal("manifest") as manifest:
            found: dict[str, Any] = manifest.get(f"/internal/v1/streams/{self.stream_id}").json()
            return found

    @property
    def owner(self) -> str:
        """The service that claimed it last."""
        url = self.record()["owner_url"]
        return next(name for name in NODES if self.deployment.internal_url(name) == url)

    @property
    def other(self) -> str:
        return next(name for name in NODES if name != self.owner)

    def append(self, node: str, *values: str) -> httpx.Response:
        body = {"records": [{"value": value} for value in values]}
        with self.deployment[node].client() as client:
            return client.post(f"{self.path}/records", json=body)

    def appended(self, node: str, *values: str) -> int:
        """The offset of the first, as soon as a node may take them."""
        return first_offset_once_taken(lambda: self.append(node, *values))

    def page(self, offset: int = 0) -> dict[str, Any]:
        def read() -> dict[str, Any] | None:
            with self.deployment.client() as client:
                parameters = {"offset": offset, "limit": 10_000}
                answer = client.get(f"{self.path}/records", params=parameters)
            if answer.status_code == 503:
                return None
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        return until(read, what="a page")

    def values(self, offset: int = 0) -> list[str]:
        """Of all records from an offset on, which follow each other."""
        found: list[str] = []
        while True:
            page = self.page(offset)
            end = page["next_offset"]
            assert [one["offset"] for one in page["records"]] == list(range(offset, end))
            found += [one["value"] for one in page["records"]]
            offset = end
            if page["up_to_date"]:
                return found

    def take_over(self) -> dict[str, Any]:
        """An operator's word that the home is lost, repeated until its lease is over."""
        home = self.record()["home"]
        with self.deployment.client() as client:

            def accepted() -> str | None:
                body = {"accept_loss": True, "expect_home": home}
                answer = client.post(f"/v1/admin{self.path[3:]}/takeover", json=body)
                return answer.json()["operation_id"] if answer.status_code == 202 else None

            operation = f"/v1/operations/{until(accepted, what='the lease over')}"
            until(lambda: client.get(operation).json()["state"] == "succeeded", what="taken over")
            gap: dict[str, Any] = client.get(operation).json()["result"]["gap"]
            return gap


@dataclass
class Producer:
    """Sends numbers in order, each append again until it knows its outcome."""

    name: str
    next_number: int = 0
    answered: int = 0
    unknown: int = 0
    replayed: int = 0

    def run(self, url: str, path: str, stop: threading.Event) -> None:
        with httpx.Client(base_url=url, timeout=20) as client:
            while not stop.is_set():
                self.send(client, path)

    def send(self, client: httpx.Client, path: str) -> None:
        numbers = range(self.next_number, self.next_number + 3)
        body = {"records": [{"value": f"{self.name} {number}"} for number in numbers]}
        headers = {"producer-id": self.name, "producer-seq": str(self.next_number)}
        while True:
            try:
                answer = client.post(f"{path}/records", json=body, headers=headers)
            except httpx.TransportError:
                self.unknown += 1
                continue
            if answer.status_code == httpx.codes.OK:
                break
            assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
            self.unknown += answer.json()["outcome"] == "unknown"
        self.replayed += answer.json()["duplicates"] > 0
        self.next_number = numbers.stop
        self.answered += 1


@contextmanager
def producing(deployment: TwoNodes, stream: Stream) -> Iterator[list[Producer]]:
    producers = [Producer(f"p{number}") for number in range(PRODUCERS)]
    stop = threading.Event()
    threads = [
        threading.Thread(target=each.run, args=(deployment.url, stream.path, stop), daemon=True)
        for each in producers
    ]
    for thread in threads:
        thread.start()
    try:
        yield producers
    finally:
        stop.set()
        for thread in threads:
            # What is never answered ends the test and not the run of all tests.
            thread.join(240)
            assert not thread.is_alive(), "an append is sent again and again, and never answered"


def wait_for_answers(producers: list[Producer], count: int = 10) -> None:
    wanted = [each.answered + count for each in producers]
    until(
        lambda: all(each.answered >= least for each, least in zip(producers, wanted, strict=True)),
        what="answers to every producer",
    )


def counted(deployment: TwoNodes, node: str, name: str) -> float:
    with deployment.internal(node) as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def all_followed(deployment: TwoNodes) -> bool:
    said = [line for line in deployment["uploader"].log().splitlines() if "is followed" in line]
    return all(any(deployment.internal_url(node) in line for line in said) for node in NODES)


def gone(path: Path) -> bool:
    return not path.exists()


def aside(deployment: TwoNodes, node: str, stream: Stream) -> list[Path]:
    return list((deployment.ingest_dirs[node] / "streams-aside").glob(f"{stream.stream_id}*"))


def test_a_drain_hands_a_stream_over_under_load_and_back_again(deployment: TwoNodes) -> None:
    stream = Stream(deployment, "handover")
    owners, forwarded = [], 0.0
    with producing(deployment, stream) as producers:
        wait_for_answers(producers)
        # A node that no uploader follows yet hands nothing over: it waits for nobody.
        until(partial(all_followed, deployment), what="an uploader that follows both")
        for _ in range(2):
            first, second = stream.owner, stream.other
            owners.append(first)
            forwarded += counted(deployment, second, "bottomless_ingest_forwarded_total")
            epoch = stream.record()["epoch"]
            assert deployment[first].stop() == 0
            wait_for_answers(producers)
            record = stream.record()
            assert (stream.owner, record["epoch"]) == (second, epoch + 1)
            deployment[first].start()
            wait_for_answers(producers)
            assert stream.owner == second, "who comes back is not the owner any more"
            old_log = deployment.ingest_dirs[first] / "streams" / stream.stream_id
            until(partial(gone, old_log), what="its old log removed")
            assert not aside(deployment, first, stream), "all of it was published"
    values = stream.values()
    for each in producers:
        numbers = [int(v.split()[1]) for v in values if v.split()[0] == each.name]
        assert numbers == list(range(each.next_number)), each.name
    assert sorted(owners) == sorted(NODES)
    assert forwarded > 0, "nothing was passed on: the other way was not gone"
    print(f"{len(values)} records, {forwarded:.0f} requests passed on")


def test_a_stream_with_a_tail_of_its_own_waits_for_its_home(deployment: TwoNodes) -> None:
    """M17, before anybody accepts a loss."""
    stream = Stream(deployment, "dirty")
    assert stream.appended("ingest-2", "only there") == 0
    deployment.kill("ingest-2")

    def free() -> bool:
        with deployment.internal("manifest") as manifest:
            return len(manifest.get("/internal/v1/nodes").json()["nodes"]) == 1

    until(free, what="the lease of the dead node over")
    for _ in range(3):
        refused = stream.append("ingest", "elsewhere")
        problem_of(refused, 503, "not-owner")
        assert refused.json()["outcome"] == "none"
    with deployment.client() as client:
        problem_of(client.get(f"{stream.path}/records?offset=0"), 503, "not-owner")

    deployment.start()
    assert stream.appended("ingest", "passed on") == 1
    assert stream.values() == ["only there", "passed on"]
    assert stream.owner == "ingest-2"


@contextmanager
def paused(deployment: TwoNodes, node: str) -> Iterator[None]:
    """Stopped by SIGSTOP until its lease is over for everybody."""
    pid = deployment[node].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with deployment.internal("manifest") as manifest:
            until(
                lambda: len(manifest.get("/internal/v1/nodes").json()["nodes"]) == 1,
                what="the lease of the paused node over",
            )
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_an_owner_that_slept_through_its_lease_goes_on_where_nobody_took_its_stream(
    deployment: TwoNodes,
) -> None:
    stream = Stream(deployment, "slept")
    assert stream.appended("ingest", "before") == 0
    epoch = stream.record()["epoch"]
    with paused(deployment, "ingest"):
        problem_of(stream.append("ingest-2", "meanwhile"), 503, "not-owner")
    assert stream.appended("ingest-2", "after") == 1
    assert stream.values() == ["before", "after"]
    assert (stream.owner, stream.record()["epoch"]) == ("ingest", epoch)


def test_a_zombie_acknowledges_shows_and_feeds_nothing(deployment: TwoNodes) -> None:
    """M13, M14 and M16: the owner is paused, deposed by a takeover, and wakes up."""
    stream = Stream(deployment, "zombie")
    lost = ["lost 0", "lost 1"]
    assert stream.appended("ingest", *lost) == 0
    chunks = f"/internal/v1/streams/{stream.stream_id}/chunks"
    late: list[httpx.Response] = []
    with paused(deployment, "ingest"):
        gap = stream.take_over()
        assert (gap["first_offset"], gap["reason"]) == (0, "takeover")
        first = stream.appended("ingest-2", "new 0")
        assert first == gap["next_offset"] >= len(lost)
        # It is on its way to the zombie when that wakes up.
        sending = threading.Thread(target=lambda: late.append(stream.append("ingest", "late")))
        sending.start()
    with deployment.internal("ingest") as zombie:
        shown = zombie.get(chunks, params={"first_offset": 0, "wait_ms": 0})
        fed = zombie.get("/internal/v1/commits")
    sending.join()

    problem_of(shown, 503, "not-owner")
    if fed.status_code == 200:
        assert stream.stream_id not in {one["stream_id"] for one in fed.json()["streams"]}
    else:
        problem_of(fed, 503, "not-owner")
    # Refused, or passed on to the new owner: what is acknowledged is there in any case.
    expected = ["new 0"]
    if late[0].status_code == 200:
        assert late[0].json()["first_offset"] == first + 1
        expected.append("late")
    else:
        assert late[0].json()["outcome"] == "none", late[0].text
    assert stream.appended("ingest", "passed on") == first + len(expected)
    assert stream.values(first) == [*expected, "passed on"]
    assert stream.page(0)["gaps"] == [gap]
    assert (stream.owner, len(aside(deployment, "ingest", stream))) == ("ingest-2", 1)


def test_after_an_accepted_loss_the_other_node_goes_on_and_the_old_home_keeps_its_tail(
    deployment: TwoNodes,
) -> None:
    """M17 with two nodes: the disk was not lost after all."""
    stream = Stream(deployment, "accepted")
    assert stream.appended("ingest", "lost") == 0
    deployment.kill("ingest")
    gap = stream.take_over()
    first = stream.appended("ingest-2", "after")
    assert first == gap["next_offset"]

    deployment.start()
    until(lambda: aside(deployment, "ingest", stream), what="the old tail set aside")
    (kept,) = aside(deployment, "ingest", stream)
    assert [path.stat().st_size > 0 for path in kept.glob("*.segment")] == [True]
    assert stream.appended("ingest", "passed on") == first + 1
    assert stream.values(first) == ["after", "passed on"]
    assert stream.page(0)["gaps"] == [gap]


def test_a_request_to_a_super_stream_is_finished_when_the_owner_of_a_part_is_back(
    deployment: TwoNodes,
) -> None:
    """P6: one partition's owner is killed, the parts of the others are stored, a repeat does the rest."""
    first, second = deployment["ingest"], deployment["ingest-2"]
    path = "/v1/super-streams/parts"
    with deployment.client() as client:
        made = client.put(path, json={"partitions": 3, **SLOW})
        assert made.status_code == 201, made.text
    for index, node in enumerate((first, second, second)):
        with node.client() as client:
            one = client.post(f"/v1/streams/parts-{index}/records", content=b"x", headers=RAW)
            assert one.status_code == 200, one.text
    # Not of the partition whose owner dies.
    producer = next(f"p{n}" for n in range(99) if coordinating_partition(f"p{n}", 3))
    keys = [f"hello{number}" for number in range(1, 11)]

    def send(node: Process, number: int) -> httpx.Response:
        records = [{"value": f"{number} {key}", "key": key} for key in keys]
        named = {"producer-id": producer, "producer-seq": str(10 * number)}
        with node.client() as client:
            return client.post(f"{path}/records", json={"records": records}, headers=named)

    assert send(second, 0).status_code == 200
    assert send(first, 1).status_code == 200
    deployment.kill("ingest")
    some = send(second, 2)
    assert some.status_code == 207, some.text
    assert (some.json()["committed"], some.json()["failed"]) == (2, 1)
    [failed] = [one for one in some.json()["results"] if one["status"] != 200]
    assert (failed["partition"], failed["problem"]["outcome"]) == (0, "none")
    problem_of(send(second, 3), 409, "producer-sequence-gap")
    deployment.start()

    until(lambda: send(second, 2).status_code == 200, what="the part of the node that is back")
    assert send(first, 3).status_code == 200
    stored: list[str] = []
    with deployment.client() as client:
        for index in range(3):
            page = client.get(f"/v1/streams/parts-{index}/records?offset=1").json()
            stored += [record["value"] for record in page["records"]]
    assert sorted(stored) == sorted(f"{number} {key}" for number in range(4) for key in keys)
