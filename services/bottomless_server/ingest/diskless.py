"""Ingest without a disk: a node that serves leaderless streams and no others.

It keeps nothing that anybody would miss, and takes no lease as an owner. What another node would do for
a local stream is asked of that node (elsewhere.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from fastapi import FastAPI
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Unavailable
from bottomless_server.ingest.front.metrics import AppendCounts, ingest_gauges
from bottomless_server.ingest.front.name_watch import NameWatch
from bottomless_server.ingest.front.names import StreamNames
from bottomless_server.ingest.front.super_names import SuperNames
from bottomless_server.ingest.leaderless.making import LeaderlessHalf
from bottomless_server.ingest.replicas.figures import ReplicaFigures
from bottomless_server.node.forwarded import ForwardedRequests
from bottomless_server.node.forwarding import is_forwarded, take_forwarded
from bottomless_server.node.room import MemoryRoom
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.runtime.http.app import request_id_of, send_problem
from bottomless_server.runtime.http.lane import Lane

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class DisklessIngest:
    """Ingest for leaderless streams alone, made whole by `create_node`.

    The order of calls is told in runtime/process/service.py.
    """

    public: ASGIApp
    lane: Lane
    """Takes appends of the public listener that need no wait."""
    wal_api: FastAPI
    """The internal application; `internal` adds to it what other nodes pass on."""
    leaderless: LeaderlessHalf
    names: StreamNames
    supers: SuperNames
    watch: NameWatch
    under_way: RequestsUnderWay
    forwarded: ForwardedRequests
    room: MemoryRoom
    super_room: MemoryRoom
    """Memory for requests to super streams."""
    counts: AppendCounts
    data_dir: Path
    """Where a node with a disk would keep local streams."""
    name: str = "ingest"
    started: bool = False

    async def internal(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The internal application, which answers 503 before the start."""
        if not self.started:
            error = Unavailable("ingest has not started", retry_after_seconds=1)
            await send_problem(send, error, request_id_of(scope), scope["path"])
            return
        if is_forwarded(scope):
            # From one who believes that a stream is here, as one may have been: it hears that none is.
            take_forwarded(scope)
            await self.public(scope, receive, send)
            return
        await self.wal_api(scope, receive, send)

    async def start(self) -> None:
        """Begin to take appends, as soon as the stores can be asked."""
        if next(self.data_dir.glob("streams/*"), None) is not None:
            log.warning(
                "streams of the local profile lie here and are not served", at=self.data_dir
            )
        await self.watch.start()
        self.started = True
        await self.leaderless.writer.start()
        self.under_way.accept()

    async def drain(self) -> None:
        """Refuse appends and finish those that are under way."""
        await self.under_way.drain()
        if self.started:
            await self.leaderless.drain()

    async def stop(self) -> None:
        """End every task and close every client."""
        await self.leaderless.writer.stop()
        await self.watch.stop()
        await self.forwarded.aclose()
        await self.supers.aclose()
        await self.names.aclose()

    async def report(self) -> Mapping[str, Any]:
        """Tell what ingest depends on, for `/readyz?verbose=1`."""
        if not self.started:
            return {}
        return {"writer": "no instance" if self.leaderless.writer.run is None else "writes"}

    def metrics(self) -> Iterable[Metric]:
        """What ingest measures of itself; of local streams there is nothing to measure."""
        yield from self.counts.metrics()
        yield from ingest_gauges(
            in_flight_size=self.room.admission.total + self.super_room.admission.total,
            local_size=0,
            local_size_max=0,
            staged_size=0,
            staged_count=0,
            tracking_size=0,
            tracking_size_max=0,
            stream_count=0,
            unopened_count=0,
        )
        yield from ReplicaFigures().metrics(0, is_full=False)
        yield from self.leaderless.metrics()
