"""An ingest service behind the layers of a process, served with the lane and without it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from unit.ingest.harness import IngestHarness

from bottomless.model.limits import MIB
from bottomless_server.ingest.service import IngestService
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.bodies import read_body
from bottomless_server.runtime.http.lane import Lane, LaneRequest
from bottomless_server.runtime.http.whole_answer import WholeAnswer, send_whole
from bottomless_server.runtime.identity.build_gate import build_gate
from bottomless_server.runtime.identity.gate import Gate
from bottomless_server.runtime.listener.connections import HttpBounds
from bottomless_server.runtime.listener.listeners import Listener, bind_tcp
from bottomless_server.runtime.process.front import Front
from bottomless_server.runtime.process.rate_limits import RateLimits, policies_of


class CountingLane:
    """A lane that counts what it takes."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.taken = 0

    def begin(self, scope: Any, size: int) -> LaneRequest | None:
        request = self._lane.begin(scope, size)
        self.taken += request is not None
        return request


class Served:
    """One service, one way."""

    def __init__(
        self,
        harness: IngestHarness,
        front: Front,
        gate: Gate,
        settings: CommonSettings,
        clock: Callable[[], float],
    ) -> None:
        limits = RateLimits(policies_of(settings), elapsed=clock)
        app = front.public(gate.around(limits.around(harness.service.public)), "ingest")
        lane = front.lane(harness.service.lane, gate, limits)
        self.harness = harness
        self.front = front
        self.lane = None if lane is None else CountingLane(lane)
        self.listener = Listener(app, bind_tcp("127.0.0.1", 0), bounds=HttpBounds(), lane=self.lane)


@asynccontextmanager
async def served(
    directory: Path,
    *,
    by_lane: bool,
    gate: Gate | None = None,
    by_clock: Callable[[], float] = time.monotonic,
    **common: Any,
) -> AsyncIterator[Served]:
    """One stream, as `IngestHarness` declares it, on a listener; `common` are settings, `by_clock`
    is that of the limits of rates."""
    harness = await IngestHarness(directory).declare()
    await harness.start()
    settings = CommonSettings(http_lane=by_lane, **common)
    async with build_gate(CommonSettings(), None) as open_gate:
        given = Served(harness, Front(settings), gate or open_gate, settings, by_clock)
        await given.listener.open()
        try:
            yield given
        finally:
            await given.listener.close()
            await harness.aclose()


def by_lane(service: IngestService) -> ASGIApp:
    """The public application of ingest, whose lane is asked first, without a listener."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, 16 * MIB)

        async def again() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        answered: asyncio.Future[WholeAnswer] = asyncio.get_running_loop().create_future()
        request = service.lane.begin(scope, len(body)) if body else None
        if request is not None:
            if request.receive(len(body)) and request.take(body, answered.set_result):
                await send_whole(send, await answered)
                return
            request.leave()
        await service.public(scope, again, send)

    return app
