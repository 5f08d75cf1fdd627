"""Segments: local files of chunks, each with an index file, and one checkpoint per stream.

    NNN.segment     | header 64 | chunk | chunk | ...
    NNN.index       | header 64 | record 48 | record 48 | ...
    checkpoint      | 96 bytes, replaced as a whole |

Index records are appended without a sync: they can be rebuilt from the chunks, and
are believed only below the synced position of the checkpoint, each with its checksum.

On the record's path: written by services/bottomless_server/ingest/log/segments.py.
Byte tables: docs/formats.md, "Segment".
"""

import struct
from typing import Final

import numpy as np

from bottomless.formats.checks import VERSION, check, check_magic, crc32c, magic
from bottomless.model.chunk import ChunkPlace
from bottomless.model.limits import CHUNK_RECORD_COUNT_MAX, CHUNK_SIZE_MAX, OFFSET_MAX
from bottomless.model.names import stream_id_bytes, stream_id_from_bytes
from bottomless.model.segment import Checkpoint, SegmentHeader

SEGMENT_MAGIC: Final = magic("BLsg")
INDEX_MAGIC: Final = magic("BLix")
CHECKPOINT_MAGIC: Final = magic("BLcp")

_HEADER = struct.Struct(
    "<"
    "I"  # magic
    "B"  # version
    "3x"  # reserved
    "16s"  # stream_id
    "Q"  # first_offset
    "Q"  # epoch
    "20x"  # reserved
    "I"  # header_crc, of the 60 bytes before
)
HEADER_SIZE: Final = _HEADER.size
assert HEADER_SIZE == 64  # docs/formats.md, "Segment"

_RECORD = struct.Struct(
    "<"
    "Q"  # first_offset
    "q"  # timestamp
    "Q"  # position
    "Q"  # epoch
    "I"  # size
    "I"  # record_count
    "I"  # reserved
    "I"  # record_crc, of the 44 bytes before
)
INDEX_RECORD_SIZE: Final = _RECORD.size
assert INDEX_RECORD_SIZE == 48  # docs/formats.md, "Index record"

INDEX_RECORD_DTYPE: Final = np.dtype(
    [
        ("first_offset", "<u8"),
        ("timestamp", "<i8"),
        ("position", "<u8"),
        ("epoch", "<u8"),
        ("size", "<u4"),
        ("record_count", "<u4"),
        ("reserved", "<u4"),
        ("record_crc", "<u4"),
    ]
)
assert INDEX_RECORD_DTYPE.itemsize == INDEX_RECORD_SIZE

