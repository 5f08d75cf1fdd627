"""Nodes that still have what they wrote: asked shortly, and only while it is worth it."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.peers import SilentPeer
from unit.reader.leaderless import WatchedCoordination

from bottomless.errors import Code, NotFound, StoreError, Unavailable
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Changes
from bottomless_server.leaderless.instance import WalInstance, encode_instance
from bottomless_server.protocol.peer import PeerBytes
from bottomless_server.reader.leaderless import wal_nodes
from bottomless_server.reader.leaderless.wal_nodes import WalNodes
from bottomless_server.stores.wal import instance_key

INSTANCE, OTHER = Uid("5" * 32), Uid("6" * 32)
URL = "http://ingest-0"


@dataclass
class Node(SilentPeer):
    asked: list[str]
    answer: bytes | StoreError | ValueError = b"bytes"
    seconds: list[Any] = field(default_factory=list)

    def at(self, url: str) -> "Node":
        self.asked.append(url)
        return self

    async def fetch(self, _: str, /, *, timeout_seconds: float | None = None, **__: Any) -> Any:
        self.seconds.append(timeout_seconds)
        await asyncio.sleep(0)
        if isinstance(self.answer, bytes):
            return PeerBytes({}, self.answer)
        raise self.answer


@pytest.fixture
async def node() -> Node:
    return Node([])


@pytest.fixture
async def nodes(node: Node) -> WalNodes:
    coordination = WatchedCoordination()
    for instance in (INSTANCE, OTHER):
        record = encode_instance(WalInstance(URL, 0, 1_024, 0))
        coordination.write(Changes({instance_key(instance): record}))
    return WalNodes(coordination, node, 250)


async def test_a_range_comes_whole_or_not_at_all(nodes: WalNodes, node: Node) -> None:
    assert await nodes.read(INSTANCE, 0, 8, 5) == b"bytes"
    assert (node.asked, node.seconds, nodes.read_count) == ([URL], [0.25], 1)
    assert await nodes.read(INSTANCE, 0, 8, 6) is None
    assert (nodes.read_count, nodes.failure_count) == (1, 1)


@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("it does not answer", code=Code.PEER_UNAVAILABLE),
        ValueError("no url of a peer"),
    ],
)
async def test_a_node_that_fails_is_left_out_for_a_while(
    nodes: WalNodes, node: Node, failure: StoreError | ValueError, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    node.answer = failure
    assert await nodes.read(INSTANCE, 0, 0, 5) is None
    node.answer = b"bytes"
    assert await nodes.read(OTHER, 0, 0, 5) is None, "it is the node of both"
    assert len(node.asked) == 1
    now += wal_nodes.LEFT_OUT_SECONDS
    assert await nodes.read(INSTANCE, 0, 0, 5) == b"bytes"


async def test_a_node_without_an_object_is_not_asked_for_earlier_ones(
    nodes: WalNodes, node: Node
) -> None:
    node.answer = NotFound("it is not here", code=Code.NOT_FOUND)
    assert await nodes.read(INSTANCE, 7, 0, 5) is None
    node.answer = b"bytes"
    assert await nodes.read(INSTANCE, 6, 0, 5) is None
    assert await nodes.read(INSTANCE, 8, 0, 5) == b"bytes"
    assert await nodes.read(OTHER, 3, 0, 5) == b"bytes"
    assert nodes.failure_count == 0


@pytest.mark.parametrize(
    "value", [None, b"damaged", encode_instance(WalInstance(None, 0, 1_024, 1_024))]
)
async def test_an_instance_of_which_nobody_says_where_it_is_is_passed_over(
    node: Node, value: bytes | None
) -> None:
    coordination = WatchedCoordination()
    coordination.write(Changes({instance_key(INSTANCE): value}))
    nodes = WalNodes(coordination, node, 250)
    assert await nodes.read(INSTANCE, 0, 0, 5) is None
    assert node.asked == []


async def test_a_reader_may_be_told_to_ask_no_node(node: Node) -> None:
    nodes = WalNodes(WatchedCoordination(), node, 0)
    assert await nodes.read(INSTANCE, 0, 0, 5) is None
    assert node.asked == []


async def test_where_a_node_is_is_asked_once(nodes: WalNodes, node: Node) -> None:
    await asyncio.gather(*(nodes.read(INSTANCE, number, 0, 5) for number in range(20)))
    assert len(node.asked) == 20
    assert nodes.look_count == 1
