"""Streams whose tail lies on three nodes: who owns one, what lies where, who appends to it.

The nodes are whole servers that share coordination and objects, so a client may come to any of them,
and three processes are all that runs. What is read of coordination and of disks is read past them.
"""

import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any, Final

import httpx
import orjson

from bottomless.formats.stream_record import decode_record
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.stores.node_facts import facts_key
from bottomless_server.stores.streams import stream_key
from support.links import Links, running_links
from support.ports import lasting_ports
from support.server import AllInOne
from support.stored import StoredFiles
from support.valkey import another_client, running_valkey
from support.waiting import until

NODES: Final = ("first", "second", "third")
SETTINGS: Final = {
    "BOTTOMLESS_INGEST_LEASE_MS": "3000",
    "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "300",
    "BOTTOMLESS_INGEST_RENEW_MS": "500",
    # Nobody is evicted who lives, also on a machine on which a process stands still for seconds.
    "BOTTOMLESS_INGEST_REPLICA_WAIT_MS": "3000",
    "BOTTOMLESS_INGEST_REPLICA_JOIN_MS": "100",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "50",
    "BOTTOMLESS_UPLOADER_NODES_MS": "300",
}
SLOW: Final = {"target_bytes": 67_108_864, "max_age_ms": 86_400_000}
"""Nothing is uploaded, so what is acknowledged lies in logs alone."""
PRODUCERS: Final = 3
PAUSE_SECONDS: Final = 0.02
"""Between an answer and the next append of a producer."""
NOT_NOW: Final = (503, 504)


class ThreeServers:
    """Three nodes with a disk each; coordination is behind a link of each node's own."""

    def __init__(
        self,
        directory: Path,
        coordination_url: str,
        links: Links,
        settings: Mapping[str, str],
    ) -> None:
        self.coordination_url = coordination_url
        self.links = links
        self.servers: dict[str, AllInOne] = {}
        server = coordination_url.removeprefix("unix://").partition("?")[0]
        for name, port in zip(NODES, lasting_ports(len(NODES)), strict=True):
            way = str(directory / f"{name}-to-valkey")
            links.open(name, way, server)
            own = {
                **SETTINGS,
                "BOTTOMLESS_STORE_URL": StoredFiles(directory / "objects").url,
                "BOTTOMLESS_COORDINATION_URL": f"unix://{way}?db=0",
                **settings,
            }
            self.servers[name] = AllInOne(directory / name, own, port)

    def __getitem__(self, name: str) -> AllInOne:
        return self.servers[name]

    def start(self) -> None:
        """Start who does not run, and return when all are ready."""
        for server in self.servers.values():
            server.spawn()
        for server in self.servers.values():
            server.start()

    def lose(self, name: str) -> None:
        """SIGKILL one, and remove its disk."""
        self[name].kill()
        shutil.rmtree(self[name].data_dir)

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """SIGSTOP one for the length of a block."""
        self[name].send(signal.SIGSTOP)
        try:
            yield
        finally:
            self[name].send(signal.SIGCONT)

    def node_id(self, name: str) -> NodeId | None:
        """Which node has this disk; None before anybody has started there."""
        path = self[name].ingest_dir / "node.json"
        return NodeId(orjson.loads(path.read_bytes())["node_id"]) if path.exists() else None

    def is_away(self, name: str) -> bool:
        """Whether a node has no lease."""
        return not self.is_live(self.node_id(name))

    def is_live(self, node: NodeId | None) -> bool:
        """Whether a node has a lease, also one whose disk is gone."""
        return self._has(f"bottomless:node:{node}")

    def says_nothing_of_itself(self, name: str) -> None:
        """Let a node look like one of the release before replicas, until it enters itself anew."""
        with another_client(self.coordination_url) as client:
            node = self.node_id(name)
            assert node is not None
            client.delete(facts_key(node))

    def says_something_of_itself(self, name: str) -> bool:
        """Whether a node has entered itself with what it is, perhaps once more."""
        node = self.node_id(name)
        assert node is not None
        return self._has(facts_key(node))

    def _has(self, key: str) -> bool:
        with another_client(self.coordination_url) as client:
            return bool(client.exists(key))


