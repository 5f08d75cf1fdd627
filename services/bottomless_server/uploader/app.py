"""The fragment-uploader as a service: what it is made of, and its life.

Its public application has no endpoint of its own: health stands in front of it
(runtime/http/health.py), and /openapi.json says that there is nothing else.
"""

import asyncio
import secrets
import time
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import structlog
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp

from bottomless.drives.base import Drive
from bottomless.formats.stream_record import LEADERLESS, SERVED, TIERS
from bottomless_server.coordination.base import Coordination
from bottomless_server.drives.table import DriveTable
from bottomless_server.protocol.peer import PeerPort, PeersPort
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.http.app import create_api
from bottomless_server.runtime.peers.internal_secret import secret_to_send
from bottomless_server.runtime.peers.peers import Peer, Peers
from bottomless_server.uploader.budget import ByteBudget
from bottomless_server.uploader.calls import ManifestCalls
from bottomless_server.uploader.compaction.compactor import Compactor
from bottomless_server.uploader.compaction.metrics import no_compaction
from bottomless_server.uploader.compaction.routes import add_compaction_routes
from bottomless_server.uploader.core.moving import Pace
from bottomless_server.uploader.failures import Retries, put_waits
from bottomless_server.uploader.fragments import Parts
from bottomless_server.uploader.metrics import MoveCounts, move_metrics
from bottomless_server.uploader.mover import Mover
from bottomless_server.uploader.moves import Moves
from bottomless_server.uploader.nodes import NodeFeeds
from bottomless_server.uploader.settings import UploaderSettings, WalCompaction
from bottomless_server.uploader.streams import Streams

log = structlog.get_logger(__name__)


class UploaderService:
    """Follows the commits of all ingest nodes from `start` to `stop`. Owns its peers, not the
    drive.
    """

    name = "uploader"

    def __init__(
        self, parts: Parts, compactor: Compactor | None = None, moves: Moves | None = None
    ) -> None:
        self.public: ASGIApp = create_api("Bottomless fragment-uploader")
        internal = create_api("Bottomless fragment-uploader, internal")
        add_compaction_routes(internal, compactor)
        self.internal: ASGIApp = internal
        self._parts = parts
        self.compactor = compactor
        self.moves = moves
        self._moving: asyncio.Task[None] | None = None
        self.streams = Streams(parts)
        self._nodes = NodeFeeds(
            parts.ingest,
            parts.manifest,
            parts.retries,
            self.streams.seen,
            wait_ms=parts.settings.uploader_poll_wait_ms,
            every_ms=parts.settings.uploader_nodes_ms,
        )
        self._following: asyncio.Task[None] | None = None
        self._follows_nodes = parts.settings.uploader_wal is not WalCompaction.ONLY

    async def start(self) -> None:
        if self.compactor is not None:
            await self.compactor.start()
        if not self._follows_nodes:
            return
        self._following = asyncio.create_task(self._nodes.run(), name="ingest nodes")
        self._following.add_done_callback(_log_end)
        if self.moves is not None:
            self._moving = asyncio.create_task(self.moves.run(), name="moves")

    async def drain(self) -> None:
        """Cut and upload what is committed up to now, until the process has no more time.

        What is not done in time is done after the next start: the log keeps it. WAL objects are in
        the object store already, so rounds just stop, and so do moves to other drives.
        """
        await self._stop_moves()
        if self.compactor is not None:
            await self.compactor.stop()
        if self._follows_nodes:
            await self._nodes.look()
        done = await self.streams.drain(self._parts.settings.drain_seconds)
        log.info("drained", complete=done, active_streams=len(self.streams))

    async def _stop_moves(self) -> None:
        if self._moving is not None:
            await end_tasks(self._moving)

    async def stop(self) -> None:
        await self._stop_moves()
        if self._following is not None:
            await end_tasks(self._following)
        if self.compactor is not None:
            await self.compactor.stop()
        await self.streams.stop()
        await self._parts.ingest.aclose()
        await self._parts.manifest.aclose()

    def metrics(self) -> Iterable[Metric]:
        self._parts.counts.retries = self._parts.retries.count
        yield from self.streams.metrics()
        yield from move_metrics(MoveCounts() if self.moves is None else self.moves.counts)
        yield from no_compaction() if self.compactor is None else self.compactor.metrics()

    async def report(self) -> Mapping[str, Any]:
        """Report what is active, and what fails and is being retried, for /readyz?verbose=1."""
        following = self._following is not None and not self._following.done()
        running = following or not self._follows_nodes
        return {
            "status": "running" if running else "stopped",
            "nodes": self._nodes.count,
            "feed": self._nodes.report(),
            **self.streams.report(),
            "compaction": None if self.compactor is None else self.compactor.report(),
            **({} if self.moves is None else {"moves": self.moves.report()}),
        }


