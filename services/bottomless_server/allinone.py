"""All services in one process, on one port, with an embedded Valkey and a directory as store.

    DIR/lock        held while the process lives: a second one is refused
    DIR/ingest      the tails of streams, not yet uploaded
    DIR/queues      queues and their messages
    DIR/objects     the object store
    DIR/valkey      the coordination store
    DIR/run         sockets of the internal listeners

The services call each other over those sockets with the same clients as when they run
apart: there is no second code path. After a crash at any moment everything that was
answered is in these directories, and the next start recovers from them.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from bottomless.drives.base import Drive
from bottomless.model.backoff import backoff
from bottomless_server.coordination.base import Coordination, CoordinationUnavailable
from bottomless_server.coordination.embedded import EmbeddedValkey
from bottomless_server.drives.table import DriveTable
from bottomless_server.ingest import app as ingest
from bottomless_server.ingest.leaderless.making import LeaderlessStores
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.manifest import app as manifest
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.node.directory_watch import watched_directories
from bottomless_server.node.file_calls import RealFileCalls, make_dir_durable
from bottomless_server.queues import app as queues
from bottomless_server.queues.operator_settings import QueuesSettings
from bottomless_server.reader import app as reader
from bottomless_server.reader.settings import ReaderSettings
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.holders import lock_holder
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.dispatch import Dispatcher
from bottomless_server.runtime.http.endpoints import services_of
from bottomless_server.runtime.identity.build_gate import build_gate
from bottomless_server.runtime.listener.listeners import internal_url
from bottomless_server.runtime.observe.measured_ports import (
    MeasuredCoordination,
    MeasuredDrives,
    coordination_calls,
)
from bottomless_server.runtime.observe.telemetry import configure_logs
from bottomless_server.runtime.process.front import Front
from bottomless_server.runtime.process.parts import (
    open_coordination,
    open_drive,
    opened_drives,
    stores_told,
)
from bottomless_server.runtime.process.rate_limits import RateLimits, policies_of
from bottomless_server.runtime.process.service import Service, run_process, serve
from bottomless_server.uploader import app as uploader
from bottomless_server.uploader.settings import UploaderSettings

log = structlog.get_logger(__name__)

SERVICES: Final = ("manifest", "ingest", "uploader", "reader", "queues")
"""In the order in which they start: each calls those before it."""

DRAIN_ORDER: Final = ("queues", "ingest", "uploader", "reader", "manifest")
"""The way of a record: what one service finishes, the next still takes. Messages of queues become
records, so queues come first."""

WATCH_SECONDS: Final = 0.2
RESTART_SECONDS_MIN: Final = 0.2
RESTART_SECONDS_MAX: Final = 10.0
"""Waits after starting it again double up to here; who lived longer is not failing at its start."""


def run(settings: CommonSettings) -> int:
    """Run until a signal; returns the exit code. `settings.data_dir` is DIR."""
    configure_logs(settings.log_level, as_json=settings.log_json)

    async def main() -> int:
        async with AsyncExitStack() as held:
            held.enter_context(locked(settings.data_dir))
            log.info("data directory", directory=str(settings.data_dir.absolute()))
            coordination_url = settings.coordination_url
            if coordination_url is None:
                # Started here and not in a thread: it dies with the thread that forks it.
                valkey = EmbeddedValkey(settings.data_dir / "valkey")
                held.callback(valkey.stop)
                valkey.start()
                await held.enter_async_context(_watched(valkey))
                coordination_url = valkey.url
            store_url = settings.store_url or directory_url(settings.data_dir / "objects")
            front = Front(settings)
            measured = MeasuredDrives(front.metrics, settings.prices).measured
            drive = measured(open_drive(store_url, settings))
            held.push_async_callback(drive.aclose)
            calls = coordination_calls(front.metrics)
            coordination = MeasuredCoordination(open_coordination(coordination_url), calls)
            held.push_async_callback(coordination.aclose)
            of_writer = MeasuredCoordination(open_coordination(coordination_url), calls)
            held.push_async_callback(of_writer.aclose)
            with stores_told(settings):
                opening = opened_drives(drive, settings, measured)
                table = await held.enter_async_context(opening)
                stores = LeaderlessStores(drive, of_writer)
                return await _serve(settings, drive, table, coordination, stores, front)

    return run_process(main)


def directory_url(directory: Path) -> str:
    """The url of a directory as a store."""
    return directory.absolute().as_uri()


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Hold the lock of a data directory, which is made if it is absent.

    Raises:
        CannotStart: another process holds it, or the directory cannot be written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_dir_durable(RealFileCalls(), data_dir)
        lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = error.strerror
        raise CannotStart(f"the data directory {data_dir} cannot be used: {reason}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotStart(
                f"another process uses the data directory {data_dir}"
                f"{lock_holder(data_dir / 'lock')}; stop it, or name another directory with "
                "--data-dir (BOTTOMLESS_DATA_DIR)"
            ) from error
        yield
    finally:
        os.close(lock)


@asynccontextmanager
async def _watched(valkey: EmbeddedValkey) -> AsyncIterator[None]:
    watching = asyncio.create_task(_keep_running(valkey), name="embedded valkey")
    try:
        yield
    finally:
        await end_tasks(watching)
        if not watching.cancelled():
            watching.result()


async def _keep_running(valkey: EmbeddedValkey) -> None:
    """Start the coordination store again whenever it died, in this thread.

    Its append-only file holds every answered write, so the services go on where they were;
    meanwhile their calls fail, and leases outlive it by some seconds.
    """
    loop = asyncio.get_running_loop()
    restarts, started_at = 0, loop.time()

    async def look() -> float:
        nonlocal restarts, started_at
        await asyncio.sleep(WATCH_SECONDS)
        if valkey.running:
            return 0
        if loop.time() - started_at > RESTART_SECONDS_MAX:
            restarts = 0
        log.error("the embedded coordination store ended; it is started again")
        try:
            valkey.spawn()
        except (CoordinationUnavailable, OSError) as error:
            log.error("the embedded coordination store does not start", error=str(error))  # noqa: TRY400
        started_at, restarts = loop.time(), restarts + 1
        return backoff(restarts - 1, RESTART_SECONDS_MIN, RESTART_SECONDS_MAX)

    await endless("embedded-valkey", look)


async def _serve(
    settings: CommonSettings,
    drive: Drive,
    table: DriveTable,
    coordination: Coordination,
    leaderless: LeaderlessStores,
    front: Front,
) -> int:
    data_dir = settings.data_dir
    urls = {name: internal_url(None, data_dir, name) for name in SERVICES}
    common: dict[str, Any] = {
        "manifest_url": urls["manifest"],
        "ingest_url": urls["ingest"],
        "reader_url": urls["reader"],
        "queues_url": urls["queues"],
    }

    def own(name: str) -> dict[str, Any]:
        return {"data_dir": data_dir / name, "internal_listen": urls[name], **common}

    appends = ingest.create_node(IngestSettings(**own("ingest")), coordination, leaderless)
    services: list[Service] = [
        manifest.create_service(
            ManifestSettings(**own("manifest")), drive, coordination, table=table
        ),
        appends,
        uploader.create_service(
            UploaderSettings(**own("uploader")), drive, coordination=coordination, table=table
        ),
        reader.create_service(
            ReaderSettings(**own("reader")), drive, coordination=coordination, table=table
        ),
        queues.create_service(QueuesSettings(**own("queues")), coordination),
    ]
    assert tuple(service.name for service in services) == SERVICES
    apps = {service.name: service.public for service in services}
    limits = RateLimits(policies_of(settings))
    gating, watching = build_gate(settings, urls["manifest"]), watched_directories(services)
    async with gating as gate, watching:
        return await serve(
            services,
            public_app=gate.around(limits.around(Dispatcher(apps, services_of))),
            host=settings.host,
            port=settings.port,
            internal_urls=urls,
            drain_order=DRAIN_ORDER,
            drain_seconds=settings.drain_seconds,
            front=front,
            coordination=[coordination, leaderless.coordination],
            lane=front.lane(appends.lane, gate, limits),
        )
