"""Ingest, put together: settings and coordination in, two applications and a lifecycle out."""

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from fastapi import FastAPI, Request
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Unavailable
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Coordination
from bottomless_server.ingest.front.metrics import TimedFileCalls, ingest_gauges
from bottomless_server.ingest.front.names import StreamNames
from bottomless_server.ingest.front.producer_routes import add_producer_routes
from bottomless_server.ingest.front.routes import AppendRoute, Appends
from bottomless_server.ingest.front.staged_routes import add_staged_route
from bottomless_server.ingest.local.appender_context import AppenderContext
from bottomless_server.ingest.local.feed import CommitFeed
from bottomless_server.ingest.local.freeing import DiskUse, FreeingBounds
from bottomless_server.ingest.local.handover import await_upload
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.local.tail_routes import Tails, create_internal_api
from bottomless_server.ingest.log.leftovers import Leftovers
from bottomless_server.ingest.log.segments import RollBounds
from bottomless_server.ingest.producers.commit_parts import progress
from bottomless_server.ingest.producers.commit_plan import CommitPlan
from bottomless_server.ingest.producers.tracking import Tracking, TrackingBounds
from bottomless_server.ingest.producers.tracking_room import TrackingRoom
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.ingest.staged.batches import StagedBatches, StagedBounds
from bottomless_server.node.core.clock import CommitClock
from bottomless_server.node.data_directory import DirectoryLock, load_node_id
from bottomless_server.node.file_calls import FileCalls, make_dir_durable
from bottomless_server.node.forwarding import Forwarding, is_forwarded, take_forwarded
from bottomless_server.node.lease import Clocks, LeaseBounds, NodeLease
from bottomless_server.node.owner import Owner
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.http.app import create_api
from bottomless_server.runtime.http.contract import describe
from bottomless_server.runtime.peers.internal_secret import secret_to_send
from bottomless_server.runtime.peers.peers import Peer
from bottomless_server.runtime.process.descriptors import open_log_count_max
from bottomless_server.stores.ingest_nodes import IngestNode
from bottomless_server.stores.streams import Streams


