"""WAL objects: one object of object storage with the newest records of many leaderless streams."""

from collections.abc import Sequence
from enum import IntFlag
from typing import NamedTuple

from bottomless.model.names import StreamId, Uid


class WalFlags(IntFlag):
    """Flags in the header of a WAL object."""

    NONE = 0
    SYNC = 1
    """Answers waited until the notes of what they speak of were durable."""


class WalHeader(NamedTuple):
    """The first 128 bytes of a WAL object. Fields stand in wire order; sizes are in bytes."""

    flags: WalFlags
    instance: Uid
    """The run of a writer that put the object."""
    sequence: int
    """Number of the object among those of its instance."""
    noted_below: int
    """Every object of the instance with a lower sequence is settled, and its notes are in this
    object or in one that was durable when this one was sealed."""
    created_at: int
    """Milliseconds since 1970, by the writer's clock."""
    data_position: int
    """Byte at which the first piece begins."""
    data_size: int
    """Bytes of all pieces."""
    generation: int
    """The store's generation in which the instance writes."""
    piece_count: int
    note_count: int
    directory_crc: int
    """CRC-32C of all piece lines."""
    notes_crc: int
    """CRC-32C of all notes."""
    data_crc: int
    """CRC-32C of all pieces."""
    attempt: int
    """The attempt in the instance's record when this was sealed, as far as the writer knew: a
    coordination that shows a lower one has gone back."""

    @property
    def size(self) -> int:
        """Bytes of the whole object."""
        return self.data_position + self.data_size


class PieceLine(NamedTuple):
    """One line of the directory: where a piece lies, and what is in it."""

    stream_id: StreamId
    position: int
    """Byte of the object at which the piece begins."""
    size: int
    """Bytes of the piece."""
    record_count: int
    chunk_count: int
    crc: int
    """CRC-32C of the piece."""
    append_count: int


class Note(NamedTuple):
    """What a writer committed: adjacent pieces of one of its earlier objects, and their place."""

    sequence: int
    """The object of the same instance that holds the pieces."""
    first_piece: int
    """Number of the first piece in that object's directory, from 0."""
    piece_count: int
    first_offset: int
    timestamp: int
    """Commit time in ms since 1970."""
    epoch: int
    """The epoch of the stream's tail at the commit."""
    number: int
    """The number of the commit among those of its stream."""


class Piece(NamedTuple):
    """Whole chunks of one stream that are accepted or refused together, before they have a place."""

    stream_id: StreamId
    parts: Sequence[bytes | memoryview]
    """The bytes of its unplaced chunks, one after the other."""
    record_count: int
    chunk_count: int
    append_count: int
