"""Ingest as a service: every part of it is made and wired here, top to bottom."""

import os
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from typing import Final

from bottomless.drives.base import Drive
from bottomless.model.config import Profile
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.tracking.known_producers import TrackingBounds
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.diskless import DisklessIngest
from bottomless_server.ingest.elsewhere import ElsewhereAppenders
from bottomless_server.ingest.front.metrics import AppendCounts, TimedFileCalls
from bottomless_server.ingest.front.name_watch import NameWatch
from bottomless_server.ingest.front.names import StreamNames
from bottomless_server.ingest.front.part_routes import PartRoutes, add_part_routes
from bottomless_server.ingest.front.public import Broker, Supers, create_public_app
from bottomless_server.ingest.front.remote_partitions import PartitionOwners
from bottomless_server.ingest.front.super_names import SuperNames
from bottomless_server.ingest.leaderless.making import LeaderlessStores, make_leaderless
from bottomless_server.ingest.leaderless.staged_batches import StagedObjects
from bottomless_server.ingest.leaderless.wal_cache import WalCache
from bottomless_server.ingest.leaderless.wal_routes import add_wal_routes
from bottomless_server.ingest.local.appender_context import AppenderContext
from bottomless_server.ingest.local.config_watch import ConfigWatch
from bottomless_server.ingest.local.feed import CommitFeed
from bottomless_server.ingest.local.freeing import DiskUse, FreeingBounds
from bottomless_server.ingest.local.giving import Giving
from bottomless_server.ingest.local.opening import Opener
from bottomless_server.ingest.local.owned_partitions import OwnedPartitions
from bottomless_server.ingest.local.replicas import Replicate
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.local.tail_routes import Tails, create_internal_api
from bottomless_server.ingest.log.leftovers import Leftovers
from bottomless_server.ingest.log.rounds import RoundWriter
from bottomless_server.ingest.log.segments import RollBounds
from bottomless_server.ingest.log.whole_syncs import WholeSyncs
from bottomless_server.ingest.ports import Appenders
from bottomless_server.ingest.producers.commit_parts import progress
from bottomless_server.ingest.producers.tracking_room import TrackingRoom
from bottomless_server.ingest.replicas.followed_reads import FollowedReads, add_followed_routes
from bottomless_server.ingest.replicas.held_routes import add_held_routes
from bottomless_server.ingest.replicas.making import LocalLogs, SendingHalf, make_following
from bottomless_server.ingest.replicas.member_routes import add_member_routes
from bottomless_server.ingest.replicas.replica_routes import add_replica_routes
from bottomless_server.ingest.replicas.transfer_routes import add_transfer_routes
from bottomless_server.ingest.service import IngestService
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.ingest.staged.batches import StagedBatches
from bottomless_server.ingest.staged.commits import StagedCommits
from bottomless_server.ingest.staged.object_batches import SharedBatches, StagedStore
from bottomless_server.ingest.staged.owned_appenders import OwnedAppenders
from bottomless_server.ingest.staged.stream_batches import StagedBounds
from bottomless_server.node.core.admission import Admission
from bottomless_server.node.core.clock import CommitClock
from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.forwarded import ForwardedRequests
from bottomless_server.node.forwarding import Forwarding
from bottomless_server.node.lease import REAL_CLOCKS, Clocks, LeaseBounds, NodeLease
from bottomless_server.node.owner import Owner
from bottomless_server.node.placement import Placement
from bottomless_server.node.room import MemoryRoom
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.shared_hops import SharedHops
from bottomless_server.runtime.base.started_threads import StartedThreads
from bottomless_server.runtime.http.app import create_api
from bottomless_server.runtime.http.broker import BrokerHealth
from bottomless_server.runtime.peers.internal_secret import secret_to_send
from bottomless_server.runtime.peers.peers import Peer
from bottomless_server.runtime.process.process_limits import open_log_count_max
from bottomless_server.stores.node_facts import NodeFacts
from bottomless_server.stores.streams import Streams
from bottomless_server.stores.supers import super_named

_SUPER_SHARE: Final = 2
"""Requests to super streams have this part of the room of appends, beside it."""

_PARTS_MS_MAX: Final = 600_000
_PARTS_SHARE: Final = 4
"""Parts of a request are sent for this part of the time for which producers are remembered."""


