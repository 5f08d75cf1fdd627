"""The reader as a service: every part of it is made and wired here, top to bottom."""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp

from bottomless.drives.base import Drive
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.sealed_token import SECRET_SIZE
from bottomless_server.drives.table import DriveTable
from bottomless_server.protocol.peer import PeerPort, PeersPort
from bottomless_server.reader.blocks import Blocks
from bottomless_server.reader.bounds import StreamBounds
from bottomless_server.reader.broker_routes import add_consume_route
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.core.heat import Heat
from bottomless_server.reader.core.scan import ScanBounds
from bottomless_server.reader.downloads import Downloads
from bottomless_server.reader.fences import Fences
from bottomless_server.reader.follower_reads import FollowerReads
from bottomless_server.reader.followers import FollowBounds, Followers
from bottomless_server.reader.fragments import Fragments
from bottomless_server.reader.heat_telling import HeatTelling
from bottomless_server.reader.leaderless.entry_chunks import EntryChunks
from bottomless_server.reader.leaderless.tail_poll import TailPoll
from bottomless_server.reader.leaderless.tail_records import TailRecords
from bottomless_server.reader.leaderless.wal_nodes import WalNodes
from bottomless_server.reader.leaderless.wal_tail import WalReads, WalTail
from bottomless_server.reader.listing import Listing
from bottomless_server.reader.manifest_calls import ManifestCalls
from bottomless_server.reader.metrics import reader_metrics
from bottomless_server.reader.nodes import IngestNodes
from bottomless_server.reader.offset_routes import OffsetRoutes
from bottomless_server.reader.owned_tail import OwnedTail
from bottomless_server.reader.page_reader import PageReader
from bottomless_server.reader.patience import Patience
from bottomless_server.reader.published_tail import PublishedTail
from bottomless_server.reader.record_routes import RecordRoutes
from bottomless_server.reader.resolver import Resolver
from bottomless_server.reader.roots import Roots
from bottomless_server.reader.routes import Routes
from bottomless_server.reader.settings import ReaderSettings
from bottomless_server.reader.shared_tail import SharedTail
from bottomless_server.reader.stored_offsets import StoredOffsets
from bottomless_server.reader.stored_tier import StoredTier
from bottomless_server.reader.streams import Streams
from bottomless_server.reader.super_offsets import SuperOffsets
from bottomless_server.reader.tails import NoTail, Tails
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.http.app import create_api, wrap
from bottomless_server.runtime.http.broker import BrokerHealth
from bottomless_server.runtime.http.connection import Places
from bottomless_server.runtime.http.contract import describe
from bottomless_server.runtime.peers.internal_secret import secret_to_send
from bottomless_server.runtime.peers.peers import Peer, Peers


@dataclass(eq=False)
class ReaderService:
    """Starts without asking anybody: it keeps nothing, and answers 503 while others are away."""

    public: ASGIApp
    internal: ASGIApp
    cache: SharedCache
    blocks: Blocks
    shared: SharedTail
    followers: Followers
    waiters: Places
    fences: Fences
    wal: WalReads | None
    """None where no coordination store was given."""
    heat: HeatTelling | None = None
    """None where there is one drive, so that nothing can be promoted."""
    peers: list[Peer | Peers] = field(default_factory=list)
    """Peers that this service opened."""
    name: str = "reader"
    telling: asyncio.Task[None] | None = None

    def metrics(self) -> Iterable[Metric]:
        return reader_metrics(
            self.cache, self.blocks, self.followers, self.waiters, self.fences, self.wal, self.heat
        )

    async def start(self) -> None:
        """Nothing is to be recovered and nothing to be claimed."""
        if self.heat is not None:
            self.telling = asyncio.create_task(self.heat.run(), name="reader heat")

    async def drain(self) -> None:
        """End the answers that stay open; pages are short, and who waits for one is answered
        by the process."""
        await self.followers.drain()

    async def stop(self) -> None:
        if self.telling is not None:
            await end_tasks(self.telling)
        await self.followers.aclose()
        await self.shared.aclose()
        await self.fences.aclose()
        if self.wal is not None:
            await self.wal.poll.aclose()
        await self.cache.aclose()
        for peer in self.peers:
            await peer.aclose()


