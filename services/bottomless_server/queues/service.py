"""Queues as a service: what it starts, drains and stops, in which order."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Code, NotFound, Unavailable
from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.forwarding import Forwarding, is_forwarded, take_forwarded
from bottomless_server.node.lease import NodeLease
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.queues.engine import QueueEngine
from bottomless_server.queues.front.counts import QueueCounts
from bottomless_server.queues.front.figures import QueueMeasures
from bottomless_server.queues.front.placing import Passing
from bottomless_server.queues.homes import TenantHomes
from bottomless_server.queues.ports import OutgoingStreams
from bottomless_server.queues.settings import EngineSettings
from bottomless_server.queues.starts import DirectoryOutdated, NodeStart
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.runtime.http.app import request_id_of, send_problem

log = structlog.get_logger(__name__)


@dataclass
class EnginePlace:
    """Where the engine is once the service has started."""

    engine: QueueEngine | None = None

    def there(self) -> QueueEngine:
        """The engine.

        Raises:
            Unavailable: the service has not started.
        """
        if self.engine is None:
            raise Unavailable("queues have not started", retry_after_seconds=1)
        return self.engine


@dataclass(eq=False)
class QueuesService:
    """Queues, made whole by `create_service`: `start` opens what it is made of.

    The order of calls is told in runtime/process/service.py.
    """

    public: ASGIApp
    directory: DataDirectory
    settings: EngineSettings
    clock: Callable[[], int]
    go_on_from: Callable[[int], None]
    """Lets the clock give no time before one."""
    files: FileCalls
    streams: OutgoingStreams
    place: EnginePlace
    lease: NodeLease
    node_start: NodeStart
    homes: TenantHomes
    under_way: RequestsUnderWay
    passing: Passing
    to_streams: Forwarding
    """Connections to ingest nodes."""
    counts: QueueCounts
    measures: QueueMeasures
    name: str = "queues"
    started: bool = field(default=False, init=False)
    """Whether the lease was taken, so that there is something to stop."""
    looking: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    async def internal(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The internal application: requests that another node has passed on."""
        path = scope["path"]
        if not self.started:
            error = Unavailable("queues have not started", retry_after_seconds=1)
            await send_problem(send, error, request_id_of(scope), path)
        elif is_forwarded(scope):
            take_forwarded(scope)
            await self.public(scope, receive, send)
        else:
            nothing = NotFound("nothing is served at this path", code=Code.NOT_FOUND)
            await send_problem(send, nothing, request_id_of(scope), path)

    async def start(self) -> None:
        """Lock the directory, take the lease, be let in, open the engine.

        Where coordination or manifest does not answer, the engine is opened all the same, and nothing
        is served before they do.

        Raises:
            CannotStart: another process uses the directory or a copy of it, another copy is newer, or
                an operator has to look at it first.
        """
        self.directory.open()
        await self.lease.start()
        try:
            await self._be_let_in()
        except CannotStart:
            # Whoever starts the other copy must not wait for this one.
            await self.lease.stop()
            self.directory.close()
            raise
        self.started = True
        self.place.engine = await QueueEngine.open(
            self.directory.path,
            self.settings,
            self.clock,
            files=self.files,
            streams=self.streams,
        )
        self.go_on_from(self.place.engine.time_at_start)
        self.measures.begin(self.place.engine)
        looking = endless("queue-gauges", self.measures.look)
        self.looking.append(asyncio.create_task(looking, name="queue-gauges"))
        self.under_way.accept()

    async def _be_let_in(self) -> None:
        await self.node_start.wait_for_lease(self.lease)
        if not self.lease.is_live():
            return
        await reach("queues.start.after-lease")
        try:
            await self.node_start.let_in(self.lease.term)
        except DirectoryOutdated as error:
            raise CannotStart(error.reason) from error
        except Unavailable as error:
            log.warning("this start is not let in yet", error=str(error))

    async def drain(self) -> None:
        """Refuse requests, end those that wait for messages with none, and finish the others."""
        if self.place.engine is not None:
            self.place.engine.stop_waiting()
        await self.under_way.drain()

    async def stop(self) -> None:
        """Close the engine in order, and give the lease up."""
        await end_tasks(*self.looking)
        if self.place.engine is not None:
            await reach("queues.stop.before-close")
            await self.place.engine.close()
            await reach("queues.stop.after-close")
        if self.started:
            await self.lease.stop()
        await self.homes.aclose()
        await self.passing.aclose()
        await self.to_streams.aclose()
        self.directory.close()

    async def report(self) -> Mapping[str, Any]:
        """Tell what queues depend on, for `/readyz?verbose=1`."""
        if not self.started:
            return {}
        return {
            "coordination": "lease held" if self.lease.is_live() else "lease ran out",
            "node_id": self.directory.node_id,
        }

    def metrics(self) -> Iterable[Metric]:
        """What queues measure of themselves, without names."""
        yield from self.counts.metrics()
        yield from self.measures.metrics()