def create_node(
    settings: IngestSettings, coordination: Coordination, stores: LeaderlessStores | None
) -> IngestService | DisklessIngest:
    """Make the service for the profiles that the settings name. `stores` are for leaderless streams.

    Raises:
        CannotStart: a setting that it cannot do without is missing.
    """
    leaderless = stores if "leaderless" in settings.profiles else None
    if "local" in settings.profiles:
        drive = None if stores is None else stores.drive
        return create_service(settings, coordination, leaderless=leaderless, drive=drive)
    assert leaderless is not None
    return create_diskless_service(settings, coordination, leaderless)


def create_diskless_service(
    settings: IngestSettings,
    coordination: Coordination,
    leaderless: LeaderlessStores,
    *,
    manifest: PeerPort | None = None,
    clocks: Clocks = REAL_CLOCKS,
    forwarding: Forwarding | None = None,
) -> DisklessIngest:
    """Make the service of a node that serves leaderless streams and no others.

    Raises:
        CannotStart: a setting that it cannot do without is missing.
    """
    room, super_room = _room(settings, clocks), _room(settings, clocks, share=_SUPER_SHARE)
    manifest = manifest or _manifest(settings)
    names = _names(settings, manifest, coordination, clocks)
    supers = SuperNames(manifest, clocks.monotonic, partial(super_named, coordination))
    owner_url = _owner_url(settings)
    half = make_leaderless(settings, coordination, leaderless, clocks, owner_url, room)
    elsewhere = ElsewhereAppenders(coordination, clocks)
    under_way, counts = RequestsUnderWay(), AppendCounts()
    others = forwarding or Forwarding(settings.ingest_forward_ms / 1000, secret_to_send(settings))
    forwarded = ForwardedRequests(others, under_way, counts, elsewhere.forget_owner)
    owners = PartitionOwners(elsewhere, others, counts, elsewhere.forget_owner)
    profiles: dict[Profile, Appenders] = {"local": elsewhere, "leaderless": half.appenders}
    public = create_public_app(
        names,
        profiles,
        under_way,
        forwarded,
        room,
        counts,
        frame_size_max=settings.ingest_chunk_size_max,
        supers=_supers(settings, clocks, supers, owners, super_room),
        broker=_broker(settings),
    )
    wal_api = create_api("Bottomless ingest, internal")
    add_wal_routes(wal_api, half.writer.cache)
    return DisklessIngest(
        public=public.app,
        lane=public.lane,
        wal_api=wal_api,
        leaderless=half,
        names=names,
        supers=supers,
        watch=NameWatch(coordination, clocks, names.hear, every_ms=settings.ingest_renew_ms),
        under_way=under_way,
        forwarded=forwarded,
        room=room,
        super_room=super_room,
        counts=counts,
        data_dir=settings.data_dir,
    )


