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
    producer_epoch: int = 0
    producer_id: str | None = None
    idempotency_hash: bytes | None = None
    """16 bytes."""
    principal_hash: bytes | None = None
    """16 bytes."""


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
