"""Chunks: records written together, the unit of durability and of the index."""

from enum import IntEnum, IntFlag
from typing import NamedTuple


class ChunkKind(IntEnum):
    """What a chunk is: records, a snapshot of producers, or an erased chunk."""

    DATA = 1
    TRACKING = 2
    """A snapshot of producer state; holds no record and uses no offset."""
    HOLE = 3
    """An erased data chunk: it has the same size and offsets as the chunk that it replaces."""


class ChunkFlags(IntFlag):
    """Flags in a chunk's header."""

    NONE = 0
    MORE_FOLLOWS = 1
    """The append goes on in the next chunk; it becomes visible with its last one."""


class ChunkHeader(NamedTuple):
    """The first 64 bytes of a chunk. Fields stand in wire order; sizes are in bytes.

    Offset, timestamp and epoch stand here and nowhere else in the chunk, so the body is final
    before it is known where the chunk goes.
    """

    kind: ChunkKind
    flags: ChunkFlags
    total_size: int
    """Bytes of the whole chunk, padding included; a multiple of 8."""
    record_count: int
    first_offset: int
    timestamp: int
    """Commit time in ms since 1970, never less than that of the chunk before it."""
    epoch: int
    batch_count: int
    filter_size: int
    batches_size: int
    trailer_size: int
    body_crc: int
    """CRC-32C of everything after the header, padding included."""

    @property
    def next_offset(self) -> int:
        """The offset after the last record of the chunk (exclusive end)."""
        return self.first_offset + self.record_count


class AppendMode(IntEnum):
    """How an append is told from a repeat of itself (docs/appending.md)."""

    PLAIN = 1
    STRICT = 2
    HIGHWATER = 3
    TRANSACTION = 4
    KEY = 5


class AppendEntry(NamedTuple):
    """What a chunk's trailer says of one append, or of the part of it in this chunk."""

    mode: AppendMode
    first_record: int
    """Index of its first record within the chunk, from 0."""
    record_count: int
    body_crc: int
    """CRC-32C of the request body as it was received, so that an exact repeat is recognised."""
    base_sequence: int = 0
    """The producer's number for the first record; in HIGHWATER mode for the last record of the
    append, in TRANSACTION mode for the append as a whole.
    """
    producer_epoch: int = 0
    producer_id: str | None = None
    idempotency_hash: bytes | None = None
    """16 bytes, or None for an append without an idempotency key."""
    principal_hash: bytes | None = None
    """16 bytes, or None."""
    body_hash: bytes | None = None
    """16 bytes of a stronger hash of the body, where an idempotency key is bound to it; else None.
    """


class TrackedKind(IntEnum):
    """What an entry of a tracking chunk is about."""

    PRODUCER = 1
    """All that is known about a producer, replacing what was known before; its appends follow."""
    APPEND = 2
    """A remembered append of the producer named last."""
    KEY = 3
    """An append with an idempotency key."""
    FORGOTTEN = 4
    """A producer that is no longer known."""


class TrackedEntry(NamedTuple):
    """One entry of a tracking chunk. A number that its kind does not use is 0."""

    kind: TrackedKind
    mode: AppendMode
    """PLAIN for a producer that has not written yet."""
    first_offset: int
    """Where the records of an append or a key are."""
    timestamp: int
    """Commit time of the append, or of a producer's last change, in ms since 1970."""
    record_count: int
    body_crc: int
    sequence: int
    """Last number of a producer; first number of an append, or the one that stands for it."""
    epoch_sequence: int
    """Number with which the epoch of a producer began."""
    producer_epoch: int
    producer_id: str | None = None
    idempotency_hash: bytes | None = None
    principal_hash: bytes | None = None
    body_hash: bytes | None = None


class ChunkPlace(NamedTuple):
    """Where a chunk lies: one record of an index, local or in a fragment.

    Fields stand in wire order.
    """

    first_offset: int
    timestamp: int
    position: int
    """Byte of the segment, or of the fragment object, at which the chunk starts."""
    epoch: int
    size: int
    record_count: int

    @property
    def next_offset(self) -> int:
        """The offset after the last record of the chunk (exclusive end)."""
        return self.first_offset + self.record_count