def create_service(
    settings: IngestSettings,
    coordination: Coordination,
    *,
    manifest: PeerPort | None = None,
    files: FileCalls | None = None,
    clocks: Clocks = REAL_CLOCKS,
    forwarding: Forwarding | None = None,
    leaderless: LeaderlessStores | None = None,
    replicate: Replicate | None = None,
    drive: Drive | None = None,
) -> IngestService:
    """Make the service; no file is opened and nobody is asked before its `start`. With `leaderless`
    it serves streams without an owner, too. `replicate` says who holds a stream beside this node.
    `drive` takes what is staged of streams with replicas.

    Raises:
        CannotStart: a setting that it cannot do without is missing.
    """
    owner_url = _owner_url(settings)
    files = files or TimedFileCalls()
    executor = StartedThreads(settings.ingest_thread_count, "ingest-files")
    # Its own threads, so that a replay of the tail never holds up a write.
    readers = ThreadPoolExecutor(settings.ingest_read_thread_count, "ingest-reads")
    directory = DataDirectory(files, settings.data_dir)
    manifest = manifest or _manifest(settings)
    names = _names(settings, manifest, coordination, clocks)
    supers = SuperNames(manifest, clocks.monotonic, partial(super_named, coordination))
    facts = NodeFacts(owner_url, settings.ingest_zone or "", version("bottomless-server"))
    lease = NodeLease(
        coordination, directory, owner_url, clocks, _lease(settings), names.hear, facts=facts
    )
    placement = Placement(coordination, clocks.monotonic)
    owner = Owner(coordination, lease, names.note_home, placement)
    hops = SharedHops(executor, settings.ingest_thread_count)
    sending = SendingHalf(settings, coordination, owner, placement, files, hops, clocks)

    batches = StagedBatches(files, settings.data_dir, clocks, _staged(settings), executor)
    syncs = WholeSyncs(files, settings.data_dir, settings.ingest_sync_all)
    rounds = RoundWriter(
        executor, settings.ingest_thread_count, syncs, directory.is_lost, lease.fence
    )
    replicate = replicate or sending.replicate
    context = _context(settings, executor, hops, clocks, batches, rounds, replicate)
    feed = CommitFeed(os.urandom(8).hex())
    streams, giving = _streams(settings, files, owner, context, feed)
    replicas = make_following(
        settings, settings.data_dir, files, context, streams, giving, owner, sending
    )
    logs = LocalLogs(streams, replicas.following, context.disk)
    leftovers = Leftovers(
        files,
        settings.data_dir,
        executor,
        logs,
        names.state_of,
        batches.drop_stream,
        giving.part_with,
    )

    room, super_room = _room(settings, clocks), _room(settings, clocks, share=_SUPER_SHARE)
    shared = None if drive is None else _shared(settings, drive, batches, clocks, room)
    commits = StagedCommits(batches, clocks, settings.group_bytes_max, room.hold, shared)
    appenders = OwnedAppenders(streams, batches, commits, context.disk, shared)
    under_way, counts = RequestsUnderWay(), AppendCounts()
    others = forwarding or Forwarding(settings.ingest_forward_ms / 1000, secret_to_send(settings))
    forwarded = ForwardedRequests(others, under_way, counts, streams.others.forget_owner)
    partitions = OwnedPartitions(streams, context.disk.require_room, owner.load_super)
    owners = PartitionOwners(partitions, others, counts, streams.others.forget_owner)
    profiles: dict[Profile, Appenders] = {"local": appenders}
    half = None
    if leaderless is not None:
        half = make_leaderless(settings, coordination, leaderless, clocks, owner_url, room)
        profiles["leaderless"] = half.appenders
    tail_api = create_internal_api(Tails(streams, feed, lease, files, readers))
    add_wal_routes(tail_api, WalCache(0) if half is None else half.writer.cache)
    frame_size_max = settings.ingest_chunk_size_max
    internal = add_replica_routes(tail_api, replicas.routes)
    add_followed_routes(tail_api, FollowedReads(replicas.following, files, readers))
    add_transfer_routes(tail_api, replicas.transfer_routes)
    add_held_routes(tail_api, replicas.held_routes)
    add_member_routes(tail_api, replicas.member_routes)
    parts = PartRoutes(partitions, under_way, room, frame_size_max, lambda: owner.node_id)
    add_part_routes(tail_api, parts)
    public = create_public_app(
        names,
        profiles,
        under_way,
        forwarded,
        room,
        counts,
        frame_size_max=settings.ingest_chunk_size_max,
        supers=_supers(settings, clocks, supers, owners, super_room),
        broker=_broker(settings),
    )
    return IngestService(
        public=public.app,
        lane=public.lane,
        tail_api=internal,
        directory=directory,
        files=files,
        executors=(readers, executor),
        lease=lease,
        context=context,
        streams=streams,
        giving=giving,
        configs=ConfigWatch(streams, owner),
        replicas=replicas,
        feed=feed,
        leftovers=leftovers,
        staged=batches,
        appenders=appenders,
        names=names,
        supers=supers,
        owners=owners,
        under_way=under_way,
        forwarded=forwarded,
        room=room,
        super_room=super_room,
        counts=counts,
        leaderless=half,
    )


