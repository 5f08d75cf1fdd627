"""The one record that coordination keeps of each stream.

A claim, a fence, a publish and a deletion all change this record, so that under
one WATCH they exclude each other. Its invariants are checked by `check_record`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bottomless.model.config import StreamConfig
from bottomless.model.names import FullName, NodeId, StreamId, StreamName, Uid

_GENERATION_SHIFT: Final = 40
"""An epoch's upper bits are its generation: docs/decisions/0005."""
LEASE_COUNT_MAX: Final = 64
"""Live leases of one stream; they stand in the record, which every change rewrites."""
LEASE_HOLDER_SIZE_MAX: Final = 255
NOBODY: Final = NodeId("0" * 32)
"""The home of a stream that nobody may claim: no data directory has this id."""


class StreamState(StrEnum):
    ACTIVE = "active"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class RootPointer:
    """Which root object is the stream's manifest."""

    uid: Uid
    generation: int
    epoch: int
    version: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Intent:
    """A fragment that somebody was allowed to put: its key may exist from now on."""

    uid: Uid
    first_offset: int
    session: str
    """The run of the uploader that asked for it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A range that somebody still reads: nothing at or above its start is deleted meanwhile."""

    lease_id: str
    first_offset: int
    next_offset: int
    expires_at: int
    """Milliseconds since 1970."""
    holder: str
    """What whoever took it calls itself."""


@dataclass(frozen=True, slots=True)
class EpochStart:
    """From `first_offset` on, records are of `epoch`, until the next start."""

    epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """All bounds are exclusive next-offsets."""

    stream_id: StreamId
    name: StreamName
    tenant: str
    state: StreamState
    created_at: int
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
    """What the last successful EXEC made part of the manifest."""
    last_timestamp: int = 0
    """The timestamp of the newest published chunk; a new owner starts from it."""
    uploader: str | None = None
    """Session of the uploader whose intents are live."""
    intents: tuple[Intent, ...] = ()
    quarantine: tuple[Intent, ...] = ()
    """Given up: these uids can never be registered; their keys are deleted, twice."""
    condemned_next: int = 0
    """Everything below may be deleted at any time; never above the floor, never goes back."""
    leases: tuple[Lease, ...] = ()
    """Leases of ranges. Those that ran out are dropped whenever the record is written with new ones."""
    registry_version: int = 1
    """Number of the newest registry object."""

    @property
    def full_name(self) -> FullName:
        return FullName(self.tenant, self.name)


def epoch_at(record: StreamRecord, offset: int) -> int | None:
    """The epoch whose owner was to write `offset`, None below what is remembered."""
    found = None
    for start in record.epochs:
        if start.first_offset <= offset:
            found = start.epoch
    return found


def unknown_epoch(generation: int) -> int:
    """What a rebuild writes for the epochs that were lost: above all of them, and no owner's."""
    return generation << _GENERATION_SHIFT


def is_unknown_epoch(epoch: int) -> bool:
    return epoch > 0 and epoch % (1 << _GENERATION_SHIFT) == 0


def gap_due(record: StreamRecord) -> int | None:
    """Where the gap ends that a takeover still has to publish; None where none is due.

    A takeover fences first: the epoch is raised and the home becomes nobody, while the stream
    stays dirty, so that no release lets anybody claim it. A rebuild writes nobody too, of a
    stream whose manifest is lost, but under the epoch that is no owner's.
    """
    fenced = record.home == NOBODY and record.dirty and record.state is StreamState.ACTIVE
    return record.reserved_next if fenced and not is_unknown_epoch(record.epoch) else None


def live_leases(record: StreamRecord, now: int) -> tuple[Lease, ...]:
    """The leases that still hold something at `now`."""
    return tuple(lease for lease in record.leases if lease.expires_at > now)


def held_from(record: StreamRecord, now: int) -> int | None:
    """The offset from which on live leases hold everything; None if none is live."""
    return min((lease.first_offset for lease in live_leases(record, now)), default=None)


def check_record(record: StreamRecord) -> None:
    """Assert what must hold of every record ever written."""
    assert record.published_next <= record.reserved_next or record.reserved_next == 0
    assert all(a.epoch < b.epoch for a, b in zip(record.epochs, record.epochs[1:], strict=False))
    assert all(
        a.first_offset <= b.first_offset
        for a, b in zip(record.epochs, record.epochs[1:], strict=False)
    )
    live = [intent.uid for intent in (*record.intents, *record.quarantine)]
    assert len(live) == len(set(live))
    assert record.root is None or record.root.version <= record.version
    assert record.condemned_next <= record.published_next
    assert len(record.leases) <= LEASE_COUNT_MAX
    assert len({lease.lease_id for lease in record.leases}) == len(record.leases)
    assert all(lease.first_offset <= lease.next_offset for lease in record.leases)
    assert all(len(lease.holder) <= LEASE_HOLDER_SIZE_MAX for lease in record.leases)