@contextmanager
def three_servers(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    start: Callable[[ThreeServers], None] = ThreeServers.start,
) -> Iterator[ThreeServers]:
    """Start a Valkey and three nodes; what runs of them at the end is killed. `start` starts the nodes."""
    with ExitStack() as running:
        valkey = running.enter_context(running_valkey(directory / "valkey"))
        links = running.enter_context(running_links())
        nodes = ThreeServers(directory, valkey.url, links, settings or {})
        for server in nodes.servers.values():
            running.push(server)
        start(nodes)
        yield nodes


class ReplicatedStream:
    """One stream that nodes hold."""

    def __init__(
        self,
        nodes: ThreeServers,
        name: str,
        replication: Mapping[str, int] | None = None,
        fragment: Mapping[str, int] | None = None,
    ) -> None:
        self.nodes = nodes
        self.name = name
        self.path = f"/v1/streams/{name}"
        config = {"fragment": fragment or SLOW, "replication": replication or {"replicas": 3}}
        with nodes["first"].client() as client:

            def created() -> httpx.Response | None:
                answer = client.put(self.path, json=config)
                assert answer.status_code in (200, 201, 503), answer.text
                return answer if answer.is_success else None

            self.stream_id = StreamId(until(created, what="a stream").json()["stream_id"])

    def record(self) -> StreamRecord:
        """What coordination says."""
        with another_client(self.nodes.coordination_url) as client:
            value: Any = client.get(stream_key(self.stream_id))
        return decode_record(value)

    @property
    def owner(self) -> str:
        """Who claimed it last; empty if that node's disk is gone, or nobody has."""
        return self._names().get(self.record().home or NodeId(""), "")

    def in_sync(self) -> set[str]:
        """Whom the record counts on; empty names are nodes whose disks are gone."""
        names = self._names()
        return {names.get(node, "") for node in self.record().in_sync}

    def members(self) -> set[str]:
        """Who holds it, or is to."""
        names = self._names()
        return {names.get(node, "") for node in self.record().members}

    def until_in_sync(self, *names: str) -> None:
        """Wait until these are in sync and nobody else."""
        until(lambda: self.in_sync() == set(names), what=f"{names} in sync")

    def until_held_by(self, *names: str) -> None:
        """Wait until exactly these hold it, and have everything."""
        until(
            lambda: self.members() == self.in_sync() == set(names),
            what=f"{names} to hold it, and nobody else",
        )

    def until_owned(self, *names: str) -> str:
        """Wait until one of these owns it, and return which."""

        def owner() -> str | None:
            found = self.owner
            return found if found in names else None

        return until(owner, what=f"{names} to own it")

    def move(self, target: str) -> None:
        """Give it to a node, as an operator does; it may be another one's by the time that this ends."""
        path = f"/v1/admin{self.path.removeprefix('/v1')}/owner"
        with self.nodes[target].client() as client:

            def accepted() -> httpx.Response | None:
                answer = client.post(path, json={"node": self.nodes.node_id(target)})
                # It may just be evicted, on a machine that stands still.
                assert answer.status_code in (202, 409, 503), answer.text
                return answer if answer.is_success else None

            operation = f"/v1/operations/{until(accepted, what='a move').json()['operation_id']}"
            until(
                lambda: client.get(operation).json().get("state") in ("succeeded", "failed"),
                what="the end of a move",
            )

    def others(self, name: str) -> list[str]:
        """The nodes but this one."""
        return [one for one in NODES if one != name]

    def append(
        self, name: str, *values: str, producer: str = "", sequence: int = 0
    ) -> httpx.Response:
        """Send an append to a node, once."""
        headers = {"producer-id": producer, "producer-seq": str(sequence)} if producer else {}
        body = {"records": [{"value": value} for value in values]}
        with self.nodes[name].client() as client:
            return client.post(f"{self.path}/records", json=body, headers=headers)

    def appended(self, name: str, *values: str, producer: str, sequence: int) -> None:
        """Have it acknowledged, however often it is sent."""

        def is_taken() -> bool:
            answer = self.append(name, *values, producer=producer, sequence=sequence)
            assert answer.status_code in (200, *NOT_NOW), answer.text
            return answer.is_success

        until(is_taken, what=f"{values} to be stored")

    def appending(self, producer: str) -> Callable[[str, int], list[str]]:
        """A strict producer: it has so many appends of 5,000 bytes acknowledged by way of a node, and
        returns all values so far."""
        sent: list[str] = []

        def append(name: str, count: int) -> list[str]:
            for number in range(len(sent), len(sent) + count):
                value = f"{number}".rjust(5_000)
                self.appended(name, value, producer=producer, sequence=number)
                sent.append(value)
            return sent

        return append

    def values(self, name: str, first_offset: int = 0) -> list[str]:
        """Of all records from an offset on, which follow each other, as a node shows them."""
        found: list[str] = []
        with self.nodes[name].client() as client:
            while True:

                def page(offset: int = first_offset + len(found)) -> dict[str, Any] | None:
                    asked = {"offset": offset, "limit": 10_000}
                    answer = client.get(f"{self.path}/records", params=asked)
                    assert answer.status_code in (200, 503), answer.text
                    return answer.json() if answer.is_success else None

                got = until(page, what="a page")
                offsets = [one["offset"] for one in got["records"]]
                assert offsets == list(range(first_offset + len(found), got["next_offset"]))
                found += [one["value"] for one in got["records"]]
                if got["up_to_date"]:
                    return found

    def entries(self, name: str) -> list[dict[str, Any]]:
        """Of its manifest, gaps among them."""
        with self.nodes[name].client() as client:

            def told() -> httpx.Response | None:
                answer = client.get(f"{self.path}/manifest")
                assert answer.status_code in (200, 503), answer.text
                return answer if answer.is_success else None

            found: list[dict[str, Any]] = until(told, what="a manifest").json()["entries"]
            return found

    def log_dir(self, name: str) -> Path:
        """The log of a node."""
        return self.nodes[name].ingest_dir / "streams" / self.stream_id

    def copy_log(self, name: str, target: Path) -> None:
        """Keep the log of a node as it is now, by hand. The node may write a file anew meanwhile, and a
        part of that has another name for a moment."""

        def copied() -> bool:
            shutil.rmtree(target, ignore_errors=True)
            try:
                shutil.copytree(self.log_dir(name), target)
            except shutil.Error:
                return False
            return True

        until(copied, what="a copy of a log")

    def segments(self, name: str) -> dict[str, bytes]:
        """The files of the log of a node."""
        return {
            path.name: path.read_bytes() for path in sorted(self.log_dir(name).glob("*.segment"))
        }

    def require_same(self, *names: str) -> None:
        """These are in sync, and what is acknowledged lies on all of them, byte for byte; nobody appends.

        A node that the machine let wait may be evicted at any time, and comes back.
        """

        until(
            lambda: self.in_sync() == set(names) and self.is_same(*names),
            what=f"{names} to be alike",
        )

    def require_same_of(self, count: int) -> None:
        """So many nodes, whichever they are by now, are in sync and alike; nobody appends."""

        def alike() -> bool:
            names = self.in_sync()
            return len(names) == count and self.is_same(*names) and self.in_sync() == names

        until(alike, what=f"{count} nodes to be alike")

    def is_same(self, *names: str) -> bool:
        """Whether these have the same files, and some."""
        try:
            first, *others = (self.segments(name) for name in names)
        except FileNotFoundError:
            # One has just thrown its log away, and gets it anew.
            return False
        return bool(first) and all(other == first for other in others)

    def _names(self) -> dict[NodeId, str]:
        found = {self.nodes.node_id(name): name for name in NODES}
        return {node: name for node, name in found.items() if node is not None}