def create_service(
    settings: ReaderSettings,
    drive: Drive,
    *,
    coordination: Coordination | None = None,
    manifest: PeerPort | None = None,
    ingest: PeersPort | None = None,
    elapsed: Callable[[], int] | None = None,
    table: DriveTable | None = None,
) -> ReaderService:
    """Make the service; `manifest` and `ingest` stand in for the peers that the settings name, and
    `elapsed`, in ms, for the clock by which it remembers names and members of groups.

    `coordination` is for the tails of leaderless streams alone: without it they are 503. `table` has
    the drives of fragments; without it all of them are on `drive`.
    """
    peers = _peers(settings, manifest, ingest)
    cache = _cache(settings)
    elapsed = elapsed or _elapsed
    heat = _heat(settings, peers.manifest, elapsed, table)
    blocks = _blocks(settings, drive, cache, table, heat)
    fragments = Fragments(blocks, cache)
    streams = Streams(peers.manifest, settings.reader_name_ttl_ms, elapsed)
    fences = Fences(peers.manifest, streams, elapsed)
    roots = Roots(peers.manifest, drive, cache, settings.reader_root_ttl_ms)
    wal = (
        None if coordination is None else _wal(settings, coordination, drive, blocks, peers, roots)
    )
    nodes = IngestNodes(peers.manifest)
    reads = FollowerReads(peers.ingest, nodes) if settings.reader_followers else None
    tail = Tails(
        PublishedTail(OwnedTail(peers.ingest, peers.waiting, nodes, reads), roots),
        NoTail() if wal is None else wal.tail,
    )
    shared = SharedTail(
        tail,
        keep_size=settings.reader_tail_bytes,
        stream_count_max=settings.reader_waiting_stream_count_max,
    )
    patience = Patience(settings.reader_store_retry_seconds)
    reader = PageReader(
        streams,
        roots,
        tail,
        shared,
        Resolver(roots, tail, fragments, StoredOffsets(peers.manifest), time.time),
        StoredTier(roots, fragments, settings.reader_read_ahead_bytes),
        patience,
        page_count_max=settings.reader_page_count_max,
        scan_bounds=ScanBounds(
            settings.reader_filter_scan_bytes,
            settings.reader_filter_scan_groups,
            settings.reader_filter_scan_ms / 1000,
        ),
    )
    listing = Listing(
        reader,
        roots,
        tail,
        drive,
        secret=_secret(settings),
        url_seconds=settings.reader_url_seconds,
        drives=table,
    )
    downloads = Downloads(
        reader,
        roots,
        table or DriveTable.of_one(drive),
        blocks,
        patience,
        piece_size=settings.reader_block_bytes,
        read_ahead_size=settings.reader_read_ahead_bytes,
    )

    public = create_api("Bottomless reader")
    describe(public)
    waiters = Places(settings.reader_waiter_count_max, "requests that wait for records")
    followers = Followers(reader, _follow_bounds(settings), time.time)
    bounds = StreamBounds(reader, roots, tail, shared)
    Routes(
        RecordRoutes(reader, followers, waiters, fences),
        OffsetRoutes(reader, bounds, SuperOffsets(peers.manifest, bounds), waiters),
        listing,
        downloads,
    ).add_to(public)
    if settings.broker:
        add_consume_route(public, reader, waiters, BrokerHealth(settings.host, settings.port))
    internal = create_api("Bottomless reader, internal")
    return ReaderService(
        wrap(public),
        wrap(internal),
        cache,
        blocks,
        shared,
        followers,
        waiters,
        fences,
        wal,
        heat,
        peers.opened,
    )


def _heat(
    settings: ReaderSettings,
    manifest: PeerPort,
    elapsed: Callable[[], int],
    table: DriveTable | None,
) -> HeatTelling | None:
    if table is None or len(table.numbers) == 1:
        return None
    return HeatTelling(Heat(), manifest, settings.reader_heat_interval_ms, elapsed)


def _wal(
    settings: ReaderSettings,
    coordination: Coordination,
    drive: Drive,
    blocks: Blocks,
    peers: "_AskedPeers",
    roots: Roots,
) -> WalReads:
    records = TailRecords(coordination, drive)
    poll = TailPoll(records, settings.reader_tail_poll_ms)
    nodes = WalNodes(coordination, peers.ingest, settings.reader_wal_node_ms)
    chunks = EntryChunks(blocks, nodes)
    return WalReads(WalTail(coordination, records, poll, chunks, roots), poll, nodes, chunks)


def _cache(settings: ReaderSettings) -> SharedCache:
    # Blocks on their way are memory too, so the cache leaves room for them.
    in_flight = settings.reader_fetch_count_max * settings.reader_block_bytes
    return SharedCache(max(settings.reader_cache_bytes - in_flight, 0))


def _blocks(
    settings: ReaderSettings,
    drive: Drive,
    cache: SharedCache,
    table: DriveTable | None,
    heat: HeatTelling | None,
) -> Blocks:
    return Blocks(
        drive,
        cache,
        settings.reader_block_bytes,
        settings.reader_fetch_count_max,
        ahead_size_max=settings.reader_read_ahead_bytes,
        drives=table,
        note=None if heat is None else heat.note,
    )


class _AskedPeers(NamedTuple):
    manifest: PeerPort
    ingest: PeersPort
    waiting: PeersPort
    """Ingest again, over connections of their own: requests that wait there take no others' place."""
    opened: list[Peer | Peers]


def _peers(
    settings: ReaderSettings, manifest: PeerPort | None, ingest: PeersPort | None
) -> _AskedPeers:
    opened: list[Peer | Peers] = []
    waiting = ingest
    secret = secret_to_send(settings)
    if manifest is None:
        assert settings.manifest_url is not None, "the reader needs BOTTOMLESS_MANIFEST_URL"
        peer = Peer(settings.manifest_url, name="manifest", secret=secret)
        opened.append(peer)
        manifest = peer
    if ingest is None or waiting is None:
        peers = Peers(name="ingest", secret=secret)
        count_max = settings.reader_waiting_stream_count_max
        more = Peers(name="ingest", connection_count_max=count_max, secret=secret)
        opened += [peers, more]
        ingest, waiting = peers, more
    return _AskedPeers(ManifestCalls(manifest), ingest, waiting, opened)


def _elapsed() -> int:
    """In ms, with the time in which the machine was suspended, where a clock tells it."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
    return time.monotonic_ns() // 1_000_000


def _follow_bounds(settings: ReaderSettings) -> FollowBounds:
    return FollowBounds(
        count_max=settings.reader_follower_count_max,
        size_max=settings.reader_follower_bytes,
        total_size_max=settings.reader_followers_bytes,
        heartbeat_seconds=settings.reader_heartbeat_seconds,
        rotate_seconds=settings.reader_rotate_seconds,
        blocked_seconds=settings.reader_blocked_seconds,
    )


def _secret(settings: ReaderSettings) -> bytes:
    if settings.page_token_secret is None:
        return os.urandom(SECRET_SIZE)
    # The setting may have any length, and a seal needs a key of one.
    return hashlib.sha256(settings.page_token_secret.encode("utf-8")).digest()
