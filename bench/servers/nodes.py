"""Bottomless as several machines run it: three ingest nodes with a disk each, and the other services.

All of it is on one machine here: nodes speak over TCP and show each other the secret, as they do where
they are apart, but they share its cores and its disk. So CPU seconds stand beside every rate.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import httpx
from support.ports import lasting_ports
from support.processes import Process
from support.separate_processes import ThreeNodes
from support.valkey import running_valkey

from bench.servers.ours import Counters
from bench.tree import Tree
from bottomless_server.coordination.embedded import EmbeddedValkey

NODES: Final = ("ingest", "ingest-2", "ingest-3")
FIRST: Final = NODES[0]
_WAIT_SECONDS: Final = 120.0
_STEP_SECONDS: Final = 0.1
_AT_ONCE: Final = 32
"""Questions about streams, and creations of them, that wait for their answers."""
_ITEMS: Final = "/internal/v1/replica"


class _Apart(ThreeNodes):
    """The same over TCP, with metrics."""

    def __init__(self, directory: Path, coordination_url: str, settings: Mapping[str, str]) -> None:
        self.metrics_ports = dict(zip(NODES, lasting_ports(len(NODES)), strict=True))
        self._listens = dict(zip(NODES, lasting_ports(len(NODES)), strict=True))
        super().__init__(
            directory,
            coordination_url,
            {**settings, "BOTTOMLESS_INTERNAL_SECRET": secrets.token_hex(32)},
        )

    def _process(self, name: str, port: int, more: Mapping[str, str] | None = None) -> Process:
        own = dict(more or {})
        if name in NODES:
            address = f"127.0.0.1:{self._listens[name]}"
            own |= {
                "BOTTOMLESS_INGEST_INTERNAL_LISTEN": address,
                "BOTTOMLESS_INGEST_URL": f"http://{address}",
                "BOTTOMLESS_METRICS_LISTEN": f"127.0.0.1:{self.metrics_ports[name]}",
            }
        return super()._process(name, port, own)


class Nodes:
    """Three nodes that run."""

    def __init__(self, deployment: _Apart, valkey: EmbeddedValkey) -> None:
        self.deployment = deployment
        self._valkey = valkey
        self._ids: dict[str, str] = {}

    @property
    def url(self) -> str:
        """Where streams are made, and asked for."""
        return self.deployment["manifest"].url

    @property
    def tree(self) -> Tree:
        """All processes that run now, Valkey among them."""
        processes = [one for one in self.deployment.services.values() if one.started]
        return Tree(self._valkey.pid, *(one.pid for one in processes))

    def tree_of(self, name: str) -> Tree:
        """The process of one service."""
        return Tree(self.deployment[name].pid)

    def port(self, name: str) -> int:
        """The public port of a service."""
        return int(self.deployment[name].url.rsplit(":", 1)[1])

    def create(self, streams: Collection[str], replicas: int, **config: Any) -> list[str]:
        """Make streams that so many nodes are to hold; returns their names."""
        wanted = {"replication": {"replicas": replicas}, **config}

        async def make(session: aiohttp.ClientSession, stream: str) -> None:
            async with session.put(f"/v1/streams/{stream}", json=wanted) as answer:
                answer.raise_for_status()

        asyncio.run(self._for_each(streams, make))
        return list(streams)

    def await_in_sync(self, streams: Collection[str], count: int = len(NODES)) -> None:
        """Return when so many nodes are in sync of each of these streams.

        Raises:
            RuntimeError: it takes too long.
        """

        async def wait(session: aiohttp.ClientSession, stream: str) -> None:
            deadline = time.monotonic() + _WAIT_SECONDS
            while sum(one["in_sync"] for one in await _holders(session, stream)) < count:
                if time.monotonic() > deadline:
                    raise RuntimeError("nodes do not come in sync")
                # No answer of the API waits for it.
                await asyncio.sleep(_STEP_SECONDS)

        asyncio.run(self._for_each(streams, wait))

    def owner(self, stream: str) -> str:
        """The service that owns a stream."""
        answer = httpx.get(f"{self.url}/v1/streams/{stream}/replicas", timeout=60)
        found = next(one for one in answer.json()["nodes"] if one["role"] == "owner")
        return self.service_of(found["node"])

    def owned_by(self, name: str, streams: Collection[str]) -> int:
        """How many of these streams a service owns, or owned last if it does not run."""
        found: list[str] = []

        async def look(session: aiohttp.ClientSession, stream: str) -> None:
            # The owner comes first, whether it lives or not.
            found.append((await _holders(session, stream))[0]["node"])

        asyncio.run(self._for_each(streams, look))
        return found.count(self.node_id(name))

    def service_of(self, node_id: str) -> str:
        """The service with a node's id."""
        return next(name for name in NODES if self.node_id(name) == node_id)

    def node_id(self, name: str) -> str:
        """The id of an ingest node."""
        if name not in self._ids:
            file = self.deployment.ingest_dirs[name] / "node.json"
            self._ids[name] = str(httpx.Response(200, content=file.read_bytes()).json()["node_id"])
        return self._ids[name]

    def requests_between(self) -> float:
        """Bodies with items of replicas that nodes have taken so far."""
        return sum(self._requests(name) for name in NODES)

    def _requests(self, name: str) -> float:
        url = f"http://127.0.0.1:{self.deployment.metrics_ports[name]}/metrics/prometheus"
        counters = Counters(httpx.get(url, timeout=30).text)
        return counters.by("bottomless_http_requests_total", "route").get(_ITEMS, 0.0)

    async def _for_each(
        self,
        streams: Collection[str],
        work: Callable[[aiohttp.ClientSession, str], Awaitable[None]],
    ) -> None:
        waiting = iter(streams)

        async def lane(session: aiohttp.ClientSession) -> None:
            for stream in waiting:
                await work(session, stream)

        async with _session(self.url) as session:
            await asyncio.gather(*(lane(session) for _ in range(_AT_ONCE)))


@contextmanager
def running_nodes(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[Nodes]:
    """Start a Valkey and six services; they are killed at the end, nothing of them is needed then."""
    directory.mkdir(parents=True, exist_ok=True)
    with running_valkey(directory / "valkey") as valkey:
        deployment = _Apart(directory, valkey.url, settings or {})
        try:
            deployment.start()
            yield Nodes(deployment, valkey)
        finally:
            deployment.kill(*(name for name, one in deployment.services.items() if one.started))


@asynccontextmanager
async def _session(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=_WAIT_SECONDS)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        yield session


async def _holders(session: aiohttp.ClientSession, stream: str) -> list[dict[str, Any]]:
    async with session.get(f"/v1/streams/{stream}/replicas") as answer:
        answer.raise_for_status()
        found: list[dict[str, Any]] = (await answer.json())["nodes"]
        return found