_CHECKPOINT = struct.Struct(
    "<"
    "I"  # magic
    "B"  # version
    "3x"  # reserved
    "16s"  # stream_id
    "Q"  # segment_first_offset
    "Q"  # synced_position
    "Q"  # synced_next
    "q"  # last_timestamp
    "Q"  # epoch
    "Q"  # manifest_version, the highest seen
    "Q"  # published_next
    "Q"  # reserved_next
    "4x"  # reserved
    "I"  # crc, of the 92 bytes before
)
CHECKPOINT_SIZE: Final = _CHECKPOINT.size
assert CHECKPOINT_SIZE == 96  # docs/formats.md, "Checkpoint"


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Encode the start of a segment: HEADER_SIZE bytes.

    Raises:
        Corrupt: no reader would accept the header.
    """
    return _encode_header(SEGMENT_MAGIC, header)


def decode_segment_header(data: bytes | memoryview) -> SegmentHeader:
    """Read the start of a segment.

    Raises:
        Corrupt: these are not the first bytes of a segment.
    """
    return _decode_header("segment header", SEGMENT_MAGIC, data)


def encode_index_header(header: SegmentHeader) -> bytes:
    """Encode the start of an index file: HEADER_SIZE bytes.

    Raises:
        Corrupt: no reader would accept the header.
    """
    return _encode_header(INDEX_MAGIC, header)


def decode_index_header(data: bytes | memoryview) -> SegmentHeader:
    """Read the start of an index file.

    Raises:
        Corrupt: these are not the first bytes of an index file.
    """
    return _decode_header("index header", INDEX_MAGIC, data)


def _encode_header(wanted: int, header: SegmentHeader) -> bytes:
    _check_header("segment header", header)
    raw = _HEADER.pack(
        wanted, VERSION, stream_id_bytes(header.stream_id), header.first_offset, header.epoch, 0
    )
    return raw[:-4] + crc32c(raw[:-4]).to_bytes(4, "little")


def _decode_header(what: str, wanted: int, data: bytes | memoryview) -> SegmentHeader:
    check(what, len(data) == HEADER_SIZE, f"{len(data)} bytes, not {HEADER_SIZE}")
    found, version, stream_id, first_offset, epoch, crc = _HEADER.unpack(data)
    check_magic(what, found, wanted, version)
    check(what, crc == crc32c(memoryview(data)[:-4]), "its checksum does not match")
    header = SegmentHeader(stream_id_from_bytes(stream_id), first_offset, epoch)
    _check_header(what, header)
    return header


def _check_header(what: str, header: SegmentHeader) -> None:
    check(what, header.first_offset <= OFFSET_MAX + 1, f"first_offset={header.first_offset}")


def encode_index_record(place: ChunkPlace) -> bytes:
    """Encode the place of one chunk: INDEX_RECORD_SIZE bytes.

    Raises:
        Corrupt: no reader would accept the place.
    """
    _check_place(place)
    raw = _RECORD.pack(*place, 0, 0)[:-4]
    return raw + crc32c(raw).to_bytes(4, "little")


def decode_index_record(data: bytes | memoryview) -> ChunkPlace:
    """Read one index record.

    Raises:
        Corrupt: it is damaged, or no writer can have written it.
    """
    what = "index record"
    check(what, len(data) == INDEX_RECORD_SIZE, f"{len(data)} bytes, not {INDEX_RECORD_SIZE}")
    *fields, _, crc = _RECORD.unpack(data)
    check(what, crc == crc32c(memoryview(data)[:-4]), "its checksum does not match")
    place = ChunkPlace(*fields)
    _check_place(place)
    return place


def _check_place(place: ChunkPlace) -> None:
    what = "index record"
    check(what, place.position <= OFFSET_MAX, f"position={place.position}")
    check(what, place.size <= CHUNK_SIZE_MAX, f"size={place.size}")
    check(what, place.record_count <= CHUNK_RECORD_COUNT_MAX, f"records={place.record_count}")
    check(what, place.next_offset <= OFFSET_MAX + 1, f"first_offset={place.first_offset}")


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint file: CHECKPOINT_SIZE bytes.

    Raises:
        Corrupt: no reader would accept the checkpoint.
    """
    _check_checkpoint(checkpoint)
    stream_id, *numbers = checkpoint
    raw = _CHECKPOINT.pack(CHECKPOINT_MAGIC, VERSION, stream_id_bytes(stream_id), *numbers, 0)[:-4]
    return raw + crc32c(raw).to_bytes(4, "little")


def decode_checkpoint(data: bytes | memoryview) -> Checkpoint:
    """Read a checkpoint file.

    Raises:
        Corrupt: it is damaged, or no writer can have written it.
    """
    what = "checkpoint"
    check(what, len(data) == CHECKPOINT_SIZE, f"{len(data)} bytes, not {CHECKPOINT_SIZE}")
    found, version, stream_id, *numbers, crc = _CHECKPOINT.unpack(data)
    check_magic(what, found, CHECKPOINT_MAGIC, version)
    check(what, crc == crc32c(memoryview(data)[:-4]), "its checksum does not match")
    checkpoint = Checkpoint(stream_id_from_bytes(stream_id), *numbers)
    _check_checkpoint(checkpoint)
    return checkpoint


def _check_checkpoint(checkpoint: Checkpoint) -> None:
    what, end = "checkpoint", OFFSET_MAX + 1
    check(what, checkpoint.segment_first_offset <= end, "its segment starts beyond all offsets")
    check(what, checkpoint.synced_next <= end, f"synced_next={checkpoint.synced_next}")
    check(what, checkpoint.published_next <= end, f"published_next={checkpoint.published_next}")
    check(what, checkpoint.reserved_next <= end, f"reserved_next={checkpoint.reserved_next}")
