"""The life of a process: listeners, start, traffic, drain, stop.

    internal listeners open        peers can connect; gates answer 503 until a service started
    start(), in order              manifest, ingest, uploader, reader, queues
    public listener opens          `ready http://…` on stdout, the only line there, ever
    SIGTERM or SIGINT              /readyz 503
    drain(), in order of the data  with one deadline for all of it; the public listener still
                                   answers, so that refused appends hear why
    public listener closes         reads that still wait hear 503 `draining`
    stop(), in reverse             internal listeners close last; coordination that is silent
                                   is not waited for longer than HURRY_SECONDS
    exit code 0

A second signal ends the process at once: nothing that was answered depends on a clean
stop. What is not uploaded then lies on the ingest disk, and is uploaded after the next start.
"""

import asyncio
import os
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Code, NotFound, StoreError, Unavailable
from bottomless_server.coordination.base import Coordination
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.app import request_id_of, send_problem
from bottomless_server.runtime.http.health import Health
from bottomless_server.runtime.http.in_flight import InFlight
from bottomless_server.runtime.http.lane import Lane
from bottomless_server.runtime.listener.listeners import (
    Listener,
    bind_internal,
    bind_tcp,
    internal_url,
)
from bottomless_server.runtime.process.collector import short_passes
from bottomless_server.runtime.process.front import Front
from bottomless_server.runtime.process.process_limits import bound_arenas
from bottomless_server.runtime.process.without_pandas import forgo_pandas

log = structlog.get_logger(__name__)

EXIT_CANNOT_START: Final = 1
EXIT_STOP_FAILED: Final = 3
"""Not 2, which a command line answers to arguments that it does not understand."""
EXIT_KILLED: Final = 130
INTERNAL_CLOSE_SECONDS: Final = 1
"""After this, a caller there has stopped or will call again."""
STOP_SECONDS: Final = 10.0
"""How long each service may take to stop after the drain."""
HURRY_SECONDS: Final = 6.0
"""How long services may take, when they stop, to tell coordination of leases that they give up,
streams that they leave clean. What is not told costs others a wait for the lease, and nothing
else."""


class Service(Protocol):
    """One of the services. A constructor does no I/O; `start` does."""

    @property
    def name(self) -> str: ...

    @property
    def public(self) -> ASGIApp: ...

    @property
    def internal(self) -> ASGIApp: ...

    async def start(self) -> None:
        """Return when requests can be answered."""
        ...

    async def drain(self) -> None:
        """Take nothing new, finish what is in flight; cancelled when the time is over."""
        ...

    async def stop(self) -> None:
        """End every task and close every client; called once, after `start` returned."""
        ...


