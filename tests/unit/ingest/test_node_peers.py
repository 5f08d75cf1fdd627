"""The ways to other nodes: their addresses are asked for, and asked for again when nobody answers."""

from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
from starlette.types import Receive, Scope, Send
from support.asgi import on_tcp

from bottomless.errors import Code, Unavailable
from bottomless.model.names import NodeId
from bottomless_server.coordination.base import Changes
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.ingest.replicas.node_peers import NodePeers
from bottomless_server.protocol.replica import NODE_HEADER
from bottomless_server.stores.ingest_nodes import IngestNode, announce
from bottomless_server.stores.node_facts import NodeFacts, facts_key

A = NodeId("a" * 32)


class Counted(MemoryCoordination):
    """Counts what is asked of it."""

    asked = 0

    async def get(self, redis_key: str) -> bytes | None:
        self.asked += 1
        return await super().get(redis_key)


named: list[bytes] = []
"""The nodes that requests were for."""


async def is_at(coordination: MemoryCoordination, port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    await announce(coordination, IngestNode(A, url), NodeFacts(url, "", "0.1.0"))


def says(what: bytes) -> object:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        named.extend(value for key, value in scope["headers"] if key == NODE_HEADER.encode())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": what})

    return app


@pytest.mark.parametrize("sends", [True, False])
async def test_a_node_that_moves_is_found_after_one_call_that_nobody_answers(sends: bool) -> None:
    coordination = Counted(lambda: 0)
    peers = NodePeers(coordination, None)
    named.clear()

    async def ask() -> Any:
        if sends:
            return orjson.loads(await peers.of(A).post("/", [b"x"], "text/plain", 30))
        return await peers.of(A).get("/", 30)

    async with AsyncExitStack() as first:
        await is_at(coordination, await first.enter_async_context(on_tcp(says(b"1"))))  # type: ignore[arg-type]
        coordination.asked = 0
        assert [await ask() for _ in range(3)] == [1] * 3
        assert named == [A.encode()] * 3, "each call is for the node that is meant"
        assert coordination.asked == 1
    async with on_tcp(says(b"2")) as port:  # type: ignore[arg-type]
        await is_at(coordination, port)
        with pytest.raises(Unavailable) as failed:
            await ask()
        assert failed.value.code is Code.PEER_UNAVAILABLE
        assert await ask() == 2
        await peers.aclose()


@pytest.mark.parametrize("said", [None, b"?"])
async def test_a_node_that_does_not_say_where_it_is_is_not_reached(said: bytes | None) -> None:
    coordination = MemoryCoordination(lambda: 0)
    coordination.write(Changes({facts_key(A): said}))
    peers = NodePeers(coordination, None)
    with pytest.raises(Unavailable, match="not reached") as failed:
        await peers.of(A).post("/", [b"x"], "text/plain", 30)
    assert failed.value.code is Code.PEER_UNAVAILABLE
    await peers.aclose()
