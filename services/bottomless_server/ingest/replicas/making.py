"""Replicas as a part of ingest: what is made for them, and in which order it starts and stops.

At a stop the streams of this node are closed first, while others still answer for what was sent to
them; then nothing more is followed, and nothing more sent.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.metrics_core import Metric

from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Coordination
from bottomless_server.ingest.local.appender_context import AppenderContext
from bottomless_server.ingest.local.freeing import DiskUse
from bottomless_server.ingest.local.giving import Giving
from bottomless_server.ingest.local.replicas import Replicas
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.log.segments import SegmentLog
from bottomless_server.ingest.replicas.context import FollowingContext
from bottomless_server.ingest.replicas.failover import Failover
from bottomless_server.ingest.replicas.figures import ReplicaFigures
from bottomless_server.ingest.replicas.following import Following
from bottomless_server.ingest.replicas.held_routes import HeldRoutes
from bottomless_server.ingest.replicas.member_routes import MemberRoutes
from bottomless_server.ingest.replicas.node_peers import NodePeers
from bottomless_server.ingest.replicas.other_nodes import OtherNodes
from bottomless_server.ingest.replicas.owner_context import OwnerContext
from bottomless_server.ingest.replicas.replica_routes import ReplicaRoutes
from bottomless_server.ingest.replicas.senders import Senders
from bottomless_server.ingest.replicas.step_down import StepDown
from bottomless_server.ingest.replicas.this_node import ThisNode
from bottomless_server.ingest.replicas.transfer_routes import TransferRoutes
from bottomless_server.ingest.replicas.transfers import Transfers
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.node.core.admission import Admission
from bottomless_server.node.core.replica_waits import WaitBounds
from bottomless_server.node.core.sends import Memory
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.lease import Clocks
from bottomless_server.node.owner import Claim, Owner
from bottomless_server.node.placement import Placement
from bottomless_server.node.replica_records import ReplicaRecords
from bottomless_server.node.room import MemoryRoom
from bottomless_server.runtime.base.shared_hops import SharedHops
from bottomless_server.runtime.peers.internal_secret import secret_to_send

_STREAM_COUNT_MAX = 100_000
"""Streams that are followed at once; some KiB each."""
_NOTE_COUNT = 8
"""Streams of which the bucket is told at once that other nodes hold them."""


class SendingHalf:
    """What this node sends as the owner of streams: made before those are."""

    def __init__(
        self,
        settings: IngestSettings,
        coordination: Coordination,
        owner: Owner,
        placement: Placement,
        files: FileCalls,
        hops: SharedHops,
        clocks: Clocks,
    ) -> None:
        self.peers = NodePeers(coordination, secret_to_send(settings))
        memory = Memory(settings.ingest_replica_bytes_in_flight)
        self.senders = Senders(memory, clocks.monotonic, self.peers.of, self.peers.forget)
        self.figures = ReplicaFigures()
        self.giving_way: set[StreamId] = set()
        """Streams that lie here alone, and are being opened anew so that another node can have them."""
        self._noting = asyncio.Semaphore(_NOTE_COUNT)
        self._owner = owner
        self._placement = placement
        self._files = files
        self._hops = hops
        self._clocks = clocks
        self._bounds = WaitBounds(
            wait_ms=settings.ingest_replica_wait_ms,
            commit_ms=settings.ingest_replica_commit_ms,
            join_ms=settings.ingest_replica_join_ms,
            replace_ms=settings.ingest_replica_replace_ms,
        )

    def replicate(self, record: StreamRecord, claim: Claim, local: SegmentLog) -> Replicas | None:
        """The other nodes of a stream that was just claimed; None if it is to lie here alone."""
        if not record.is_replicated and record.stream_id not in self.giving_way:
            return None
        return OtherNodes(self._context(), record, claim, local)

    def _context(self) -> OwnerContext:
        # Not before the start: the directory says which node this is.
        mine = self._owner.node_id
        return OwnerContext(
            mine=mine,
            records=ReplicaRecords(self._owner.streams, mine),
            senders=self.senders,
            files=self._files,
            hops=self._hops,
            clocks=self._clocks,
            bounds=self._bounds,
            choose=self._choose,
            live_of=self._placement.living,
            note=self._note,
            figures=self.figures,
        )

    async def _note(self, stream_id: StreamId) -> None:
        # One node that dies is a member of many streams, whose owners replace it at the same time.
        async with self._noting:
            await self._owner.note_home(stream_id)

    async def _choose(self, record: StreamRecord, kept: Collection[NodeId]) -> tuple[NodeId, ...]:
        return await self._placement.choose(record, self._owner.node_id, kept)

    async def stop(self) -> None:
        """Send nothing more."""
        await self.senders.stop()
        await self.peers.aclose()


@dataclass(frozen=True, slots=True)
class ReplicaHalf:
    """All of ingest that has to do with other nodes."""

    sending: SendingHalf
    following: Following
    routes: ReplicaRoutes
    failover: Failover
    step_down: StepDown
    transfers: Transfers
    transfer_routes: TransferRoutes
    held_routes: HeldRoutes
    member_routes: MemberRoutes

    def start(self, stream_ids: Iterable[StreamId]) -> None:
        """Follow whatever owners ask for from now on, and go on where they die; `stream_ids` lie here."""
        self.following.start()
        self.failover.start(stream_ids)
        self.step_down.start()

    def metrics(self, disk: DiskUse) -> Iterable[Metric]:
        """What it measures of itself; `disk` is where logs lie."""
        return self.sending.figures.metrics(self.following.count, is_full=disk.is_full())

    def report(self) -> Mapping[str, int]:
        """Tell of the streams with replicas, for `/readyz?verbose=1`: those that are followed here, and
        those that are owned here by how many nodes have everything of them."""
        return {"followed": self.following.count, **self.sending.figures.in_sync()}

    async def claim_nothing(self) -> None:
        """Claim nothing more, and give nothing away."""
        await self.step_down.stop()
        await self.failover.stop()

    async def stop(self) -> None:
        """Follow and send nothing more, once all streams of this node are closed."""
        await self.following.stop()
        await self.sending.stop()


class LocalLogs:
    """Everything that has files of streams open here, owned or followed."""

    def __init__(self, streams: OwnedStreams, following: Following, disk: DiskUse) -> None:
        self._streams = streams
        self._following = following
        self._disk = disk

    def in_use(self, stream_id: StreamId) -> bool:
        """Whether anything here reads or writes the files of a stream."""
        return self._streams.in_use(stream_id) or self._following.in_use(stream_id)

    def forget(self, stream_id: StreamId) -> None:
        """Forget a stream whose files are not here any more."""
        self._streams.forget(stream_id)
        self._disk.count(stream_id, 0)


def make_following(
    settings: IngestSettings,
    data_dir: Path,
    files: FileCalls,
    context: AppenderContext,
    streams: OwnedStreams,
    giving: Giving,
    owner: Owner,
    sending: SendingHalf,
) -> ReplicaHalf:
    """Make the half that follows, beside the streams that this node owns."""
    following = Following(
        FollowingContext(
            files=files,
            data_dir=data_dir,
            executor=context.executor,
            hops=context.hops,
            rounds=context.rounds,
            clocks=context.clocks,
            disk=context.disk,
            freeing=context.freeing,
            here=ThisNode(streams, owner),
            sound=context.sound,
        ),
        stream_count_max=_STREAM_COUNT_MAX,
        open_log_count_max=context.open_log_count_max,
    )
    streams.followed = following
    # Beside the room of appends: a node that forwards to another must not wait for itself.
    size = settings.ingest_in_flight_bytes_max
    wait_seconds = settings.ingest_in_flight_wait_ms / 1000
    room = MemoryRoom(Admission(size, size), context.clocks.monotonic, wait_seconds)
    figures = sending.figures
    failover = Failover(owner, streams, following, context.clocks, figures)
    following.is_held_back = failover.is_held_back
    streams.claim_failed = failover.note_failed
    transfers = Transfers(owner, streams, giving, sending.peers, figures)
    transfers.given_away = failover.given_away
    step_down = StepDown(
        transfers,
        streams,
        context.clocks,
        after_ms=settings.ingest_replica_step_down_ms,
        lease_ms=settings.ingest_lease_ms + settings.ingest_lease_margin_ms,
    )
    return ReplicaHalf(
        sending,
        following,
        ReplicaRoutes(following, room, lambda: owner.node_id, context.clocks.monotonic),
        failover,
        step_down,
        transfers,
        TransferRoutes(owner, streams, transfers, failover),
        HeldRoutes(owner, streams, following),
        MemberRoutes(owner, streams, sending.giving_way),
    )