@dataclass
class Producer:
    """Sends numbers in order, each append again until it is answered, to any node that is there."""

    name: str
    next_number: int = 0
    longest: float = 0.0
    """Seconds between two answers, at most."""

    def run(self, urls: Sequence[str], path: str, stop: threading.Event) -> None:
        """Until the stop."""
        with ExitStack() as open_clients:
            made = [httpx.Client(base_url=url, timeout=60) for url in urls]
            clients = cycle([open_clients.enter_context(one) for one in made])
            client = next(clients)
            while not stop.is_set():
                began = time.monotonic()
                while not self._send(client, path):
                    client = next(clients)
                    stop.wait(0.02)
                self.longest = max(self.longest, time.monotonic() - began)
                # Enough is always under way, and the machine has more to do.
                stop.wait(PAUSE_SECONDS)

    def _send(self, client: httpx.Client, path: str) -> bool:
        body = {"records": [{"value": f"{self.name} {self.next_number}"}]}
        headers = {"producer-id": self.name, "producer-seq": str(self.next_number)}
        try:
            answer = client.post(f"{path}/records", json=body, headers=headers)
        except httpx.TransportError:
            return False
        if answer.is_success:
            self.next_number += 1
        else:
            assert answer.status_code in NOT_NOW, answer.text
        return answer.is_success


