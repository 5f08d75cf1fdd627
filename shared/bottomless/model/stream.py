"""The one record that coordination keeps of each stream.

A claim, a fence, a publish and a deletion all change this record, so that under
one WATCH they exclude each other. Its invariants are checked by `check_record`.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from bottomless.guards import guard
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.drive import DEFAULT_NUMBER, NUMBER_MAX
from bottomless.model.limits import REPLICA_COUNT_MAX
from bottomless.model.names import FullName, NodeId, StreamId, StreamName, SuperId, Uid
from bottomless.model.tiers import Move, Promotion, check_moves, check_promotions

_GENERATION_SHIFT: Final = 40
"""An epoch's upper bits are its generation: docs/decisions/0005."""
LEASE_COUNT_MAX: Final = 64
"""Live leases of one stream. They stand in its record, which every change rewrites."""
LEASE_HOLDER_SIZE_MAX: Final = 255
NOBODY: Final = NodeId("0" * 32)
"""The home of a stream that nobody may claim: no data directory has this id."""


class StreamState(StrEnum):
    """Whether a stream is in use or is being deleted."""

    ACTIVE = "active"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class RootPointer:
    """Names the root object that is the stream's manifest. `size` is in bytes, `crc` is CRC-32C."""

    uid: Uid
    generation: int
    epoch: int
    version: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Intent:
    """The permission to put one fragment: an object with its key may exist from now on."""

    uid: Uid
    first_offset: int
    session: str
    """The run of the uploader that asked for it."""
    drive: int = DEFAULT_NUMBER
    """The number of the drive on which the object is put."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A range that is still being read: while it lasts, nothing at or above its start is deleted."""

    lease_id: str
    first_offset: int
    next_offset: int
    expires_at: int
    """Milliseconds since 1970."""
    holder: str
    """The name that the holder of the lease gave itself."""


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The first offset of an epoch: records from there to the next start belong to it."""

    epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class PartitionOf:
    """Says of which super stream a stream is a partition, and which of its partitions."""

    super_id: SuperId
    index: int


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """What coordination holds about one stream. All bounds are exclusive next-offsets."""

    stream_id: StreamId
    name: StreamName
    tenant: str
    state: StreamState
    created_at: int
    """Milliseconds since 1970."""
    config: StreamConfig
    config_version: int = 1
    generation: int = 0
    version: int = 0
    """Grows with every publish, and whenever older attempts to publish must fail."""
    epoch: int = 0
    """The epoch of the newest owner; 0 before the first."""
    home: NodeId | None = None
    """The data directory that holds the tail."""
    owner_url: str | None = None
    """Internal address of the ingest node that claimed the newest epoch."""
    dirty: bool = False
    """Whether the home may hold records that object storage does not."""
    reserved_next: int = 0
    """No offset at or beyond it has ever been acknowledged."""
    epochs: tuple[EpochStart, ...] = ()
    """Newest last; those that ended below `published_next` are dropped."""
    root: RootPointer | None = None
    past_roots: tuple[Uid, ...] = ()
    """The last few roots, newest last: how a lost reply is recognised as success."""
    published_next: int = 0
    """The end of what the last successful EXEC made part of the manifest."""
    last_timestamp: int = 0
    """The timestamp of the newest published chunk, in ms since 1970; a new owner starts from it."""
    uploader: str | None = None
    """Session of the uploader whose intents are live."""
    intents: tuple[Intent, ...] = ()
    quarantine: tuple[Intent, ...] = ()
    """Intents that were given up: their uids can never be registered; their keys are deleted,
    twice.
    """
    condemned_next: int = 0
    """Everything below this offset may be deleted at any time. It is never above the floor and
    never goes back.
    """
    leases: tuple[Lease, ...] = ()
    """Leases of ranges. Expired ones are dropped whenever the record is written with new ones."""
    registry_version: int = 1
    """Number of the newest registry object."""
    partition_of: PartitionOf | None = None
    """It never changes; None of a stream that is no partition."""
    members: tuple[NodeId, ...] = ()
    """The nodes that hold the tail, where a stream has replicas; none of another stream."""
    in_sync: tuple[NodeId, ...] = ()
    """Members that have all that was acknowledged and is not published."""
    moves: tuple[Move, ...] = ()
    """Fragments that are on their way from one drive to another."""
    promoted: tuple[Promotion, ...] = ()
    """Offsets whose fragments the policy leaves where they are for a while."""
    drives: tuple[int, ...] = ()
    """The numbers of the drives beside drive 0 on which a fragment may ever have lain, rising. It only
    grows: see `with_its_drives`."""
    unseen: tuple[int, ...] = ()
    """The numbers of the drives that were away when the stream was rebuilt, rising: what lies there from
    `published_next` on nobody has looked at yet."""

    @property
    def is_replicated(self) -> bool:
        """Whether anything is said of replicas: in its configuration, or of nodes that hold it."""
        return bool(self.members) or self.config.replication != ReplicationConfig()

    @property
    def is_tiered(self) -> bool:
        """Whether anything is said of tiers: in its configuration, or of fragments that are, were or are
        to be on other drives."""
        return bool(self.config.tiers or self.moves or self.promoted or self.drives)

    @property
    def full_name(self) -> FullName:
        """The stream's tenant and name together."""
        return FullName(self.tenant, self.name)