def _supers(
    settings: IngestSettings,
    clocks: Clocks,
    names: SuperNames,
    owners: PartitionOwners,
    room: MemoryRoom,
) -> Supers:
    return Supers(
        names,
        owners,
        room,
        settings.ingest_parts_in_flight,
        clocks.since_boot,
        # Long before a partition may forget who sent the request.
        min(_PARTS_MS_MAX, settings.ingest_key_keep_ms // _PARTS_SHARE),
    )


def _broker(settings: IngestSettings) -> Broker | None:
    if not settings.broker:
        return None
    return Broker(BrokerHealth(settings.host, settings.port), settings.broker_create)


def _owner_url(settings: IngestSettings) -> str:
    owner_url = settings.ingest_url or settings.internal_listen
    if owner_url is None:
        raise CannotStart("ingest needs BOTTOMLESS_INGEST_URL: where others reach it")
    return owner_url


def _names(
    settings: IngestSettings, manifest: PeerPort, coordination: Coordination, clocks: Clocks
) -> StreamNames:
    # What a name meant is good for as long as the owner believes in its lease.
    keep_ms = settings.ingest_lease_ms - settings.ingest_lease_margin_ms
    return StreamNames(manifest, Streams(coordination), clocks, keep_ms)


def _manifest(settings: IngestSettings) -> PeerPort:
    if settings.manifest_url is None:
        raise CannotStart("ingest needs BOTTOMLESS_MANIFEST_URL")
    return Peer(settings.manifest_url, name="manifest", secret=secret_to_send(settings))


def _streams(
    settings: IngestSettings,
    files: FileCalls,
    owner: Owner,
    context: AppenderContext,
    feed: CommitFeed,
) -> tuple[OwnedStreams, Giving]:
    opener = Opener(files, settings.data_dir, owner, context, _roll(settings), feed.note)
    streams = OwnedStreams(
        opener, owner, context, feed.note, feed.settle, open_count=settings.ingest_open_count
    )
    return streams, Giving(streams, opener)


def _context(
    settings: IngestSettings,
    executor: Executor,
    hops: SharedHops,
    clocks: Clocks,
    batches: StagedBatches,
    rounds: RoundWriter,
    replicate: Replicate,
) -> AppenderContext:
    def has_begun(stream_id: StreamId, tracking: Tracking) -> bool:
        return batches.has_begun(stream_id, lambda plan: progress(plan, tracking).start > 0)

    return AppenderContext(
        executor=executor,
        hops=hops,
        rounds=rounds,
        clocks=clocks,
        commit_clock=CommitClock(settings.ingest_clock_jump_ms_max),
        disk=DiskUse(settings.ingest_disk_bytes_max),
        has_begun=has_begun,
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
        tracking_room=TrackingRoom(settings.ingest_tracking_bytes_max),
        replicate=replicate,
    )


def _room(settings: IngestSettings, clocks: Clocks, share: int = 1) -> MemoryRoom:
    size_max = settings.ingest_in_flight_bytes_max // share
    return MemoryRoom(
        Admission(min(settings.ingest_stream_in_flight_bytes_max, size_max), size_max),
        clocks.monotonic,
        settings.ingest_in_flight_wait_ms / 1000,
    )


def _lease(settings: IngestSettings) -> LeaseBounds:
    return LeaseBounds(
        settings.ingest_lease_ms, settings.ingest_lease_margin_ms, settings.ingest_renew_ms
    )


def _staged(settings: IngestSettings) -> StagedBounds:
    return StagedBounds(
        stream_bytes_max=settings.ingest_staged_stream_bytes_max,
        bytes_max=settings.ingest_staged_bytes_max,
        stream_count_max=settings.ingest_staged_stream_count_max,
        count_max=settings.ingest_staged_count_max,
        keep_ms=settings.ingest_staged_keep_ms,
        plan_keep_ms=settings.ingest_staged_plan_keep_ms,
    )


def _shared(
    settings: IngestSettings,
    drive: Drive,
    batches: StagedBatches,
    clocks: Clocks,
    room: MemoryRoom,
) -> SharedBatches:
    seconds = settings.ingest_wal_put_seconds
    objects = StagedObjects(
        drive, clocks.wall, keep_ms=settings.ingest_staged_keep_ms, put_seconds=seconds
    )
    return SharedBatches(StagedStore(drive, objects, batches, room.hold, seconds))


def _roll(settings: IngestSettings) -> RollBounds:
    return RollBounds(
        settings.ingest_segment_size_max,
        settings.ingest_segment_age_ms_max,
        settings.ingest_segment_chunk_count_max,
    )
