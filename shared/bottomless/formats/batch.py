"""Batch frames: an Arrow record batch as a producer sent it and as storage keeps it.

    | header 32 | Arrow IPC message of one record batch, through the codec | pad |

The message is without its schema: the column mask in the header names the
columns, and their types are fixed, so that any subset has exactly one schema.
Why not Arrow's own buffer compression? Its declared sizes reach a decoder before
they can be bounded; here the uncompressed size stands in our header, is checked
first, and decompression never gives more.

On the record's path: made by services/bottomless_server/ingest/records/intake.py,
kept by formats/chunk.py. Byte tables: docs/formats.md, "Batch frame".
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

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
from bottomless.formats.message import open_message
from bottomless.model.limits import CHUNK_RECORD_COUNT_MAX, FRAME_SIZE_MAX
from bottomless.model.record import Columns

MAGIC: Final = magic("BLbf")


class Codec(IntEnum):
    """How the Arrow message is stored. Zero is never valid."""

    NONE = 1
    ZSTD = 2
    LZ4 = 3


_HEADER = struct.Struct(
    "<"
    "I"  # magic
    "B"  # version
    "B"  # codec
    "H"  # columns
    "I"  # record_count
    "I"  # stored_size, without padding
    "I"  # raw_size
    "I"  # body_crc, of the stored message without padding
    "I"  # reserved
    "I"  # header_crc, of the 28 bytes before
)
HEADER_SIZE: Final = _HEADER.size
assert HEADER_SIZE == 32  # docs/formats.md, "Batch frame"


class FrameHeader(NamedTuple):
    """What a frame says about itself. Fields stand in wire order; sizes are in bytes."""

    codec: Codec
    columns: Columns
    record_count: int
    stored_size: int
    raw_size: int
    body_crc: int

    @property
    def frame_size(self) -> int:
        """Bytes of the whole frame: header, stored message and padding."""
        return HEADER_SIZE + padded(self.stored_size)


FIELDS: Final = {
    Columns.VALUE: pa.field("value", pa.binary(), nullable=False),
    Columns.KEY: pa.field("key", pa.binary()),
    Columns.HEADERS: pa.field("headers", pa.map_(pa.utf8(), pa.binary())),
    Columns.EVENT_TIME: pa.field("event_time", pa.timestamp("ms", tz="UTC")),
    Columns.CONTENT: pa.field("content", pa.uint8(), nullable=False),
    Columns.FILTER_VALUE: pa.field("filter_value", pa.utf8()),
}
"""The stored type of every column, in column order."""


@lru_cache(maxsize=64)
def schema_of(columns: Columns) -> pa.Schema:
    """Make the one Arrow schema that a batch with these columns has."""
    return pa.schema([field for column, field in FIELDS.items() if column in columns])


def columns_of(schema: pa.Schema) -> Columns:
    """Make the column mask of a schema that `schema_of` made; any other schema is a bug."""
    columns = Columns(0)
    for column, field in FIELDS.items():
        if field.name in schema.names:
            columns |= column
    assert schema.equals(schema_of(columns)), "not a stored schema"
    return columns


def encode_frame(batch: pa.RecordBatch, codec: Codec = Codec.NONE) -> bytes:
    """Frame a batch that has a stored schema; its rows must be validated already.

    Raises:
        Corrupt: the batch has no row, no value column, or is larger than a frame may be.
    """
    message = batch.serialize()
    stored = _compress(message, codec)
    header = FrameHeader(
        codec=codec,
        columns=columns_of(batch.schema),
        record_count=batch.num_rows,
        stored_size=len(stored),
        raw_size=len(message),
        body_crc=crc32c(stored),
    )
    return b"".join((encode_frame_header(header), stored, padding(len(stored))))


def encode_frame_header(header: FrameHeader) -> bytes:
    """Encode the header of a frame: HEADER_SIZE bytes.

    Raises:
        Corrupt: no reader would accept the header.
    """
    _check_frame_header(header)
    fields = _HEADER.pack(MAGIC, VERSION, *header, 0, 0)[:-4]
    return fields + crc32c(fields).to_bytes(4, "little")


def decode_frame_header(data: bytes | memoryview, position: int = 0) -> FrameHeader:
    """Read the frame header at byte `position` and check it; the message is not looked at.

    Raises:
        Corrupt: it is too short, has a wrong checksum, or has fields that no writer can have
            written.
    """
    raw = memoryview(data)[position : position + HEADER_SIZE]
    check("batch frame", len(raw) == HEADER_SIZE, f"{len(raw)} bytes, not {HEADER_SIZE}")
    found, version, codec, columns, count, stored_size, raw_size, body_crc, _, crc = _HEADER.unpack(
        raw
    )
    check_magic("batch frame", found, MAGIC, version)
    check("batch frame", crc == crc32c(raw[:-4]), "the checksum of its header does not match")
    check("batch frame", codec in Codec.__members__.values(), f"codec {codec} is not known")
    check("batch frame", columns <= Columns.ALL, f"columns {columns:#x} are not known")
    header = FrameHeader(Codec(codec), Columns(columns), count, stored_size, raw_size, body_crc)
    _check_frame_header(header)
    return header


def _check_frame_header(header: FrameHeader) -> None:
    what = "batch frame"
    check(what, Columns.VALUE in header.columns, "it has no value column")
    check(what, 0 < header.record_count <= CHUNK_RECORD_COUNT_MAX, f"records={header.record_count}")
    check(what, 0 < header.stored_size <= FRAME_SIZE_MAX, f"stored_size={header.stored_size}")
    check(what, 0 < header.raw_size <= FRAME_SIZE_MAX, f"raw_size={header.raw_size}")
    if header.codec is Codec.NONE:
        check(what, header.stored_size == header.raw_size, "uncompressed sizes differ")


def split_frames(data: memoryview) -> Iterator[tuple[FrameHeader, memoryview]]:
    """Walk through whole frames one after the other; yields each header and the stored message.

    Raises:
        Corrupt: at the first frame that is malformed or cut short.
    """
    position = 0
    while position < len(data):
        header = decode_frame_header(data, position)
        start = position + HEADER_SIZE
        stored, end = data[start : start + header.stored_size], position + header.frame_size
        check("batch frame", end <= len(data), "it is cut short")
        # No checksum of the frame covers its padding, and a frame may stand alone.
        check("batch frame", not any(data[start + len(stored) : end]), "its padding is not zero")
        yield header, stored
        position = end


def decode_message(
    header: FrameHeader, stored: memoryview, *, full: bool = False, verified: bool = False
) -> pa.RecordBatch:
    """Read the batch of a frame; without a codec its columns view `stored` in place.

    `full` also checks every offset and every UTF-8 byte, which bytes from outside need; bytes that
    passed this once are covered by checksums afterwards. `verified` says that the caller has
    checked the checksum of the whole chunk, which covers these bytes too.

    Raises:
        Corrupt: the checksum, the codec, the message or its rows are wrong.
        MemoryError: there is too little memory, which says nothing about the bytes. Arrow's own
            memory error is a MemoryError too.
    """
    what = "batch frame"
    check(what, len(stored) == header.stored_size, f"{len(stored)} bytes, not {header.stored_size}")
    matches = verified or crc32c(stored) == header.body_crc
    check(what, matches, "the checksum of its body does not match")
    message = open_message(_decompress(header, stored), header.columns)
    try:
        batch = pa.ipc.read_record_batch(message, schema_of(header.columns))
        batch.validate(full=full)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise corrupt(what, "it is not a valid Arrow record batch") from error
    check(what, batch.num_rows == header.record_count, "its record count is not its batch's")
    for name in ("value", "content"):
        if name in batch.schema.names:
            check(what, batch.column(name).null_count == 0, f"its {name} column has nulls")
    return batch


def decode_frames(data: memoryview, *, verified: bool = False) -> list[pa.RecordBatch]:
    """Read every batch of a chunk's frames, in order.

    `verified` says that the caller has checked the checksum of the whole chunk.

    Raises:
        Corrupt: a frame, its message or its rows are wrong.
        MemoryError: there is too little memory, which says nothing about the bytes.
    """
    return [
        decode_message(header, stored, verified=verified) for header, stored in split_frames(data)
    ]


def _compress(message: pa.Buffer, codec: Codec) -> pa.Buffer:
    if codec is Codec.NONE:
        return message
    return pa.Codec("zstd" if codec is Codec.ZSTD else "lz4").compress(message)


def _decompress(header: FrameHeader, stored: memoryview) -> memoryview | pa.Buffer:
    if header.codec is Codec.NONE:
        return stored
    what, why = "batch frame", "it does not decompress to its size"
    try:
        # The output is allocated at raw_size, which is bounded, and never grows.
        if header.codec is Codec.ZSTD:
            return pa.Codec("zstd").decompress(stored, header.raw_size)
        # Not Codec.decompress: of a shorter LZ4 frame it returns the rest uninitialised.
        # Not read: it leaks the bytes that it was to fill where the stream turns out damaged.
        with pa.CompressedInputStream(pa.BufferReader(stored), "lz4") as stream:
            raw = stream.read_buffer(header.raw_size)
            check(what, raw.size == header.raw_size and stream.read_buffer(1).size == 0, why)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise corrupt(what, why) from error
    return raw
