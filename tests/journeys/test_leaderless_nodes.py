"""Leaderless streams over two ingest nodes, one of them without a disk: under load, each as it was told.

Real processes behind nginx, some seconds of CPU for all of it. What is compared are offsets and answers; what
comes first is left to the machine, so every check holds in any order.
"""

import asyncio
import itertools
import os
import re
import secrets
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from support.separate_processes import TwoNodes, two_nodes
from support.skewed_clock import SkewedClock
from support.valkey import another_client
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "5",
    "BOTTOMLESS_INGEST_WAL_NOTE_MS": "100",
    "BOTTOMLESS_DRAIN_SECONDS": "10",
    "BOTTOMLESS_MANIFEST_WAL_VACUUM_MS": "500",
    "BOTTOMLESS_UPLOADER_WAL_LEASE_MS": "5000",
}
NODES: Final = ("ingest", "ingest-2")
CLIENTS_PER_NODE = 3
TEN_NODES: Final = 10
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
    nodes: tuple[str, ...] = NODES
    clients: int = CLIENTS_PER_NODE
    """Clients of each of the nodes."""
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
            for node in self.nodes
            for place in range(self.clients)
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
            return len(now) == len(self.nodes) * self.clients and all(
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


@pytest.mark.parametrize(("clients", "other_count"), [(3, 4), (8, 100)])
def test_two_nodes_write_one_stream_beside_others(
    deployment: TwoNodes, clients: int, other_count: int
) -> None:
    """L6; each of the other streams has one client, of one of the nodes."""
    before = conflicts(deployment)
    loads = [Load(direct(deployment), a_stream(deployment), clients=clients)]
    loads += [
        Load(direct(deployment), a_stream(deployment), (node,), clients=1)
        for node in itertools.islice(itertools.cycle(NODES), other_count)
    ]
    with ExitStack() as going:
        for load in loads:
            going.enter_context(load.going())
        for load in loads:
            load.goes_on()
        # Not vacuous: the nodes really meet, and nobody is told.
        until(lambda: conflicts(deployment) > before, what="a conflict")
    for load in loads:
        assert not load.broken
        assert not load.refused
        values = everything(deployment, load.path)
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


PRODUCERS: Final = ("strict", "highwater", "keyed", "plain")


def test_producers_of_all_modes_go_from_node_to_node(deployment: TwoNodes) -> None:
    """L10: each append and its repeat meet different nodes, with appends of others under way at both."""
    path = a_stream(deployment)
    told: dict[str, list[tuple[int, str]]] = {mode: [] for mode in PRODUCERS}

    def produce(mode: str) -> None:
        with httpx.Client(timeout=60) as client:
            for number in range(2 * STEPS):
                value = f"{mode} {number}"
                headers, record = said_by(mode, number, value)
                first, again = (
                    stored(client, deployment[node].url + path, headers, record)
                    for node in (NODES[number % 2], NODES[1 - number % 2])
                )
                told[mode].append((first["first_offset"], value))
                if mode == "plain":
                    told[mode].append((again["first_offset"], value))
                else:
                    # A key stands for its first answer, whole.
                    assert again["duplicates"] == (0 if mode == "keyed" else 1)
                    assert again["first_offset"] in (first["first_offset"], None)

    with ThreadPoolExecutor(len(PRODUCERS)) as pool:
        for one in [pool.submit(produce, mode) for mode in PRODUCERS]:
            one.result()
    values = everything(deployment, path)
    flat = [one for found in told.values() for one in found]
    assert sorted(flat) == list(enumerate(values))
    for found in told.values():
        assert [offset for offset, _ in found] == sorted(offset for offset, _ in found)


def said_by(mode: str, number: int, value: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Headers and record of the append of one number."""
    headers = {"producer-id": mode, "producer-seq": str(number)}
    if mode == "strict":
        return headers, {"value": value}
    if mode == "highwater":
        return {"producer-id": mode}, {"value": value, "publishing_id": number}
    return {"idempotency-key": f"{number}"} if mode == "keyed" else {}, {"value": value}


def stored(
    client: httpx.Client, url: str, headers: dict[str, str], record: dict[str, Any]
) -> dict[str, Any]:
    """Append one record; a refusal for a moment is said again."""

    def answered() -> httpx.Response | None:
        answer = client.post(f"{url}/records", json={"records": [record]}, headers=headers)
        return None if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE else answer

    answer = until(answered, what="an append")
    assert answer.status_code == httpx.codes.OK, answer.text
    said: dict[str, Any] = answer.json()
    return said


def test_a_node_that_slept_until_it_was_given_up_commits_nothing_that_is_gone(
    deployment: TwoNodes,
) -> None:
    """L26: between put and EXEC, until its writer is settled, and until nothing is known of it. It is a
    third node, whose lease is short: whoever waits for the end of a writer waits for its lease."""
    path = a_stream(deployment)
    own = {
        "BOTTOMLESS_DATA_DIR": str(deployment.directory / "data-slept"),
        "BOTTOMLESS_INGEST_PROFILES": "leaderless",
        "BOTTOMLESS_INGEST_URL": deployment.internal_url("ingest-3"),
        "BOTTOMLESS_INGEST_LEASE_MS": "3000",
        "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "300",
        "BOTTOMLESS_INGEST_RENEW_MS": "600",
    }
    expected = ["before"]
    with (
        deployment.another("ingest", 3, own) as slept,
        httpx.Client(timeout=240) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        url = slept.url + path
        told = [stored(client, url, {}, {"value": "before"})["first_offset"]]
        for gone in (is_dead, is_forgotten):
            writer, late = living(deployment, "ingest-3"), f"late {secrets.token_hex(16)}"
            with coordination_asleep(deployment):
                appending = pool.submit(stored, client, url, {}, {"value": late})
                until(partial(is_in_the_store, deployment, late), what="the put of the append")
                slept.send(signal.SIGSTOP)
            try:
                until(partial(gone, deployment, writer), what="the end of the writer")
            finally:
                slept.send(signal.SIGCONT)
            told.append(appending.result()["first_offset"])
            told.append(stored(client, url, {}, {"value": "after"})["first_offset"])
            expected += [late, "after"]
    assert everything(deployment, path) == expected
    assert told == [*range(len(expected))]


@contextmanager
def coordination_asleep(deployment: TwoNodes) -> Iterator[None]:
    """Nothing is committed inside the block."""
    with another_client(deployment.coordination_url) as client:
        pid = int(client.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def is_in_the_store(deployment: TwoNodes, value: str) -> bool:
    for key in deployment.stored.sizes():
        # What nobody needs any more is deleted meanwhile.
        with suppress(FileNotFoundError):
            if key.endswith(".wal") and value.encode() in deployment.stored.read(key):
                return True
    return False


def instances(deployment: TwoNodes) -> dict[str, dict[str, Any]]:
    with deployment.client() as client:
        report = client.get("/v1/admin/wal").raise_for_status().json()
    return {one["instance"]: one for one in report["instances"]}


def living(deployment: TwoNodes, node: str) -> str:
    """The instance with which a node writes."""

    def found() -> str | None:
        url = deployment.internal_url(node)
        lives = [
            name
            for name, one in instances(deployment).items()
            if one["state"] == "live" and one["url"] == url
        ]
        return lives[0] if len(lives) == 1 else None

    return until(found, what="one writer of the node")


def is_dead(deployment: TwoNodes, instance: str) -> bool:
    found = instances(deployment).get(instance)
    return found is None or (found["state"] == "dead" and found["settled"] == found["reserved"])


def is_forgotten(deployment: TwoNodes, instance: str) -> bool:
    """Ask for a round, so that nothing holds what it put; whether its record is gone."""
    with deployment.internal("uploader") as uploader:
        uploader.post("/internal/v1/compact").raise_for_status()
    found = instances(deployment).get(instance)
    return found is None or found["state"] == "forgotten"


def test_an_uploader_that_slept_changes_nothing_when_it_wakes(deployment: TwoNodes) -> None:
    """L23: it is stopped where a fragment of its round is in the store, and another one does it all."""
    path = a_stream(deployment)
    with deployment.client() as client, ThreadPoolExecutor(1) as pool:
        for number in range(3):
            stored(client, deployment["ingest"].url + path, {}, {"value": f"{number}"})
        stream_id = client.get(path).json()["stream_id"]
        late = pool.submit(compact, deployment, "uploader")
        until(lambda: fragments(deployment, stream_id), what="a fragment in the store")
        deployment["uploader"].send(signal.SIGSTOP)
        try:
            with deployment.another("uploader") as second:
                deployment.services["uploader-2"] = second

                def done() -> bool:
                    compact(deployment, "uploader-2")
                    return bool(client.get(path).json()["tail"]["entries"] == 0)

                until(done, what="the round of the second")
                listed = client.get(f"{path}/fragments").raise_for_status().json()["fragments"]
                deployment["uploader"].send(signal.SIGCONT)
                late.result()
                after = client.get(f"{path}/fragments").raise_for_status().json()["fragments"]
        finally:
            deployment["uploader"].send(signal.SIGCONT)
            deployment.services.pop("uploader-2", None)
    assert after == listed
    assert everything(deployment, path) == ["0", "1", "2"]


def compact(deployment: TwoNodes, uploader: str) -> None:
    """Ask for a round; one that slept may have lost what it needs for it."""
    with deployment.internal(uploader) as client:
        client.timeout = httpx.Timeout(240)
        client.post("/internal/v1/compact")


def fragments(deployment: TwoNodes, stream_id: str) -> set[str]:
    keys = deployment.stored.sizes()
    return {key for key in keys if stream_id in key and key.endswith(".fragment")}


def test_a_node_whose_clock_is_an_hour_ahead_refuses_and_moves_no_time(
    deployment: TwoNodes, tmp_path: Path
) -> None:
    """L34."""
    clock = SkewedClock(tmp_path)
    clock.set(3_600_000)
    path = a_stream(deployment)
    own = {
        **clock.environment,
        "BOTTOMLESS_INGEST_PROFILES": "leaderless",
        "BOTTOMLESS_INGEST_URL": deployment.internal_url("ingest-3"),
    }
    with deployment.another("ingest", 3, own) as third, httpx.Client(timeout=60) as client:
        stored(client, deployment["ingest"].url + path, {}, {"value": "0"})

        def refused() -> dict[str, Any] | None:
            answer = client.post(f"{third.url}{path}/records", json={"records": [{"value": "x"}]})
            assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
            problem: dict[str, Any] = answer.json()
            return problem if problem["code"] == "clock-skew" else None

        assert until(refused, what="the refusal")["outcome"] == "none"
        stored(client, deployment["ingest"].url + path, {}, {"value": "1"})
        records = client.get(f"{deployment.url}{path}/records?offset=0").json()["records"]
    assert [one["value"] for one in records] == ["0", "1"]
    assert all(moment(one) < time.time() + 1_800 for one in records)


def moment(record: dict[str, Any]) -> float:
    return datetime.fromisoformat(record["timestamp"]).timestamp()


@pytest.mark.parametrize(("waiting_count", "scan_count"), [(80, 20), (1_000, 100)])
def test_readers_that_wait_and_readers_of_everything_disturb_no_append(
    deployment: TwoNodes, waiting_count: int, scan_count: int
) -> None:
    """L35: each long poll is woken by the append that it waits for."""
    paths = [a_stream(deployment) for _ in range(5)]
    load = Load(direct(deployment), paths[0])
    waiting_at_each = waiting_count // len(paths[1:])

    async def all_of_them() -> list[list[str]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=deployment.url, timeout=240, limits=limits) as client:
            waiting = [
                asyncio.create_task(first_of(client, path))
                for path in paths[1:]
                for _ in range(waiting_at_each)
            ]
            scans = [client.get(f"{paths[0]}/records?offset=0") for _ in range(scan_count)]
            assert all(one.is_success for one in await asyncio.gather(*scans))
            assert not any(one.done() for one in waiting)
            for path in paths[1:]:
                answer = await client.post(f"{path}/records", json={"records": [{"value": path}]})
                answer.raise_for_status()
            return await asyncio.gather(*waiting)

    with load.going():
        load.goes_on()
        found = asyncio.run(all_of_them())
        load.goes_on()
    assert not load.broken
    assert not load.refused
    assert found == [[path] for path in paths[1:] for _ in range(waiting_at_each)]
    check(load, everything(deployment, paths[0]))


async def first_of(client: httpx.AsyncClient, path: str) -> list[str]:
    """Wait at the beginning of a stream until there is something."""
    while True:
        asked = {"offset": 0, "max_wait_ms": 30_000}
        answer = (await client.get(f"{path}/records", params=asked)).raise_for_status()
        if found := [one["value"] for one in answer.json()["records"]]:
            return found


def test_ten_nodes_are_the_first_to_produce_to_one_partition(deployment: TwoNodes) -> None:
    """L40: none of them has a disk; all are asked at the same moment."""
    broker = {"BOTTOMLESS_BROKER": "1", "BOTTOMLESS_BROKER_CREATE": "1"}
    topic = f"ten-{next(_numbers)}"
    with ExitStack() as running:
        nodes = []
        for number in range(3, TEN_NODES + 3):
            own = {
                **broker,
                "BOTTOMLESS_INGEST_PROFILES": "leaderless",
                "BOTTOMLESS_INGEST_URL": f"unix://{deployment.directory}/ingest-{number}.sock",
                "BOTTOMLESS_DATA_DIR": str(deployment.directory / f"data-{number}"),
            }
            node = deployment.another("ingest", number, own)
            running.push(node)
            node.spawn()
            nodes.append(node)
        warm = a_stream(deployment)
        for node in nodes:
            node.start()
            until(partial(takes, node.url, warm), what="a writer that has begun")
        together = threading.Barrier(TEN_NODES, timeout=240)

        def send(number: int) -> list[int]:
            records = [f"{number}-{place}" for place in range(3)]
            asked = {"topic": topic, "partition": 0, "records": records}
            with httpx.Client(timeout=240) as client:
                together.wait()
                answer = client.post(
                    f"{nodes[number].url}/produce", json={"topic_partitions": [asked]}
                )
            assert answer.status_code == httpx.codes.OK, answer.text
            [told] = answer.json()["results"]
            return [*range(told["start_offset"], told["end_offset"])]

        with ThreadPoolExecutor(TEN_NODES) as pool:
            told = list(pool.map(send, range(TEN_NODES)))
    values = everything(deployment, f"/v1/streams/{topic}-0")
    assert len(values) == 3 * TEN_NODES
    for number, offsets in enumerate(told):
        assert [values[offset] for offset in offsets] == [f"{number}-{place}" for place in range(3)]
