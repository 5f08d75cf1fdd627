"""One service in one process, its parts and peers named by the environment.

`BOTTOMLESS_STORE_URL` and `BOTTOMLESS_COORDINATION_URL` say where data and coordination
are, `BOTTOMLESS_MANIFEST_URL` where manifest's internal listener is; where ingest nodes are is
asked there, as `BOTTOMLESS_INGEST_URL` says it of each; `BOTTOMLESS_QUEUES_URL` says of a node of queues
where it is for the others. A service's own directory is DIR/<service>, as in the all-in-one.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple

import structlog

from bottomless.drives.base import Drive
from bottomless.model.config import Profile
from bottomless_server.coordination.base import Coordination
from bottomless_server.drives.table import DriveTable
from bottomless_server.node.directory_watch import watched_directories
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.lane import Lane
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

log = structlog.get_logger(__name__)

NEEDED: Final = {
    "ingest": ("store_url", "coordination_url", "manifest_url"),
    "uploader": ("store_url", "manifest_url"),
    "manifest": ("store_url", "coordination_url"),
    "reader": ("store_url", "manifest_url"),
    "queues": ("coordination_url", "manifest_url"),
}
"""The settings that a service cannot do without; ingest without leaderless streams does without the
object store."""
_WITH_FRAGMENTS: Final = frozenset({"manifest", "uploader", "reader"})
"""The services that ask drives beside drive 0: what ingest and queues keep is never on one of them."""


def run(name: str, settings: CommonSettings) -> int:
    """Run one service until a signal; returns the exit code."""
    configure_logs(settings.log_level, as_json=settings.log_json)

    async def main() -> int:
        _require(name, settings)
        listen = os.environ.get(f"BOTTOMLESS_{name.upper()}_INTERNAL_LISTEN")
        url = internal_url(listen or settings.internal_listen, settings.data_dir, name)
        given: dict[str, Any] = {"data_dir": settings.data_dir / name, "internal_listen": url}
        if name == "queues" or (name == "ingest" and "local" in _profiles()):
            # The others keep nothing here that anybody would miss.
            kept = settings.data_dir / name
            log.info("data directory", directory=str(kept.absolute()))
        front = Front(settings)
        async with _opened(name, settings, front) as stores:
            with stores_told(settings):
                service = _create(name, given, stores)
                # Ingest alone has one.
                lane: Lane | None = getattr(service, "lane", None)
                limits = RateLimits(policies_of(settings))
                manifest_url = url if name == "manifest" else settings.manifest_url
                gating, watching = (
                    build_gate(settings, manifest_url),
                    watched_directories([service]),
                )
                async with gating as gate, watching:
                    return await serve(
                        [service],
                        public_app=gate.around(limits.around(service.public)),
                        host=settings.host,
                        port=settings.port,
                        internal_urls={name: url},
                        drain_order=[name],
                        drain_seconds=settings.drain_seconds,
                        front=front,
                        coordination=stores.all_coordination,
                        lane=None if lane is None else front.lane(lane, gate, limits),
                    )

    return run_process(main)


def _require(name: str, settings: CommonSettings) -> None:
    """Refuse to start without a setting that the service cannot do without.

    Raises:
        CannotStart
    """
    for setting in NEEDED[name]:
        if setting == "store_url" and name == "ingest" and "leaderless" not in _profiles():
            continue
        if getattr(settings, setting) is None:
            raise CannotStart(f"{name} needs BOTTOMLESS_{setting.upper()}")


def _profiles() -> frozenset[Profile]:
    """The profiles that an ingest node is to serve."""
    from bottomless_server.ingest.settings import IngestSettings  # noqa: PLC0415

    return IngestSettings().profiles


class _Stores(NamedTuple):
    """What a service was given; what its settings do not name is None."""

    drive: Drive | None
    table: DriveTable | None
    coordination: Coordination | None
    of_writer: Coordination | None
    """The writer of leaderless streams has connections that nobody else uses."""

    @property
    def all_coordination(self) -> list[Coordination]:
        return [one for one in (self.coordination, self.of_writer) if one is not None]


@asynccontextmanager
async def _opened(name: str, settings: CommonSettings, front: Front) -> AsyncIterator[_Stores]:
    """The stores that the settings name, closed in the end.

    Raises:
        CannotStart: they contradict each other, or one that is asked at once does not answer.
    """
    drive: Drive | None = None
    table: DriveTable | None = None
    coordination: Coordination | None = None
    of_writer: Coordination | None = None
    async with AsyncExitStack() as held:
        if settings.coordination_url:
            calls = coordination_calls(front.metrics)
            coordination = MeasuredCoordination(open_coordination(settings.coordination_url), calls)
            held.push_async_callback(coordination.aclose)
            if name == "ingest":
                of_writer = MeasuredCoordination(
                    open_coordination(settings.coordination_url), calls
                )
                held.push_async_callback(of_writer.aclose)
        if settings.store_url:
            measured = MeasuredDrives(front.metrics, settings.prices).measured
            drive = measured(open_drive(settings.store_url, settings))
            held.push_async_callback(drive.aclose)
            if name in _WITH_FRAGMENTS:
                with stores_told(settings):
                    opening = opened_drives(drive, settings, measured)
                    table = await held.enter_async_context(opening)
        yield _Stores(drive, table, coordination, of_writer)


def _create(name: str, given: dict[str, Any], stores: _Stores) -> Service:
    # Only the service that runs is loaded.
    drive, table, coordination, of_writer = stores
    if name == "ingest":
        from bottomless_server.ingest.app import create_node  # noqa: PLC0415
        from bottomless_server.ingest.leaderless.making import LeaderlessStores  # noqa: PLC0415
        from bottomless_server.ingest.settings import IngestSettings  # noqa: PLC0415

        assert coordination is not None
        assert of_writer is not None
        leaderless = None if drive is None else LeaderlessStores(drive, of_writer)
        return create_node(IngestSettings(**given), coordination, leaderless)
    if name == "queues":
        from bottomless_server.queues.app import create_service as create_queues  # noqa: PLC0415
        from bottomless_server.queues.operator_settings import QueuesSettings  # noqa: PLC0415

        assert coordination is not None
        return create_queues(QueuesSettings(**given), coordination)
    assert drive is not None
    if name == "manifest":
        from bottomless_server.manifest.app import create_service  # noqa: PLC0415
        from bottomless_server.manifest.settings import ManifestSettings  # noqa: PLC0415

        assert coordination is not None
        return create_service(ManifestSettings(**given), drive, coordination, table=table)
    if name == "uploader":
        from bottomless_server.uploader.app import (  # noqa: PLC0415
            create_service as create_uploader,
        )
        from bottomless_server.uploader.settings import UploaderSettings  # noqa: PLC0415

        return create_uploader(
            UploaderSettings(**given), drive, coordination=coordination, table=table
        )
    from bottomless_server.reader.app import create_service as create_reader  # noqa: PLC0415
    from bottomless_server.reader.settings import ReaderSettings  # noqa: PLC0415

    return create_reader(ReaderSettings(**given), drive, coordination=coordination, table=table)