def _boot_seconds() -> float:
    """Time since boot, with that in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


REAL_CLOCKS: Final = Clocks(
    wall=lambda: time.time_ns() // 1_000_000,
    monotonic=time.monotonic,
    # Only Linux tells both; elsewhere the answer to a renewal has to tell of a sleep.
    boot=_boot_seconds if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic,
)


class IngestService:
    """One of the four services; see runtime/process/service.py for who calls what when."""

    name = "ingest"

    def __init__(
        self,
        settings: IngestSettings,
        coordination: Coordination,
        manifest: PeerPort,
        files: FileCalls,
        clocks: Clocks,
        forwarding: Forwarding,
    ) -> None:
        self._settings = settings
        self._coordination = coordination
        self._files = files
        self._clocks = clocks
        self._disk = DiskUse(settings.ingest_disk_bytes_max)
        self._tracking_room = TrackingRoom(settings.ingest_tracking_bytes_max)
        # What was asked of manifest is good for as long as the owner believes in its lease.
        keep_ms = settings.ingest_lease_ms - settings.ingest_lease_margin_ms
        self._names = StreamNames(manifest, Streams(coordination), clocks, keep_ms)
        self._staged = StagedBatches(files, settings.data_dir, clocks, _staged_bounds(settings))
        self._forwarding = forwarding
        self._appends = Appends(
            settings, self._names, self._disk, clocks, self._staged, self._forwarding
        )
        self._feed = CommitFeed(os.urandom(8).hex())
        self._executor: ThreadPoolExecutor | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._lock: DirectoryLock | None = None
        self._tails: Tails | None = None
        self._sweeping: list[asyncio.Task[None]] = []
        self._internal: FastAPI | None = None
        self.public: ASGIApp = AppendRoute(
            self._appends, _create_public_api(self._appends, self._staged)
        )

    async def internal(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The internal application: there are no tails before the start.

        It takes what another node passed on, too: the public paths of a stream's tail.
        """
        if self._internal is None:
            raise Unavailable("ingest has not started")
        if is_forwarded(scope):
            take_forwarded(scope)
            await self.public(scope, receive, send)
            return
        await self._internal(scope, receive, send)

    async def start(self) -> None:
        """Lock the directory, take the lease, open what lies here.

        Raises:
            CannotStart: another process uses the directory, or the owner's url is not known.
        """
        settings, data_dir = self._settings, self._settings.data_dir
        owner_url = settings.ingest_url or settings.internal_listen
        if owner_url is None:
            raise CannotStart("ingest needs BOTTOMLESS_INGEST_URL: where others reach it")
        make_dir_durable(self._files, data_dir)
        self._lock = DirectoryLock(data_dir)
        node_id = load_node_id(self._files, data_dir, os.urandom(16).hex())
        self._executor = ThreadPoolExecutor(settings.ingest_thread_count, "ingest-files")
        # Its own threads, so that a replay of the tail never holds up a write.
        self._readers = ThreadPoolExecutor(settings.ingest_read_thread_count, "ingest-reads")
        lease = NodeLease(
            self._coordination,
            IngestNode(node_id, owner_url),
            self._clocks,
            LeaseBounds(
                settings.ingest_lease_ms,
                settings.ingest_lease_margin_ms,
                settings.ingest_renew_ms,
            ),
        )
        await lease.start()
        owner = Owner(self._coordination, node_id, owner_url, lease, self._names.note_home)
        streams = OwnedStreams(
            self._files,
            data_dir,
            owner,
            self._appender_context(),
            _roll(settings),
            self._feed.note,
            self._feed.settle,
        )
        self._tails = Tails(streams, self._feed, lease, self._files, self._readers)
        self._internal = create_internal_api(self._tails)
        await streams.start(settings.ingest_open_count)
        leftovers = Leftovers(
            self._files,
            data_dir,
            self._executor,
            streams,
            self._names.state_of,
            self._staged.drop_stream,
        )
        await self._staged.start(self._executor)
        self._sweeping = [
            asyncio.create_task(leftovers.run(), name="ingest-leftovers"),
            asyncio.create_task(
                self._staged.run(self._is_begun, self._appends.finish_commits),
                name="ingest-staged",
            ),
        ]
        self._appends.open(streams)

    async def drain(self) -> None:
        """Refuse appends and finish those in flight; then have all of it uploaded, so that other
        nodes may own the streams. Tails are served on meanwhile."""
        await self._appends.drain()
        if self._tails is not None:
            await self._tails.streams.open_all()
            await self._appends.finish_commits()
            await await_upload(self._tails.streams, self._feed, self._has_begun)

    async def stop(self) -> None:
        """Close streams, clean ones as clean, and give the lease up."""
        for sweeping in self._sweeping:
            sweeping.cancel()
        await asyncio.gather(*self._sweeping, return_exceptions=True)
        if self._tails is not None:
            self._feed.end()
            await self._tails.streams.stop()
            await self._tails.lease.stop()
        await self._forwarding.aclose()
        await self._names.aclose()
        for threads in (self._readers, self._executor):
            if threads is not None:
                threads.shutdown()
        if self._lock is not None:
            self._lock.release()

    async def report(self) -> Mapping[str, Any]:
        """A word on what ingest depends on, for `/readyz?verbose=1`."""
        if self._tails is None:
            return {}
        return {
            "coordination": "lease held" if self._tails.lease.is_live() else "lease ran out",
            "open_streams": sum(1 for _ in self._tails.streams.opened()),
            "unopened_streams": len(self._tails.streams.unopened()),
            "local_bytes": self._disk.held,
        }

    def metrics(self) -> Iterable[Metric]:
        yield from self._appends.counts.metrics()
        streams = None if self._tails is None else self._tails.streams
        yield from ingest_gauges(
            queue_size=self._appends.queue_size,
            local_size=self._disk.held,
            local_size_max=self._disk.bytes_max,
            staged_size=self._staged.size,
            staged_count=self._staged.count,
            tracking_size=self._tracking_room.held,
            tracking_size_max=self._tracking_room.size_max,
            stream_count=0 if streams is None else sum(1 for _ in streams.opened()),
            unopened_count=0 if streams is None else len(streams.unopened()),
        )
        if isinstance(self._files, TimedFileCalls):
            yield from self._files.syncs.collect()

    def _is_begun(self, stream_id: StreamId, plan: CommitPlan) -> bool | None:
        appender = None if self._tails is None else self._tails.streams.find(stream_id)
        return None if appender is None else progress(plan, appender.tracking).start > 0

    def _has_begun(self, stream_id: StreamId, tracking: Tracking) -> bool:
        return self._staged.has_begun(stream_id, lambda plan: progress(plan, tracking).start > 0)

    def _appender_context(self) -> AppenderContext:
        settings = self._settings
        assert self._executor is not None
        return AppenderContext(
            executor=self._executor,
            clocks=self._clocks,
            commit_clock=CommitClock(settings.ingest_clock_jump_ms_max),
            disk=self._disk,
            has_begun=self._has_begun,
            chunk_size_max=settings.ingest_chunk_size_max,
            open_log_count_max=open_log_count_max(settings.ingest_open_log_count_max),
            freeing=FreeingBounds(
                local_keep_ms=settings.ingest_local_keep_ms,
                local_bytes_keep=settings.ingest_local_bytes_keep,
                checkpoint_bytes=settings.ingest_checkpoint_bytes,
                checkpoint_ms=settings.ingest_checkpoint_ms,
            ),
            tracking=TrackingBounds(
                producer_count_max=settings.ingest_producer_count_max,
                append_count_max=settings.ingest_producer_append_count_max,
                key_count_max=settings.ingest_key_count_max,
                keep_ms=settings.ingest_key_keep_ms,
            ),
            tracking_room=self._tracking_room,
        )


