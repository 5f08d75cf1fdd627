"""Leaderless streams over two ingest nodes, one of them without a disk: under load, each as it was told.

Real processes behind nginx, some seconds for all of it. What is compared are offsets and answers; what
comes first is left to the machine, so every check holds in any order.
"""

import itertools
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import httpx
import pytest
from support.separate_processes import TwoNodes, two_nodes
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "5",
    "BOTTOMLESS_INGEST_WAL_NOTE_MS": "100",
    "BOTTOMLESS_DRAIN_SECONDS": "10",
}
NODES: Final = ("ingest", "ingest-2")
CLIENTS_PER_NODE = 3
STEPS = 8
"""Appends of each client that a check waits for."""
NEW_STREAM: Final = ("producer-unknown", "producer-sequence-gap")
"""What a producer hears whose numbers are those of a stream that was deleted."""

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    second = {"BOTTOMLESS_INGEST_PROFILES": "leaderless"}
    with two_nodes(tmp_path_factory.mktemp("two"), SETTINGS, second) as running:
        path = a_stream(running)
        for node in NODES:
            # A writer compares what it finds with the bucket first, and may be asked too early.
            until(partial(takes, running[node].url, path), what="a writer that has begun")
        yield running


def takes(url: str, path: str) -> bool:
    """Whether a node stores an append."""
    return httpx.post(f"{url}{path}/records", json={"records": [{"value": "a"}]}).is_success


@dataclass
class Told:
    """One append that was answered with 200."""

    client: str
    number: int
    stream_id: str
    offset: int


