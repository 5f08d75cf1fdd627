"""Which ingest nodes are alive, and where."""

from bottomless.model.names import NodeId
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.stores.ingest_nodes import (
    IngestNode,
    announce,
    claiming_nodes,
    live_nodes,
    mark_emptied,
    withdraw,
)
from bottomless_server.stores.streams import node_key

A, B = NodeId("a" * 32), NodeId("b" * 32)


async def test_a_node_is_listed_as_long_as_its_lease_lives() -> None:
    now = 1_000
    coordination = MemoryCoordination(lambda: now)
    await announce(coordination, IngestNode(A, "http://a:1"))
    await announce(coordination, IngestNode(B, "unix:///b"))
    assert await live_nodes(coordination) == []

    await coordination.hold(node_key(A), b"a", 10_000)
    await coordination.hold(node_key(B), b"b", 20_000)
    both = [IngestNode(A, "http://a:1"), IngestNode(B, "unix:///b")]
    assert await live_nodes(coordination) == both
    now += 15_000
    assert await live_nodes(coordination) == both[1:]


async def test_a_node_that_is_emptied_gets_no_stream_as_long_as_there_is_another() -> None:
    coordination = MemoryCoordination(lambda: 0)
    both = [IngestNode(A, "http://a:1"), IngestNode(B, "http://b:1")]
    for node in both:
        await announce(coordination, node)
        await coordination.hold(node_key(node.node_id), b"x", 10_000)
    assert await claiming_nodes(coordination) == both
    await mark_emptied(coordination, A)
    assert await claiming_nodes(coordination) == both[1:]
    await mark_emptied(coordination, B)
    assert await claiming_nodes(coordination) == both


async def test_a_node_that_moved_is_listed_once_and_one_that_left_is_not() -> None:
    coordination = MemoryCoordination(lambda: 0)
    await coordination.hold(node_key(A), b"a", 10_000)
    for url in ("http://a:2", "http://a:1", "http://a:1"):
        await announce(coordination, IngestNode(A, url))
    assert await live_nodes(coordination) == [IngestNode(A, "http://a:1")]

    await withdraw(coordination, A)
    await withdraw(coordination, A)
    assert await live_nodes(coordination) == []