class BareProducer:
    """Sends each value once, to the nodes in turn, and never again: as curl does, without numbers."""

    def __init__(self, stream: ReplicatedStream) -> None:
        self.refusals: Counter[str] = Counter()
        """Answers but 200, by their codes."""
        self._stream = stream
        self._stored: list[str] = []
        self._refused: list[str] = []
        """Of which it was said that nothing was stored."""
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when nothing is under way."""
        self._stop.set()
        self._thread.join(240)
        assert not self._thread.is_alive(), "an append is never answered"
        assert self._failure is None, self._failure

    def require_true(self, values: Sequence[str]) -> None:
        """What was acknowledged is among these, each once, and nothing of what was refused."""
        found = Counter(values)
        assert [value for value in self._stored if found[value] != 1] == []
        assert [value for value in self._refused if found[value]] == []

    def _run(self) -> None:
        try:
            numbers = count()
            with ExitStack() as open_clients:
                urls = [self._stream.nodes[name].url for name in NODES]
                made = [httpx.Client(base_url=url, timeout=60) for url in urls]
                clients = cycle([open_clients.enter_context(one) for one in made])
                while not self._stop.wait(PAUSE_SECONDS):
                    self._send(next(clients), f"bare {next(numbers)}")
        except Exception as error:  # noqa: BLE001
            self._failure = error

    def _send(self, client: httpx.Client, value: str) -> None:
        try:
            answer = client.post(
                f"{self._stream.path}/records", json={"records": [{"value": value}]}
            )
        except httpx.TransportError:
            # Of a node that is stopped: nothing is known.
            self.refusals["no answer"] += 1
            return
        if answer.is_success:
            self._stored.append(value)
            return
        assert answer.status_code in NOT_NOW, answer.text
        said = answer.json()
        self.refusals[said["code"]] += 1
        if said["outcome"] == "none":
            self._refused.append(value)


class Producing:
    """Producers that are at work."""

    def __init__(self, stream: ReplicatedStream) -> None:
        self.producers = [Producer(f"p{number}") for number in range(PRODUCERS)]
        self._stop = threading.Event()
        urls = [stream.nodes[name].url for name in NODES]
        self._threads = [
            threading.Thread(target=each.run, args=(urls, stream.path, self._stop), daemon=True)
            for each in self.producers
        ]
        for thread in self._threads:
            thread.start()

    def wait_for_answers(self, count: int = 5) -> None:
        """Return when each has so many more."""
        wanted = [each.next_number + count for each in self.producers]
        until(
            lambda: all(
                each.next_number >= least
                for each, least in zip(self.producers, wanted, strict=True)
            ),
            what="answers to every producer",
        )

    def stop(self) -> None:
        """Return when each knows of all that it sent."""
        self._stop.set()
        for thread in self._threads:
            thread.join(240)
            assert not thread.is_alive(), "an append is sent again and again, and never answered"

    def require_once(self, values: Sequence[str]) -> None:
        """These are all records, each producer's once and in order."""
        for each in self.producers:
            numbers = [int(one.split()[1]) for one in values if one.split()[0] == each.name]
            assert numbers == list(range(each.next_number)), each.name


@contextmanager
def producing(stream: ReplicatedStream) -> Iterator[Producing]:
    """Three strict producers, for the length of a block; in the end each record is there once.

    How long one waited at most is printed, and no verdict.
    """
    at_work = Producing(stream)
    try:
        at_work.wait_for_answers()
        stream.until_in_sync(*NODES)
        yield at_work
        at_work.wait_for_answers()
    finally:
        at_work.stop()
    longest = max(each.longest for each in at_work.producers)
    print(
        f"longest wait of a producer of {stream.name}: {longest:.1f} s, load {os.getloadavg()[0]:.0f}"
    )
    stream.nodes.start()
    at_work.require_once(stream.values("first"))
