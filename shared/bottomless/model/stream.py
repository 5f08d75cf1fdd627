"""The one record that coordination keeps of each stream.

A claim, a fence, a publish and a deletion all change this record, so that under
one WATCH they exclude each other. Its invariants are checked by `check_record`.
"""

from dataclasses import dataclass
from enum import StrEnum

from bottomless.model.config import StreamConfig
from bottomless.model.names import NodeId, StreamId, StreamName, Uid


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
    """Of the newest owner; 0 before the first."""
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
    """Of the newest published chunk; a new owner starts from it."""
    uploader: str | None = None
    """Session of the uploader whose intents are live."""
    intents: tuple[Intent, ...] = ()
    quarantine: tuple[Intent, ...] = ()
    """Given up: these uids can never be registered; their keys are deleted, twice."""


def epoch_at(record: StreamRecord, offset: int) -> int | None:
    """The epoch whose owner was to write `offset`, None below what is remembered."""
    found = None
    for start in record.epochs:
        if start.first_offset <= offset:
            found = start.epoch
    return found


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