def _with_place(error: OSError) -> str:
    """What the system refused, and which call of ours: by itself it says neither."""
    if error.errno is None:
        return str(error)
    calls = [
        (frame.f_globals.get("__name__", ""), frame.f_code.co_name)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    own = [call for call in calls if call[0].startswith("bottomless")]
    places = dict.fromkeys([*own[-1:], *calls[-1:]])
    path = ", then ".join(f"{module}.{function}" for module, function in places)
    return f"{error.strerror} (errno {error.errno}), in {path}"


def run_process(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a process to its exit code; what cannot start says so in one sentence on stderr."""
    bound_arenas()
    forgo_pandas()
    try:
        return uvloop.run(_with_short_passes(main))
    except CannotStart as error:
        reason = str(error)
    except StoreError as error:
        reason = str(error)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else _with_place(error)
    except KeyboardInterrupt:
        return EXIT_KILLED
    sys.stderr.write(f"bottomless: cannot start: {reason}\n")
    return EXIT_CANNOT_START


async def _with_short_passes(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    async with short_passes():
        return await main()


async def serve(
    services: Sequence[Service],
    *,
    public_app: ASGIApp,
    host: str,
    port: int,
    internal_urls: Mapping[str, str],
    drain_order: Sequence[str],
    drain_seconds: float,
    coordination: Sequence[Coordination],
    front: Front | None = None,
    lane: Lane | None = None,
) -> int:
    """Run services, in the order in which they start, until a signal; returns the exit code.
    `coordination` are those that they ask, each of connections of its own; `lane` takes those
    requests of the public listener that need no wait.

    Raises:
        CannotStart, StoreError, OSError: at the start; what had started was stopped.
    """
    stopping = _stop_on_signals()
    front = front or Front(CommonSettings())
    health = Health({service.name: service for service in services})
    opened: list[Listener] = []
    started: list[Service] = []
    failures = 0
    in_flight = InFlight()
    public = Listener(
        front.public(
            health.around(in_flight.around(public_app)),
            f"bottomless-{services[0].name}" if len(services) == 1 else "bottomless",
        ),
        bind_tcp(host, port),
        bounds=front.bounds,
        lane=lane,
    )
    listeners = {"public": public.connections}
    try:
        gates = {service.name: _UntilStarted(service.internal) for service in services}
        for name, listener in _internal_listeners(gates, internal_urls, front, health):
            opened.append(listener)
            listeners[name] = listener.connections
            await listener.open()
        for service in services:
            if not await _unless(stopping, service.start()):
                break
            started.append(service)
            gates[service.name].open = True
        if not stopping.is_set():
            apps = [app for service in services for app in (service.public, service.internal)]
            await front.opened(services, apps, listeners)
            await public.open()
            log.info("started", descriptor_limit=front.descriptor_limit, **internal_urls)
            _announce(host, public.port)
            await stopping.wait()
        health.draining = True
        failures += await _drain(started, drain_order, drain_seconds)
        in_flight.cut()
    finally:
        await public.close()
        for one in coordination:
            one.hurry(HURRY_SECONDS)
        for service in reversed(started):
            ended = await _ended(service.name, "stop", service.stop(), STOP_SECONDS)
            failures += ended is not True
        await asyncio.gather(*(listener.close() for listener in opened))
        await _ended("front", "stop", front.aclose(), STOP_SECONDS)
    return EXIT_STOP_FAILED if failures else 0


def _internal_listeners(
    gates: Mapping[str, ASGIApp], urls: Mapping[str, str], front: Front, health: Health
) -> Iterator[tuple[str, Listener]]:
    """One for each service and perhaps one for metrics, bound one after the other."""

    def listener(app: ASGIApp, bound: socket.socket) -> Listener:
        return Listener(app, bound, close_seconds=INTERNAL_CLOSE_SECONDS, bounds=front.bounds)

    for name, gate in gates.items():
        url = urls[name]
        # To peers it is as if nobody had answered: they do what they do then, and what they pass on to
        # a client is a problem that says what may have happened.
        told = health.around(InFlight(Code.PEER_UNAVAILABLE).around(gate))
        app = front.internal(told, f"bottomless-{name}", url)
        yield name, listener(app, bind_internal(url))
    if front.metrics_listen is not None:
        bound = _bind_metrics(front.metrics_listen)
        yield "metrics", listener(front.measuring(health.around(_nothing), "bottomless"), bound)


def _bind_metrics(listen: str) -> socket.socket:
    wrong = CannotStart("BOTTOMLESS_METRICS_LISTEN must look like host:port")
    if listen.startswith("unix:"):
        raise wrong
    try:
        url = internal_url(listen, Path(), "metrics")
    except CannotStart:
        raise wrong from None
    return bind_internal(url)


async def _nothing(scope: Scope, _: Receive, send: Send) -> None:
    error = NotFound("nothing is served at this path", code=Code.NOT_FOUND)
    await send_problem(send, error, request_id_of(scope))


class _UntilStarted:
    """Answers for a service that has not started yet."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.open = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.open:
            await self._app(scope, receive, send)
            return
        error = Unavailable(
            "this service is starting; try again in a moment", retry_after_seconds=1
        )
        await send_problem(send, error, request_id_of(scope))


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(EXIT_KILLED)
        stopping.set()
        log.info("stopping; a second signal ends the process at once")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return stopping


def _announce(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(f"ready http://{shown}:{port}\n")
    sys.stdout.flush()


async def _unless(stopping: asyncio.Event, starting: Coroutine[Any, Any, None]) -> bool:
    """Wait for a start; False if the signal to stop came first, and the start is cancelled."""
    start = asyncio.ensure_future(starting)
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if start.done():
        start.result()
        return True
    await end_tasks(start)
    if not start.cancelled():
        start.result()
    return False


async def _drain(started: Sequence[Service], order: Sequence[str], seconds: float) -> int:
    """Drain all within one deadline; returns how many failed. To be cut is no failure: what is
    not finished then is refused or lies on disk, and nobody was told otherwise."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    failures = 0
    for service in sorted(started, key=lambda service: order.index(service.name)):
        left = max(0.1, deadline - loop.time())
        failures += await _ended(service.name, "drain", service.drain(), left) is None
    return failures


async def _ended(name: str, step: str, work: Awaitable[None], seconds: float) -> bool | None:
    """Do one step of the way down, which goes on whatever comes of it.

    True if it ended, False if it was cut, None if it failed.
    """
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        log.warning("a step took too long and was cut", service=name, step=step, seconds=seconds)
        return False
    except Exception:
        log.exception("a step failed", service=name, step=step)
        return None
    return True