def drives_under_way(record: StreamRecord) -> frozenset[int]:
    """The numbers of the drives beside drive 0 that moves, intents and what was given up name."""
    ends = {drive for move in record.moves for drive in (move.from_drive, move.to_drive)}
    intended = {intent.drive for intent in (*record.intents, *record.quarantine)}
    return frozenset(ends | intended) - {DEFAULT_NUMBER}


def with_its_drives(record: StreamRecord) -> StreamRecord:
    """A record that remembers the drives which it names, under the next registry version if it did not.

    So the record knows a drive before an object can be put there; whoever lets one be put has the
    registry object say it first.
    """
    drives = tuple(sorted({*record.drives, *drives_under_way(record)}))
    if drives == record.drives:
        return record
    return replace(record, drives=drives, registry_version=record.registry_version + 1)


def epoch_at(record: StreamRecord, offset: int) -> int | None:
    """Find the epoch whose owner was to write `offset`; None below what the record remembers."""
    found = None
    for start in record.epochs:
        if start.first_offset <= offset:
            found = start.epoch
    return found


def unknown_epoch(generation: int) -> int:
    """Make the epoch that a rebuild writes for lost ones: above all of them, never an owner's."""
    return generation << _GENERATION_SHIFT


def is_unknown_epoch(epoch: int) -> bool:
    """Tell whether an epoch is one that a rebuild wrote for lost ones, and so no owner's."""
    return epoch > 0 and epoch % (1 << _GENERATION_SHIFT) == 0


def gap_due(record: StreamRecord) -> int | None:
    """Tell where the gap ends (exclusive) that a takeover still has to publish; None if none is
    due.

    A takeover fences first: the epoch is raised and the home becomes nobody, while the stream stays
    dirty, so that no release lets anybody claim it. A rebuild also writes nobody as the home of a
    stream whose manifest is lost, but under an epoch that is no owner's.
    """
    fenced = record.home == NOBODY and record.dirty and record.state is StreamState.ACTIVE
    return record.reserved_next if fenced and not is_unknown_epoch(record.epoch) else None


def live_leases(record: StreamRecord, now: int) -> tuple[Lease, ...]:
    """List the leases that have not expired at `now`, in ms since 1970."""
    return tuple(lease for lease in record.leases if lease.expires_at > now)


@guard("leases before condemning")
def held_from(record: StreamRecord, now: int) -> int | None:
    """Find the lowest offset that live leases keep from deletion at `now` (ms); None if none is
    live.
    """
    return min((lease.first_offset for lease in live_leases(record, now)), default=None)


def check_record(record: StreamRecord) -> None:
    """Assert what must hold of every record ever written; a failure is a bug."""
    assert record.published_next <= record.reserved_next or record.reserved_next == 0
    assert all(a.epoch < b.epoch for a, b in zip(record.epochs, record.epochs[1:], strict=False))
    assert all(
        a.first_offset <= b.first_offset
        for a, b in zip(record.epochs, record.epochs[1:], strict=False)
    )
    if record.config.leaderless:
        # Nobody owns it, and nothing of it is on a disk.
        assert (record.home, record.owner_url, record.dirty) == (None, None, False)
        assert record.reserved_next == 0
        assert record.partition_of is None
        assert not record.members
    _check_members(record)
    _check_places(record)
    live = [intent.uid for intent in (*record.intents, *record.quarantine)]
    assert len(live) == len(set(live))
    assert record.root is None or record.root.version <= record.version
    assert record.condemned_next <= record.published_next
    assert len(record.leases) <= LEASE_COUNT_MAX
    assert len({lease.lease_id for lease in record.leases}) == len(record.leases)
    assert all(lease.first_offset <= lease.next_offset for lease in record.leases)
    assert all(len(lease.holder) <= LEASE_HOLDER_SIZE_MAX for lease in record.leases)


def _check_members(record: StreamRecord) -> None:
    members, in_sync = record.members, record.in_sync
    assert len(set(members)) == len(members) <= REPLICA_COUNT_MAX
    assert len(set(in_sync)) == len(in_sync)
    assert set(in_sync) <= set(members)
    if members and record.dirty and record.home not in (None, NOBODY):
        # A claim by any other node goes by this set alone.
        assert record.home in in_sync


def _check_places(record: StreamRecord) -> None:
    check_moves(record.moves)
    check_promotions(record.promoted)
    assert all(move.next_offset <= record.published_next for move in record.moves)
    assert all(0 <= one.drive <= NUMBER_MAX for one in (*record.intents, *record.quarantine))
    assert all(DEFAULT_NUMBER < one <= NUMBER_MAX for one in record.drives)
    assert list(record.drives) == sorted(set(record.drives))
    # What a deletion sweeps and a rebuild looks through: nothing may lie elsewhere.
    assert drives_under_way(record) <= set(record.drives)
    assert list(record.unseen) == sorted(set(record.unseen))
    assert set(record.unseen) <= set(record.drives)
