"""Chunks: records written together, the unit of durability and of the index."""

from enum import IntEnum, IntFlag
from typing import NamedTuple


class ChunkKind(IntEnum):
    DATA = 1
    TRACKING = 2
    """A snapshot of producer state; holds no record and uses no offset."""
    HOLE = 3
    """Erased: same size and offsets as the data chunk it replaces."""


class ChunkFlags(IntFlag):
    NONE = 0
    MORE_FOLLOWS = 1
    """The append goes on in the next chunk; it becomes visible with its last one."""


class ChunkHeader(NamedTuple):
    """The first 64 bytes of a chunk. Fields stand in wire order.

    Offset, timestamp and epoch stand here and nowhere else in the chunk, so the
    body is final before it is known where the chunk goes.
    """

    kind: ChunkKind
    flags: ChunkFlags
    total_size: int
    """Bytes of the whole chunk, padding included; a multiple of 8."""
    record_count: int
    first_offset: int
    timestamp: int
    """Commit time in ms since 1970, never less than that of the chunk before."""
    epoch: int
    batch_count: int
    filter_size: int
    batches_size: int
    trailer_size: int
    body_crc: int
    """CRC-32C of everything after the header, padding included."""

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.record_count


class AppendMode(IntEnum):
    """How an append is told from its repeat (api.md, section 4)."""

    PLAIN = 1
    STRICT = 2
    HIGHWATER = 3
    TRANSACTION = 4
    KEY = 5


class AppendEntry(NamedTuple):
    """What a chunk's trailer says of one append, or of the part of it in this chunk."""

    mode: AppendMode
    first_record: int
    """Index within the chunk."""
    record_count: int
    body_crc: int
    """CRC-32C of the request body as it was taken, so that an exact repeat is recognised."""
    base_sequence: int = 0
    """The producer's number of the first record; with HIGHWATER of the last record of the append,
    with TRANSACTION of the append."""
    producer_epoch: int = 0
    producer_id: str | None = None
    idempotency_hash: bytes | None = None
    """16 bytes."""
    principal_hash: bytes | None = None
    """16 bytes."""
    body_hash: bytes | None = None
    """16 bytes of a stronger hash of the body, where a key is bound to it."""


class TrackedKind(IntEnum):
    """What an entry of a tracking chunk is about."""

    PRODUCER = 1
    """All that is known of a producer, in place of what was; its appends follow."""
    APPEND = 2
    """A remembered append of the producer named last."""
    KEY = 3
    """An append with an idempotency key."""
    FORGOTTEN = 4
    """A producer that is not known any more."""


class TrackedEntry(NamedTuple):
    """One entry of a tracking chunk. What a kind does not use is 0."""

    kind: TrackedKind
    mode: AppendMode
    """PLAIN for a producer that has not written yet."""
    first_offset: int
    """For an append or a key: where its records are."""
    timestamp: int
    """Commit time of the append; of a producer's last change."""
    record_count: int
    body_crc: int
    sequence: int
    """For a producer its last number; for an append its first, or the one that stands for it."""
    epoch_sequence: int
    """For a producer: the number with which its epoch began."""
    producer_epoch: int
    producer_id: str | None = None
    idempotency_hash: bytes | None = None
    principal_hash: bytes | None = None
    body_hash: bytes | None = None


class ChunkPlace(NamedTuple):
    """Where a chunk lies: one record of an index, local or in a fragment. Fields in wire order."""

    first_offset: int
    timestamp: int
    position: int
    """Byte of the segment, or of the fragment object, at which the chunk starts."""
    epoch: int
    size: int
    record_count: int

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.record_count