def create_service(
    settings: UploaderSettings,
    drive: Drive,
    *,
    ingest: PeersPort | None = None,
    manifest: PeerPort | None = None,
    coordination: Coordination | None = None,
    served: AbstractSet[str] = SERVED,
    table: DriveTable | None = None,
) -> UploaderService:
    """Put the uploader together; peers are made of the settings' urls where none are given.

    `coordination` is for streams without an owner alone, which are compacted if `served` has them.
    `table` has the drives on which fragments are put and between which they are moved; without it there
    is `drive` alone.

    Raises:
        CannotStart: a url is missing or is not one.
    """
    drives = table or DriveTable.of_one(drive)
    parts = Parts(
        settings=settings,
        drive=drive,
        drives=drives,
        ingest=ingest or Peers(name="ingest", secret=secret_to_send(settings)),
        manifest=ManifestCalls(manifest or _manifest(settings)),
        budget=ByteBudget(settings.uploader_memory_bytes),
        retries=Retries(settings),
        clock_ms=_clock_ms,
    )
    moves = _moves(parts, served)
    return UploaderService(parts, _compactor(parts, coordination, served), moves)


def _moves(parts: Parts, served: AbstractSet[str]) -> Moves | None:
    settings = parts.settings
    if TIERS not in served or len(parts.drives.numbers) == 1:
        # With one drive there is nowhere to go.
        return None
    mover = Mover(
        drives=parts.drives,
        budget=parts.budget,
        share=ByteBudget(settings.uploader_memory_bytes // 2),
        pace=Pace(settings.uploader_move_bytes_per_second),
        objects_in_flight=asyncio.Semaphore(settings.uploader_moves_in_flight),
        clock=time.monotonic,
        put_seconds=settings.uploader_upload_deadline_seconds,
        put_waits=put_waits(settings),
    )
    # Of this run: what an earlier one was at is taken over from it.
    session = secrets.token_hex(16)
    return Moves(
        parts.manifest,
        mover,
        session,
        in_flight=settings.uploader_moves_in_flight,
        look_seconds=settings.uploader_move_interval_ms / 1000,
    )


def _compactor(
    parts: Parts, coordination: Coordination | None, served: AbstractSet[str]
) -> Compactor | None:
    """What compacts streams without an owner, where this process is to.

    Raises:
        CannotStart: it is to do nothing else, and cannot.
    """
    wanted = parts.settings.uploader_wal
    if wanted is WalCompaction.ONLY and LEADERLESS not in served:
        raise CannotStart("BOTTOMLESS_UPLOADER_WAL=only: no streams are compacted in this release")
    if wanted is WalCompaction.OFF or LEADERLESS not in served:
        return None
    if coordination is not None:
        return Compactor(parts, coordination)
    if wanted is WalCompaction.ONLY:
        raise CannotStart("BOTTOMLESS_UPLOADER_WAL=only needs BOTTOMLESS_COORDINATION_URL")
    log.warning("leaderless streams are not compacted here: no BOTTOMLESS_COORDINATION_URL is set")
    return None


def _manifest(settings: UploaderSettings) -> Peer:
    if settings.manifest_url is None:
        raise CannotStart("the uploader needs BOTTOMLESS_MANIFEST_URL")
    try:
        return Peer(settings.manifest_url, name="manifest", secret=secret_to_send(settings))
    except ValueError as error:
        raise CannotStart(
            "BOTTOMLESS_MANIFEST_URL must look like http://host:port or unix:///path"
        ) from error


def _clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _log_end(following: asyncio.Task[None]) -> None:
    if not following.cancelled() and (error := following.exception()) is not None:
        log.error("following ingest nodes ended", exc_info=error)
