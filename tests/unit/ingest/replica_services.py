"""Three ingest services with disks of their own, which reach each other over HTTP.

They share coordination, and clocks that stand still: time goes on, and leases are renewed, while a test
waits for a fact with `until`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
from starlette.types import Receive, Scope, Send
from support.asgi import on_tcp

from bottomless.drives.base import Drive
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord, StreamState
from unit.ingest.harness import NAME, STREAM, IngestHarness

_STEP_MS: Final = 100
NAMES: Final = ("a", "b", "c")


class Address:
    """Where one service is reached; nobody answers there before it began and after it is gone."""

    def __init__(self) -> None:
        self.harness: IngestHarness | None = None
        self.gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.gone or self.harness is None:
            raise ConnectionError("nobody is here")
        await self.harness.internal_app(scope, receive, send)


class Node:
    """One ingest service."""

    def __init__(self, harness: IngestHarness, address: Address) -> None:
        self.harness = harness
        self.address = address
        self.renews = True

    @property
    def node_id(self) -> NodeId:
        return self.harness.service.lease.node.node_id

    def files(self) -> dict[str, bytes]:
        """The segments that lie here."""
        return {path.name: path.read_bytes() for path in self.harness.segments()}

    async def append(self, *values: str, **headers: str) -> httpx.Response:
        body = orjson.dumps({"records": [{"value": value} for value in values]})
        return await self.harness.append_raw(body, **headers)


class ThreeServices:
    """The nodes a, b and c, and a stream that all of them are to hold."""

    def __init__(
        self,
        path: Path,
        step_down_ms: int = 600_000,
        drive: Drive | None = None,
        replicas: int = 3,
        **settings: Any,
    ) -> None:
        """`step_down_ms`: a round that waits for so long is given up with its stream. `drive` is the
        object store of all of them, if there is one. `replicas`: how many hold the stream at first.
        A caller is told that its append is held after ten minutes where `settings` say nothing else:
        ten seconds of these clocks are over before a slow disk has synced."""
        self._replicas = replicas
        self._path = path
        self._step_down_ms = step_down_ms
        self._drive = drive
        self._settings = {"ingest_replica_commit_ms": 600_000, **settings}
        self._stack = AsyncExitStack()
        self.nodes: list[Node] = []

    async def start(self) -> "ThreeServices":
        for name in NAMES:
            address = Address()
            port = await self._stack.enter_async_context(on_tcp(address))
            first = self.nodes[0].harness if self.nodes else None
            harness = IngestHarness(
                self._path / name,
                before=first,
                drive=self._drive,
                ingest_url=f"http://127.0.0.1:{port}",
                ingest_replica_wait_ms=1_000,
                ingest_replica_join_ms=200,
                ingest_replica_step_down_ms=self._step_down_ms,
                **self._settings,
            )
            self.nodes.append(Node(harness, address))
            address.harness = harness
            await harness.start()
        config = StreamConfig(replication=ReplicationConfig(replicas=self._replicas))
        await self.first.streams.create(
            StreamRecord(STREAM, NAME, "default", StreamState.ACTIVE, 0, config)
        )
        return self

    async def aclose(self) -> None:
        """Close one after the other; time goes on meanwhile, since some wait for those that are gone."""
        for node in self.nodes:
            node.address.gone = False
        for node in self.nodes:
            node.renews = False
            closing = asyncio.create_task(node.harness.aclose())
            while not closing.done():
                await self.step()
            await closing
            node.address.gone = True
        await self._stack.aclose()

    @property
    def first(self) -> IngestHarness:
        return self.nodes[0].harness

    async def record(self) -> StreamRecord:
        return await self.first.streams.load(STREAM)

    async def until(self, fact: Callable[[], Awaitable[bool]]) -> None:
        """Return when something is so, and let time go on meanwhile."""
        async with asyncio.timeout(240):
            while not await fact():
                await self.step()

    async def step(self) -> None:
        """Let some time go on."""
        self.first.time.advance(_STEP_MS)
        for node in self.nodes:
            if node.renews:
                await node.harness.lease.renew()
        await asyncio.sleep(0.002)

    async def set_replicas(self, replicas: int) -> None:
        """Do as a PATCH does, and have the owner look at it."""
        config = StreamConfig(replication=ReplicationConfig(replicas=replicas))
        await self.first.streams.update(STREAM, lambda record: replace(record, config=config))
        for node in self.nodes:
            await node.harness.service.configs.take_up()

    async def until_all_in_sync(self) -> None:
        async def are() -> bool:
            return len((await self.record()).in_sync) == len(self.nodes)

        await self.until(are)

    async def until_same_files(self, *nodes: Node) -> None:
        """Return when all that is acknowledged lies on these nodes, byte for byte: one that was late
        may have been let go, and is counted in again."""

        async def are_same() -> bool:
            first, *others = (node.files() for node in nodes)
            return all(other == first for other in others)

        await self.until(are_same)

    async def until_owned_by(self, *nodes: Node) -> Node:
        """Return the one of these nodes that takes appends, once one does."""

        def owner() -> Node | None:
            return next((one for one in nodes if one.harness.service.streams.owns(STREAM)), None)

        async def is_owned() -> bool:
            return owner() is not None

        await self.until(is_owned)
        found = owner()
        assert found is not None
        return found

    async def until_held_back(self, node: Node) -> None:
        """Return when a node follows the stream no more, since a claim of it may land."""
        failover = node.harness.service.replicas.failover

        async def is_held_back() -> bool:
            return failover.is_held_back(STREAM)

        await self.until(is_held_back)

    async def append(self, node: Node, value: str) -> int:
        """Append a record as often as it is refused with no outcome; returns its offset."""
        async with asyncio.timeout(240):
            while True:
                sending = asyncio.create_task(node.append(value))
                while not sending.done():
                    await self.step()
                answer = sending.result()
                if answer.status_code == 200:
                    return int(answer.json()["first_offset"])
                assert answer.json()["outcome"] == "none", answer.text
                await self.step()

    async def values(self, node: Node) -> list[bytes]:
        return await node.harness.values()

    async def cut_off(self, node: Node) -> None:
        """Nobody reaches a node any more, and its lease runs out; its process goes on."""
        node.address.gone = True
        node.renews = False
