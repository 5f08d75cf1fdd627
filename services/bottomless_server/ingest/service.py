"""Ingest as a service: what it starts, drains and stops, in which order."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Unavailable
from bottomless_server.ingest.front.metrics import AppendCounts, TimedFileCalls, ingest_gauges
from bottomless_server.ingest.front.names import StreamNames
from bottomless_server.ingest.front.remote_partitions import PartitionOwners
from bottomless_server.ingest.front.super_names import SuperNames
from bottomless_server.ingest.leaderless.making import LeaderlessHalf, no_writer
from bottomless_server.ingest.local.appender_context import AppenderContext
from bottomless_server.ingest.local.config_watch import ConfigWatch
from bottomless_server.ingest.local.feed import CommitFeed
from bottomless_server.ingest.local.giving import Giving
from bottomless_server.ingest.local.handover import await_upload
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.log.leftovers import Leftovers
from bottomless_server.ingest.replicas.making import ReplicaHalf
from bottomless_server.ingest.staged.batches import StagedBatches
from bottomless_server.ingest.staged.owned_appenders import OwnedAppenders
from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.forwarded import ForwardedRequests
from bottomless_server.node.forwarding import is_forwarded, take_forwarded
from bottomless_server.node.lease import NodeLease
from bottomless_server.node.room import MemoryRoom
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.http.app import request_id_of, send_problem
from bottomless_server.runtime.http.lane import Lane


@dataclass(eq=False)
class IngestService:
    """Ingest, made whole by `create_service`: `start` opens what it is made of.

    The order of calls is told in runtime/process/service.py.
    """

    public: ASGIApp
    lane: Lane
    """Takes appends of the public listener that need no wait."""
    tail_api: ASGIApp
    """The internal application; `internal` adds to it what other nodes pass on."""
    directory: DataDirectory
    files: FileCalls
    executors: Sequence[Executor]
    lease: NodeLease
    context: AppenderContext
    streams: OwnedStreams
    giving: Giving
    configs: ConfigWatch
    replicas: ReplicaHalf
    feed: CommitFeed
    leftovers: Leftovers
    staged: StagedBatches
    appenders: OwnedAppenders
    names: StreamNames
    supers: SuperNames
    owners: PartitionOwners
    """The way to every partition of a super stream."""
    under_way: RequestsUnderWay
    forwarded: ForwardedRequests
    room: MemoryRoom
    super_room: MemoryRoom
    """Memory for requests to super streams."""
    counts: AppendCounts
    leaderless: LeaderlessHalf | None = None
    """What serves streams without an owner; None where this node does not."""
    name: str = "ingest"
    started: bool = False
    """Whether the lease was taken, so that there is something to drain and to stop."""
    sweeping: list[asyncio.Task[None]] = field(default_factory=list)

    async def internal(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The internal application, which answers 503 before the start.

        It also takes requests that another node has passed on: those of the public application.
        """
        if not self.started:
            error = Unavailable("ingest has not started", retry_after_seconds=1)
            await send_problem(send, error, request_id_of(scope), scope["path"])
            return
        if is_forwarded(scope):
            take_forwarded(scope)
            await self.public(scope, receive, send)
            return
        await self.tail_api(scope, receive, send)

    async def start(self) -> None:
        """Lock the directory, take the lease, open the streams that lie here.

        Raises:
            CannotStart: another process uses the directory, or it cannot be synced as it should be.
        """
        self.directory.open()
        self.context.rounds.open()
        await self.lease.start()
        self.started = True
        await self.streams.start()
        self.configs.start()
        await self.streams.count_unopened()
        self.replicas.start(await self.streams.local_ids())
        await self.staged.start()
        if self.leaderless is not None:
            await self.leaderless.writer.start()
        finish_commits, is_begun = self.appenders.finish_commits, self.appenders.is_begun
        self.sweeping += [
            asyncio.create_task(self.leftovers.run(), name="ingest-leftovers"),
            asyncio.create_task(self.staged.run(is_begun, finish_commits), name="ingest-staged"),
        ]
        self.under_way.accept()

    async def drain(self) -> None:
        """Refuse appends and finish those that are under way; then have everything uploaded, so
        that other nodes may own the streams. Tails are served meanwhile."""
        await self.under_way.drain()
        await self.appenders.commits.stop()
        if not self.started:
            return
        if self.leaderless is not None:
            await self.leaderless.drain()
        await self.appenders.finish_commits()
        await self.streams.open_all()
        await self.appenders.finish_commits()
        await self.replicas.claim_nothing()
        await self.replicas.transfers.give_all()
        await await_upload(self.streams, self.feed, self.context.has_begun)

    async def stop(self) -> None:
        """Close streams, clean ones as clean, and give the lease up."""
        await end_tasks(*self.sweeping)
        if self.leaderless is not None:
            await self.leaderless.writer.stop()
        if self.started:
            self.feed.end()
            await self.replicas.claim_nothing()
            await self.configs.stop()
            await self.streams.stop()
            await self.replicas.stop()
            await self.lease.stop()
        await self.forwarded.aclose()
        await self.supers.aclose()
        await self.names.aclose()
        for executor in self.executors:
            executor.shutdown()
        self.context.rounds.close()
        self.directory.close()

    async def report(self) -> Mapping[str, Any]:
        """Tell what ingest depends on, for `/readyz?verbose=1`."""
        if not self.started:
            return {}
        return {
            "node": self.lease.node.node_id,
            "coordination": "lease held" if self.lease.is_live() else "lease ran out",
            "open_streams": sum(1 for _ in self.streams.opened()),
            "unopened_streams": len(self.streams.unopened()),
            "local_bytes": self.context.disk.held,
            "replicas": self.replicas.report(),
        }

    def metrics(self) -> Iterable[Metric]:
        """What ingest measures of itself."""
        disk, tracking_room = self.context.disk, self.context.tracking_room
        yield from self.counts.metrics()
        yield from ingest_gauges(
            in_flight_size=self.room.admission.total + self.super_room.admission.total,
            local_size=disk.held,
            local_size_max=disk.bytes_max,
            staged_size=self.staged.size,
            staged_count=self.staged.count,
            tracking_size=tracking_room.held,
            tracking_size_max=tracking_room.size_max,
            stream_count=sum(1 for _ in self.streams.opened()),
            unopened_count=len(self.streams.unopened()),
        )
        yield from self.replicas.metrics(disk)
        yield from no_writer() if self.leaderless is None else self.leaderless.metrics()
        if isinstance(self.files, TimedFileCalls):
            yield from self.files.syncs.collect()
