"""The leaderless half of ingest, made of its settings and stores."""

import os
import random
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from bottomless.drives.base import Drive
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Coordination
from bottomless_server.ingest.leaderless.appenders import (
    LeaderlessAppenders,
    known_bounds,
    leaderless_appenders,
)
from bottomless_server.ingest.leaderless.asked import asked_of
from bottomless_server.ingest.leaderless.context import WriterBounds, WriterContext
from bottomless_server.ingest.leaderless.core.accumulator import FlushBounds
from bottomless_server.ingest.leaderless.core.store_clock import StoreClock
from bottomless_server.ingest.leaderless.counts import (
    AroundWriter,
    WriterCounts,
    writer_metrics,
)
from bottomless_server.ingest.leaderless.writer import Writer
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.leaderless.tail_changes import TailBounds
from bottomless_server.node.lease import Clocks, LeaseBounds
from bottomless_server.node.room import MemoryRoom


class LeaderlessStores(NamedTuple):
    """What a node needs to write leaderless streams."""

    drive: Drive
    coordination: Coordination
    """Nobody but the writer uses it: each new connection has its commits wait until the store is
    compared with the bucket."""


class LeaderlessHalf(NamedTuple):
    """What serves leaderless streams in an ingest process."""

    writer: Writer
    appenders: LeaderlessAppenders

    def metrics(self) -> Iterable[Metric]:
        """What it measures of itself."""
        writer = self.writer
        return writer_metrics(
            writer.counts,
            AroundWriter(
                refusals=self.appenders.refusals,
                waiting_size=writer.waiting_size,
                cache_size=writer.cache.size,
                found_count=writer.cache.found_count,
                missed_count=writer.cache.missed_count,
                held_count=writer.space.held_count,
                held_count_max=writer.space.held_count_max,
                fullness=writer.space.fullness,
                fullness_max=writer.space.fullness_max,
            ),
        )

    async def drain(self) -> None:
        """Commit what is under way, then flush, commit and note everything, and settle it."""
        await self.appenders.commits.stop()
        await self.writer.drain()


def no_writer() -> Iterable[Metric]:
    """What a process shows that writes no leaderless streams."""
    return writer_metrics(WriterCounts(), AroundWriter())


def writer_context(
    settings: IngestSettings, stores: LeaderlessStores, clocks: Clocks, url: str
) -> WriterContext:
    """What all parts of the writer share; `url` is where others reach this node."""
    known = known_bounds(settings)
    return WriterContext(
        drive=stores.drive,
        coordination=stores.coordination,
        clocks=clocks,
        store_clock=StoreClock(settings.ingest_clock_difference_ms_max),
        bounds=writer_bounds(settings),
        asked_of=lambda seen, pieces, clock: asked_of(seen, pieces, clock, known),
        url=url,
        new_uid=lambda: Uid(os.urandom(16).hex()),
        chance=random.random,
        counts=WriterCounts(),
    )


def writer_bounds(settings: IngestSettings) -> WriterBounds:
    """The bounds of the writer as they are set."""
    return WriterBounds(
        flush=FlushBounds(
            size_max=settings.ingest_wal_bytes,
            linger_ms=settings.ingest_wal_linger_ms,
            stream_count_max=settings.ingest_wal_streams,
        ),
        chunk_size_max=settings.ingest_chunk_size_max,
        put_count_max=settings.ingest_wal_puts_in_flight,
        put_seconds=settings.ingest_wal_put_seconds,
        commit_seconds=settings.ingest_wal_commit_seconds,
        commit_stream_count_max=settings.ingest_wal_commit_streams,
        notes_sync=settings.ingest_wal_notes == "sync",
        note_ms=settings.ingest_wal_note_ms,
        cache_size=settings.ingest_wal_cache_bytes,
        tail=TailBounds(
            settings.ingest_wal_stream_bytes_max, settings.ingest_wal_stream_entries_max
        ),
        held_count_max=settings.ingest_wal_held_max,
        fullness_max=settings.ingest_wal_fullness_max,
        clock_difference_ms_max=settings.ingest_clock_difference_ms_max,
        lease=LeaseBounds(
            settings.ingest_lease_ms, settings.ingest_lease_margin_ms, settings.ingest_renew_ms
        ),
    )


def make_leaderless(
    settings: IngestSettings,
    coordination: Coordination,
    stores: LeaderlessStores,
    clocks: Clocks,
    url: str,
    room: MemoryRoom,
) -> LeaderlessHalf:
    """Make the writer of a node, and the appenders around it; `coordination` is the one that all
    parts of the node share."""
    context = writer_context(settings, stores, clocks, url)
    writer = Writer(context)
    appenders = leaderless_appenders(
        settings,
        coordination,
        stores.drive,
        writer,
        room,
        context.read_clock,
        put_seconds=settings.ingest_wal_put_seconds,
    )
    return LeaderlessHalf(writer, appenders)
