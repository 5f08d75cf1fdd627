"""Tracking chunks: what a stream remembers about its producers, as a chunk without records.

Each segment starts with one that says everything, so that a log can be cut off at any segment and
the rest still tells repeats from new appends. A change without an append, such as a raised epoch,
is a small tracking chunk in between. A reader that applies them in order, each entry replacing what
it names, ends with the same state wherever it begins.

On the record's path: beside it; made by services/bottomless_server/core/tracking/tracking.py.
Byte tables: docs/formats.md, "Tracking entry".
"""

import struct
from collections.abc import Sequence
from typing import Final

from bottomless.formats.checks import check, crc32c, padded, padding
from bottomless.formats.chunk import HEADER_SIZE, encode_header
from bottomless.formats.parts import Parts, decode_parts, encode_parts
from bottomless.model.chunk import (
    AppendMode,
    ChunkFlags,
    ChunkHeader,
    ChunkKind,
    TrackedEntry,
    TrackedKind,
)
from bottomless.model.limits import OFFSET_MAX, TIMESTAMP_MAX, TIMESTAMP_MIN

_ENTRY = struct.Struct(
    "<"
    "H"  # entry_size, padding included
    "B"  # kind
    "B"  # mode
    "B"  # present
    "3x"  # reserved
    "Q"  # first_offset
    "q"  # timestamp
    "I"  # record_count
    "I"  # body_crc
    "Q"  # sequence
    "Q"  # epoch_sequence
    "Q"  # producer_epoch
)
ENTRY_SIZE_MIN: Final = _ENTRY.size
assert ENTRY_SIZE_MIN == 56  # docs/formats.md, "Tracking entry"


def seal_tracking(
    entries: Sequence[TrackedEntry],
    *,
    first_offset: int,
    timestamp: int,
    epoch: int,
    flags: ChunkFlags = ChunkFlags.NONE,
) -> list[bytes | memoryview]:
    """Make a tracking chunk; returns its parts for one gathered write.

    `first_offset` is the next offset of the stream, since the chunk uses none; `timestamp` is in ms
    since 1970.

    Raises:
        Corrupt: no reader would accept one of the entries, or the chunk.
    """
    trailer = encode_tracking(entries)
    end = padding(len(trailer))
    header = ChunkHeader(
        kind=ChunkKind.TRACKING,
        flags=flags,
        total_size=HEADER_SIZE + len(trailer) + len(end),
        record_count=0,
        first_offset=first_offset,
        timestamp=timestamp,
        epoch=epoch,
        batch_count=0,
        filter_size=0,
        batches_size=0,
        trailer_size=len(trailer),
        body_crc=crc32c(end, crc32c(trailer)),
    )
    return [encode_header(header), trailer, end]


def encode_tracking(entries: Sequence[TrackedEntry]) -> bytes:
    """Encode entries one after the other, as they stand in the trailer of a tracking chunk.

    Raises:
        Corrupt: no reader would accept one of the entries.
    """
    return b"".join(_encode_entry(entry) for entry in entries)


def decode_tracking(data: bytes | memoryview) -> list[TrackedEntry]:
    """Read the entries in the trailer of a tracking chunk.

    Raises:
        Corrupt: the entries do not fill it exactly, or one is malformed.
    """
    view, entries, position = memoryview(data), [], 0
    while position < len(view):
        entry, size = _decode_entry(view[position:])
        entries.append(entry)
        position += size
    return entries


def _encode_entry(entry: TrackedEntry) -> bytes:
    _check_entry(entry)
    present, tail = encode_parts(
        Parts(entry.producer_id, entry.idempotency_hash, entry.principal_hash, entry.body_hash)
    )
    size = padded(ENTRY_SIZE_MIN + len(tail))
    fixed = _ENTRY.pack(
        size,
        entry.kind,
        entry.mode,
        present,
        entry.first_offset,
        entry.timestamp,
        entry.record_count,
        entry.body_crc,
        entry.sequence,
        entry.epoch_sequence,
        entry.producer_epoch,
    )
    return (fixed + tail).ljust(size, b"\0")


def _decode_entry(view: memoryview) -> tuple[TrackedEntry, int]:
    what = "tracking entry"
    check(what, len(view) >= ENTRY_SIZE_MIN, "it is cut short")
    size, kind, mode, present, first_offset, timestamp, count, crc, *numbers = _ENTRY.unpack(
        view[:ENTRY_SIZE_MIN]
    )
    sequence, epoch_sequence, epoch = numbers
    check(what, ENTRY_SIZE_MIN <= size <= len(view) and size % 8 == 0, f"its size is {size}")
    check(what, kind in TrackedKind.__members__.values(), f"kind {kind} is not known")
    check(what, mode in AppendMode.__members__.values(), f"mode {mode} is not known")
    parts = decode_parts(what, present, bytes(view[ENTRY_SIZE_MIN:size]))
    entry = TrackedEntry(
        TrackedKind(kind),
        AppendMode(mode),
        first_offset,
        timestamp,
        count,
        crc,
        sequence,
        epoch_sequence,
        epoch,
        *parts,
    )
    _check_entry(entry)
    return entry, size


def _check_entry(entry: TrackedEntry) -> None:
    what = "tracking entry"
    named = entry.kind in (TrackedKind.PRODUCER, TrackedKind.FORGOTTEN)
    check(what, named == (entry.producer_id is not None), "it names no producer, or one too many")
    keyed = entry.kind is TrackedKind.KEY
    check(what, keyed == (entry.idempotency_hash is not None), "it has no key, or one too many")
    check(what, entry.first_offset <= OFFSET_MAX, f"first_offset={entry.first_offset}")
    check(what, TIMESTAMP_MIN <= entry.timestamp <= TIMESTAMP_MAX, f"timestamp={entry.timestamp}")