@dataclass
class Load:
    """Clients of a stream, each a strict producer that goes on where it was told to."""

    url_of: Callable[[str], str]
    path: str
    told: list[Told] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Other answers, by status and code."""
    broken: list[str] = field(default_factory=list)
    """What no client should ever meet."""
    _stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, node: str, name: str) -> None:
        number = 0
        with httpx.Client(timeout=60) as client:
            while not self._stopping.is_set():
                headers = {"producer-id": name, "producer-seq": str(number)}
                body = {"records": [{"value": f"{name} {number}"}]}
                try:
                    answer = client.post(
                        f"{self.url_of(node)}{self.path}/records", json=body, headers=headers
                    )
                except httpx.TransportError as error:
                    self.broken.append(repr(error))
                    self._stopping.wait(0.02)
                    continue
                said = answer.json()
                if answer.status_code == httpx.codes.OK:
                    self.told.append(Told(name, number, said["stream_id"], said["first_offset"]))
                    number += 1
                else:
                    self.refused[f"{answer.status_code} {said['code']}"] += 1
                    if said["code"] in NEW_STREAM:
                        number = 0
                    self._stopping.wait(0.02)

    @contextmanager
    def going(self) -> Iterator["Load"]:
        threads = [
            threading.Thread(target=self.run, args=(node, f"{node}-{place}"))
            for node in NODES
            for place in range(CLIENTS_PER_NODE)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def goes_on(self) -> None:
        """Return when every client was told of more appends than by now."""
        before = self._counts()

        def more() -> bool:
            now = self._counts()
            return len(now) == len(NODES) * CLIENTS_PER_NODE and all(
                now[name] >= before.get(name, 0) + STEPS for name in now
            )

        until(more, what="appends of every client")

    def _counts(self) -> dict[str, int]:
        counts: dict[str, int] = defaultdict(int)
        for one in list(self.told):
            counts[one.client] += 1
        return dict(counts)


def a_stream(deployment: TwoNodes) -> str:
    path = f"/v1/streams/two-{next(_numbers)}"
    with deployment.client() as client:
        client.put(path, json={"profile": "leaderless"}).raise_for_status()
    return path


def direct(deployment: TwoNodes) -> Callable[[str], str]:
    """Each client asks the node of its own."""
    return lambda node: deployment[node].url


def everything(deployment: TwoNodes, path: str) -> list[str]:
    """All values; offsets have no hole."""
    values: list[str] = []
    with deployment.client() as client:
        while True:
            page = client.get(f"{path}/records", params={"offset": len(values), "limit": 1_000})
            assert page.status_code == httpx.codes.OK, page.text
            records = page.json()["records"]
            assert [one["offset"] for one in records] == [
                *range(len(values), len(values) + len(records))
            ]
            values += [one["value"] for one in records]
            if page.json()["up_to_date"]:
                return values


def check(load: Load, values: list[str], stream_id: str | None = None) -> None:
    """Each append that was acknowledged is there once, where its client was told, in its order."""
    told = [one for one in load.told if stream_id in (None, one.stream_id)]
    assert len({one.offset for one in told}) == len(told)
    for one in told:
        assert values[one.offset] == f"{one.client} {one.number}"
    for name in {one.client for one in told}:
        numbers = [
            int(value.rpartition(" ")[2]) for value in values if value.startswith(f"{name} ")
        ]
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]


def conflicts(deployment: TwoNodes) -> float:
    """Commits of both nodes that stored nothing, since the other node had changed a stream."""
    name = "bottomless_ingest_wal_commits_total"
    found = 0.0
    for node in NODES:
        with deployment.internal(node) as client:
            text = client.get("/metrics").raise_for_status().text
        [line] = re.findall(rf'^{name}{{outcome="conflict"}} (\S+)$', text, re.MULTILINE)
        found += float(line)
    return found


def test_two_nodes_write_one_stream_beside_others(deployment: TwoNodes) -> None:
    """L6."""
    path, others = a_stream(deployment), [a_stream(deployment) for _ in range(3)]
    loads = [Load(direct(deployment), one) for one in (path, *others)]
    with loads[0].going(), loads[1].going(), loads[2].going(), loads[3].going():
        for load in loads:
            load.goes_on()
        # Not vacuous: the nodes really meet, and nobody is told.
        until(lambda: conflicts(deployment) > 0, what="a conflict")
    for load, one in zip(loads, (path, *others), strict=True):
        assert not load.broken
        assert not load.refused
        values = everything(deployment, one)
        check(load, values)
        assert len(values) == len(load.told)


def test_nothing_is_stored_after_the_answer_of_a_fence(deployment: TwoNodes) -> None:
    """L11."""
    path = a_stream(deployment)
    load = Load(direct(deployment), path)
    with load.going(), deployment.client() as client:
        load.goes_on()
        fenced = client.patch(path, json={"fenced": True}, headers={"if-match": "*"})
        assert fenced.status_code == httpx.codes.OK, fenced.text
        end = len(everything(deployment, path))
        until(lambda: load.refused["409 stream-fenced"] >= 20, what="refusals")
        assert len(everything(deployment, path)) == end
        assert max(one.offset for one in load.told) < end
        client.patch(path, json={"fenced": False}, headers={"if-match": "*"}).raise_for_status()
        load.goes_on()
    assert not load.broken
    assert set(load.refused) == {"409 stream-fenced"}
    check(load, everything(deployment, path))


def test_what_was_sent_to_a_deleted_stream_is_not_in_the_next_of_its_name(
    deployment: TwoNodes,
) -> None:
    """L12."""
    path = a_stream(deployment)
    load = Load(direct(deployment), path)
    with load.going(), deployment.client() as client:
        load.goes_on()
        old = client.get(path).json()["stream_id"]
        assert client.delete(path).status_code == httpx.codes.ACCEPTED
        created = client.put(path, json={"profile": "leaderless"})
        assert created.status_code == httpx.codes.CREATED, created.text
        new = created.json()["stream_id"]
        load.goes_on()
    assert not load.broken
    known = {"404 stream-not-found", *(f"409 {code}" for code in NEW_STREAM)}
    assert set(load.refused) <= known, load.refused
    assert {one.stream_id for one in load.told} == {old, new}
    values = everything(deployment, path)
    check(load, values, new)
    assert len(values) == sum(one.stream_id == new for one in load.told)


def test_nodes_restart_in_turn_and_every_request_is_answered(deployment: TwoNodes) -> None:
    """L36."""
    path = a_stream(deployment)
    load = Load(lambda _: deployment.url, path)
    with load.going():
        load.goes_on()
        for node in NODES:
            assert deployment[node].stop() == 0
            load.goes_on()
            deployment[node].start()
            load.goes_on()
    assert not load.broken
    assert all(one.startswith("503 ") for one in load.refused), load.refused
    values = everything(deployment, path)
    check(load, values)
    assert len(values) == len(load.told)