def create_service(
    settings: IngestSettings,
    coordination: Coordination,
    *,
    manifest: PeerPort | None = None,
    files: FileCalls | None = None,
    clocks: Clocks = REAL_CLOCKS,
    forwarding: Forwarding | None = None,
) -> IngestService:
    """Build the service; nothing is opened before `start`.

    Raises:
        CannotStart: a setting that it cannot do without is missing.
    """
    if manifest is None:
        if settings.manifest_url is None:
            raise CannotStart("ingest needs BOTTOMLESS_MANIFEST_URL")
        manifest = Peer(settings.manifest_url, name="manifest", secret=secret_to_send(settings))
    return IngestService(
        settings,
        coordination,
        manifest,
        files or TimedFileCalls(),
        clocks,
        forwarding or Forwarding(settings.ingest_forward_ms / 1000, secret_to_send(settings)),
    )


def _staged_bounds(settings: IngestSettings) -> StagedBounds:
    return StagedBounds(
        stream_bytes_max=settings.ingest_staged_stream_bytes_max,
        bytes_max=settings.ingest_staged_bytes_max,
        stream_count_max=settings.ingest_staged_stream_count_max,
        count_max=settings.ingest_staged_count_max,
        keep_ms=settings.ingest_staged_keep_ms,
        plan_keep_ms=settings.ingest_staged_plan_keep_ms,
    )


def _roll(settings: IngestSettings) -> RollBounds:
    return RollBounds(
        settings.ingest_segment_size_max,
        settings.ingest_segment_age_ms_max,
        settings.ingest_segment_chunk_count_max,
    )


def _create_public_api(appends: Appends, staged: StagedBatches) -> FastAPI:
    """Everything on the public listener but the append itself, whose contract it states."""
    api = create_api("Bottomless ingest")
    describe(api)

    @api.post(
        "/v1/streams/{s}/records",
        operation_id="append_records",
        summary="Append records",
    )
    async def append_records(s: str, request: Request) -> None:
        # Only here for the contract and for `Allow`: AppendRoute takes these requests before.
        raise AssertionError((s, request.method))

    add_staged_route(api, appends, staged)
    add_producer_routes(api, appends)
    return api
