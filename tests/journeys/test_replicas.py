"""Three ingest nodes with a disk each, and a stream whose tail lies on all of them.

Nothing is uploaded (`SLOW`), so what is acknowledged lies in logs alone, and these are compared byte
for byte. A machine that stands still may have nodes evicted that live: they come back, and each step
waits until all are in sync that run.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import orjson
import pytest
from support.processes import Process
from support.separate_processes import ThreeNodes, three_nodes
from support.valkey import another_client
from support.waiting import until

from bottomless.formats.stream_record import decode_record
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.stores.streams import stream_key

SETTINGS: Final = {
    "BOTTOMLESS_INGEST_LEASE_MS": "10000",
    "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "1000",
    "BOTTOMLESS_INGEST_RENEW_MS": "500",
    "BOTTOMLESS_INGEST_REPLICA_WAIT_MS": "1000",
    "BOTTOMLESS_INGEST_REPLICA_JOIN_MS": "100",
    "BOTTOMLESS_INGEST_SEGMENT_SIZE_MAX": "65536",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "50",
}
SLOW: Final = {"target_bytes": 67_108_864, "max_age_ms": 86_400_000}
PATH: Final = "/v1/streams/orders"
NODES: Final = ("ingest", "ingest-2", "ingest-3")


class Stream:
    """One stream, and a producer that sends each append again until it is acknowledged."""

    def __init__(self, deployment: ThreeNodes, replication: dict[str, int]) -> None:
        self.deployment = deployment
        self.sent: list[str] = []
        with deployment.client() as client:
            config = {"fragment": SLOW, "replication": replication}
            created = client.put(PATH, json=config)
            assert created.status_code == 201, created.text
            self.stream_id = StreamId(created.json()["stream_id"])

    def append(self, node: str, count: int) -> None:
        """Have so many more appends acknowledged."""
        for _ in range(count):
            number = len(self.sent)
            value = f"{number}".rjust(5_000)
            headers = {"producer-id": "p", "producer-seq": str(number)}
            body = {"records": [{"value": value}]}

            until(partial(self._is_taken, node, body, headers), what=f"append {number}")
            self.sent.append(value)

    def _is_taken(self, node: str, body: object, headers: Mapping[str, str]) -> bool:
        with self.deployment[node].client() as client:
            answer = client.post(f"{PATH}/records", json=body, headers=headers)
        # It may be held, or come between two owners; it is told from its repeat by its number.
        assert answer.status_code in (200, 503, 504), answer.text
        return answer.status_code == httpx.codes.OK

    def record(self) -> StreamRecord:
        with another_client(self.deployment.coordination_url) as client:
            value = client.get(stream_key(self.stream_id))
        assert isinstance(value, bytes)
        return decode_record(value)

    def in_sync(self) -> set[str]:
        """The nodes that the record counts on."""
        names = {_node_id(self.deployment.ingest_dirs[name]): name for name in NODES}
        return {names[node] for node in self.record().in_sync}

    def until_in_sync(self, *nodes: str) -> None:
        until(lambda: self.in_sync() == set(nodes), what=f"{nodes} in sync")

    def segments(self, node: str) -> dict[str, bytes]:
        directory = self.deployment.ingest_dirs[node] / "streams" / self.stream_id
        return {path.name: path.read_bytes() for path in sorted(directory.glob("*.segment"))}

    def require_same(self, *nodes: str) -> None:
        """What is acknowledged lies on all of these, byte for byte."""
        first, *others = (self.segments(node) for node in nodes)
        assert len(first) > 1
        assert all(other == first for other in others)

    def values(self) -> list[str]:
        found: list[str] = []
        with self.deployment.client() as client:
            while True:
                page = client.get(f"{PATH}/records", params={"offset": len(found), "limit": 1_000})
                if page.status_code == 503:
                    continue
                assert page.status_code == httpx.codes.OK, page.text
                found += [one["value"] for one in page.json()["records"]]
                if page.json()["up_to_date"]:
                    return found


def _node_id(directory: Path) -> str:
    found: str = orjson.loads((directory / "node.json").read_bytes())["node_id"]
    return found


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    with three_nodes(tmp_path_factory.mktemp("replicas"), SETTINGS) as running:
        yield running


def killed(deployment: ThreeNodes, node: str) -> Process:
    deployment.kill(node)
    return deployment[node]


def test_what_is_acknowledged_lies_on_three_disks_while_each_node_dies_once(
    deployment: ThreeNodes,
) -> None:
    stream = Stream(deployment, {"replicas": 3})
    stream.append("ingest", 30)
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)

    # A follower dies: it is evicted, and appends go on.
    follower = killed(deployment, "ingest-2")
    stream.append("ingest", 30)
    stream.until_in_sync("ingest", "ingest-3")
    stream.require_same("ingest", "ingest-3")
    assert stream.segments("ingest-2") != stream.segments("ingest")

    # It comes back and has what it missed, before it counts again.
    follower.start()
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)
    stream.append("ingest-2", 10)
    assert stream.values() == stream.sent

    # The owner dies and comes back: nothing is missing that was acknowledged.
    killed(deployment, "ingest").start()
    stream.append("ingest-3", 10)
    assert stream.values() == stream.sent
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)
