"""Chunks: the bytes between producer and object, the same in a segment and in a fragment.

    | header 64 | filter | batch frames ... | trailer: one entry per append | pad |
                |<------------------- body, under body_crc ------------------->|

Why is the offset in the header alone? The body is final, and its checksum known,
before anybody knows where the chunk goes; only 64 bytes change when it is placed.

On the record's path: after services/bottomless_server/ingest/log/core/batcher.py,
before services/bottomless_server/ingest/local/appender.py. Byte tables: docs/formats.md, "Chunk".
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bottomless.formats.batch import decode_frame_header
from bottomless.formats.checks import (
    VERSION,
    check,
    check_magic,
    corrupt,
    crc32c,
    magic,
    padded,
    padding,
)
from bottomless.formats.parts import Parts, decode_parts, encode_parts
from bottomless.model.chunk import AppendEntry, AppendMode, ChunkFlags, ChunkHeader, ChunkKind
from bottomless.model.limits import (
    CHUNK_BATCH_COUNT_MAX,
    CHUNK_RECORD_COUNT_MAX,
    CHUNK_SIZE_MAX,
    OFFSET_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
)

MAGIC: Final = magic("BLch")

_HEADER = struct.Struct(
    "<"
    "I"  # magic
    "B"  # version
    "B"  # kind
    "H"  # flags
    "I"  # total_size
    "I"  # record_count
    "Q"  # first_offset
    "q"  # timestamp
    "Q"  # epoch
    "I"  # batch_count
    "I"  # filter_size
    "I"  # batches_size
    "I"  # trailer_size
    "I"  # body_crc
    "I"  # header_crc, of the 60 bytes before
)
HEADER_SIZE: Final = _HEADER.size
assert HEADER_SIZE == 64  # docs/formats.md, "Chunk"

_ENTRY = struct.Struct(
    "<"
    "H"  # entry_size, padding included
    "B"  # mode
    "B"  # present
    "I"  # first_record
    "I"  # record_count
    "I"  # body_crc
    "Q"  # base_sequence
    "Q"  # producer_epoch
)
ENTRY_SIZE_MIN: Final = _ENTRY.size
assert ENTRY_SIZE_MIN == 32  # docs/formats.md, "Trailer entry"


class ChunkHead(NamedTuple):
    """The header of a chunk, and the HEADER_SIZE bytes that say so."""

    header: ChunkHeader
    raw: bytes


def encode_header(header: ChunkHeader) -> bytes:
    """Encode the header of a chunk: HEADER_SIZE bytes.

    Raises:
        Corrupt: no reader would accept the header.
    """
    _check_header(header)
    fields = _HEADER.pack(MAGIC, VERSION, *header, 0)[:-4]
    return fields + crc32c(fields).to_bytes(4, "little")


def decode_header(data: bytes | memoryview, position: int = 0) -> ChunkHeader:
    """Read the chunk header at byte `position` and check it; the body is not looked at.

    Raises:
        Corrupt: it is too short, has a wrong checksum, or has fields that no writer can have
            written.
    """
    raw = memoryview(data)[position : position + HEADER_SIZE]
    check("chunk header", len(raw) == HEADER_SIZE, f"{len(raw)} bytes, not {HEADER_SIZE}")
    found, version, kind, flags, *fields, crc = _HEADER.unpack(raw)
    check_magic("chunk header", found, MAGIC, version)
    check("chunk header", crc == crc32c(raw[:-4]), "its checksum does not match")
    if kind not in ChunkKind.__members__.values():
        raise corrupt("chunk header", f"kind {kind} is not known")
    header = ChunkHeader(ChunkKind(kind), ChunkFlags(flags), *fields)
    _check_header(header)
    return header


def _check_header(header: ChunkHeader) -> None:
    # On the way out and on the way in: a bad header must not reach a disk,
    # where it would outlive the bug that wrote it.
    what = "chunk header"
    body_size = header.filter_size + header.batches_size + header.trailer_size
    # A flag changes what the chunk means, so one that is not known is not skipped.
    check(what, header.flags <= ChunkFlags.MORE_FOLLOWS, f"flags {int(header.flags):#x}")
    check(what, header.total_size <= CHUNK_SIZE_MAX, f"total_size={header.total_size}")
    check(what, header.record_count <= CHUNK_RECORD_COUNT_MAX, f"records={header.record_count}")
    check(what, header.next_offset <= OFFSET_MAX + 1, f"first_offset={header.first_offset}")
    check(what, TIMESTAMP_MIN <= header.timestamp <= TIMESTAMP_MAX, f"timestamp={header.timestamp}")
    if header.kind is not ChunkKind.HOLE:
        check(what, header.total_size == padded(HEADER_SIZE + body_size), "its sizes do not add up")
    check(what, header.batch_count <= CHUNK_BATCH_COUNT_MAX, f"batches={header.batch_count}")
    check(what, header.total_size % 8 == 0 and header.total_size >= HEADER_SIZE, "its size is odd")
    # Frames are viewed in place, so every part before them keeps the alignment.
    check(
        what, header.filter_size % 8 == 0 and header.batches_size % 8 == 0, "a part is not padded"
    )
    if header.kind is ChunkKind.DATA:
        filled = header.record_count > 0 and header.batch_count > 0 and header.batches_size > 0
        check(what, filled, "it holds no record")
    if header.kind is ChunkKind.TRACKING:
        check(what, header.record_count == 0, "a tracking chunk holds records")


def seal_chunk(
    frames: Sequence[bytes | memoryview],
    entries: Sequence[AppendEntry],
    *,
    record_count: int,
    first_offset: int,
    timestamp: int,
    epoch: int,
    flags: ChunkFlags = ChunkFlags.NONE,
) -> list[bytes | memoryview]:
    """Make a data chunk of whole batch frames; returns its parts for one gathered write.

    A frame comes in one buffer or in several; it begins with one, and its header stands whole in
    it. They are passed through without a copy: their bytes on disk are those that were given, and
    each frame must be padded to 8 already. `timestamp` is in ms since 1970.

    Raises:
        Corrupt: a frame has no valid header, or no reader would accept the chunk.
    """
    # Readers count through frames to find a record, so a miscount would misplace all after it.
    batch_count, framed_count = _count_frames(frames)
    assert record_count == framed_count
    trailer = encode_trailer(entries)
    batches_size = sum(len(frame) for frame in frames)
    end = padding(len(trailer))
    body_crc = 0
    for part in (*frames, trailer, end):
        body_crc = crc32c(part, body_crc)
    header = ChunkHeader(
        kind=ChunkKind.DATA,
        flags=flags,
        total_size=HEADER_SIZE + batches_size + len(trailer) + len(end),
        record_count=record_count,
        first_offset=first_offset,
        timestamp=timestamp,
        epoch=epoch,
        batch_count=batch_count,
        filter_size=0,
        batches_size=batches_size,
        trailer_size=len(trailer),
        body_crc=body_crc,
    )
    return [encode_header(header), *frames, trailer, end]


def _count_frames(frames: Sequence[bytes | memoryview]) -> tuple[int, int]:
    """How many frames these buffers are, and how many records they hold."""
    batch_count = record_count = missing = 0
    for part in frames:
        if not missing:
            header = decode_frame_header(part)
            batch_count, record_count = batch_count + 1, record_count + header.record_count
            missing = header.frame_size
        missing -= len(part)
        assert missing >= 0, "a frame ends within a buffer"
    assert not missing, "a frame is cut short"
    return batch_count, record_count


def verify_body(header: ChunkHeader, chunk: bytes | memoryview) -> None:
    """Check a whole chunk against the checksum in its header. A hole's body is not checked.

    Raises:
        Corrupt: it does not match, or `chunk` is not the whole chunk.
    """
    body = memoryview(chunk)[HEADER_SIZE : header.total_size]
    check("chunk", len(body) == header.total_size - HEADER_SIZE, "it is cut short")
    if header.kind is not ChunkKind.HOLE:
        check("chunk", crc32c(body) == header.body_crc, "the checksum of its body does not match")


def split_chunks(data: bytes | memoryview) -> Iterator[tuple[ChunkHeader, memoryview]]:
    """Walk through whole chunks, verifying each; yields the header and all bytes of the chunk.

    Raises:
        Corrupt: at the first chunk that is damaged or cut short.
    """
    view = memoryview(data)
    position = 0
    while position < len(view):
        header = decode_header(view, position)
        chunk = view[position : position + header.total_size]
        verify_body(header, chunk)
        yield header, chunk
        position += header.total_size


def batches_of(header: ChunkHeader, chunk: memoryview) -> memoryview:
    """Get the batch frames of a whole chunk, one after the other, without a copy."""
    start = HEADER_SIZE + header.filter_size
    return chunk[start : start + header.batches_size]


def trailer_of(header: ChunkHeader, chunk: memoryview) -> memoryview:
    """Get the trailer of a whole chunk, without its padding and without a copy."""
    start = HEADER_SIZE + header.filter_size + header.batches_size
    return chunk[start : start + header.trailer_size]


def encode_trailer(entries: Sequence[AppendEntry]) -> bytes:
    """Encode the append entries of a chunk, without the padding that ends the chunk.

    Raises:
        Corrupt: no reader would accept one of the entries.
    """
    return b"".join(_encode_entry(entry) for entry in entries)


def _encode_entry(entry: AppendEntry) -> bytes:
    present, tail = encode_parts(
        Parts(entry.producer_id, entry.idempotency_hash, entry.principal_hash, entry.body_hash)
    )
    size = padded(ENTRY_SIZE_MIN + len(tail))
    fixed = _ENTRY.pack(
        size,
        entry.mode,
        present,
        entry.first_record,
        entry.record_count,
        entry.body_crc,
        entry.base_sequence,
        entry.producer_epoch,
    )
    return (fixed + tail).ljust(size, b"\0")


def decode_trailer(data: bytes | memoryview) -> list[AppendEntry]:
    """Read the append entries of a chunk.

    Raises:
        Corrupt: the entries do not fill the trailer exactly, or one is malformed.
    """
    view, entries, position = memoryview(data), [], 0
    while position < len(view):
        entry, size = _decode_entry(view[position:])
        entries.append(entry)
        position += size
    return entries


def _decode_entry(view: memoryview) -> tuple[AppendEntry, int]:
    what = "trailer entry"
    check(what, len(view) >= ENTRY_SIZE_MIN, "it is cut short")
    size, mode, present, first, count, crc, sequence, epoch = _ENTRY.unpack(view[:ENTRY_SIZE_MIN])
    check(what, ENTRY_SIZE_MIN <= size <= len(view) and size % 8 == 0, f"its size is {size}")
    check(what, mode in AppendMode.__members__.values(), f"mode {mode} is not known")
    parts = decode_parts(what, present, bytes(view[ENTRY_SIZE_MIN:size]))
    entry = AppendEntry(AppendMode(mode), first, count, crc, sequence, epoch, *parts)
    return entry, size
