"""Osiris segments: the files in which RabbitMQ keeps a stream, read for an import. Never written.

    | "OSIL" 4 | version 4 | chunk ... | chunk ... |

    chunk: | header 48 | filter | data: entries ... | trailer |
    entry: | 0, size (31 bits) | message |
       or: | 1, codec (3 bits), 4 reserved bits | count 2 | raw size 4 | size 4 | messages, through the codec |

Everything is big-endian. This format is not ours: it is that of osiris, the log beneath RabbitMQ's
streams, version 1 of segments and version 0 of chunks. A chunk's checksum covers its data alone, so a
header is believed only as far as its data proves it. Byte tables:
docs/rabbitmq-segments.md.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from bottomless.formats.checks import check, corrupt, crc32c
from bottomless.model.limits import DECOMPRESSED_SIZE_MAX, MIB

SEGMENT_HEADER_SIZE: Final = 8
DATA_SIZE_MAX: Final = 256 * MIB
"""Bytes of a chunk's data, and of its trailer: more is refused before it is read. RabbitMQ's own frames bound what one
client sends at once to 1 MiB."""

_SEGMENT: Final = struct.Struct(">4sI")
_CHUNK = struct.Struct(
    ">"
    "B"  # magic 5 and version 0, four bits each
    "B"  # kind
    "H"  # entry_count
    "I"  # record_count
    "q"  # timestamp
    "Q"  # epoch
    "Q"  # chunk_id
    "I"  # data_crc, CRC-32 of zlib
    "I"  # data_size
    "I"  # trailer_size
    "B"  # filter_size
    "3x"  # reserved
)
CHUNK_HEADER_SIZE: Final = _CHUNK.size
assert CHUNK_HEADER_SIZE == 48  # docs/rabbitmq-segments.md
_CHUNK_MAGIC: Final = 0x50
_SUB_ENTRY: Final = struct.Struct(">BHII")
_U32: Final = struct.Struct(">I")
_HIGH_BIT: Final = 0x8000_0000

_SEGMENT_WHAT: Final = "RabbitMQ segment"
_WHAT: Final = "RabbitMQ chunk"


class ChunkKind(IntEnum):
    """What a chunk holds. Only USER has messages; the others keep offsets and publishing ids."""

    USER = 0
    TRACKING_DELTA = 1
    TRACKING_SNAPSHOT = 2


class SubEntryCodec(IntEnum):
    """How the messages of a sub-entry are compressed, by RabbitMQ's numbers."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    """In Snappy's framing format."""
    LZ4 = 3
    """As an LZ4 frame."""
    ZSTD = 4


class ChunkHeader(NamedTuple):
    """What a chunk says about itself. Fields stand in wire order; sizes are in bytes."""

    kind: ChunkKind
    entry_count: int
    record_count: int
    timestamp: int
    """Milliseconds since 1970."""
    epoch: int
    chunk_id: int
    """RabbitMQ's offset of the first message."""
    data_crc: int
    data_size: int
    trailer_size: int
    filter_size: int

    @property
    def size(self) -> int:
        """Bytes of the whole chunk, with its header."""
        return CHUNK_HEADER_SIZE + self.filter_size + self.data_size + self.trailer_size

    @property
    def next_offset(self) -> int:
        """RabbitMQ's offset after the last message."""
        return self.chunk_id + self.record_count


class Entries(NamedTuple):
    """Messages that follow each other in a chunk: those of one sub-entry with its codec, or those of
    all entries until the next sub-entry."""

    codec: SubEntryCodec | None
    messages: list[bytes]


def check_segment_header(data: bytes) -> None:
    """Check that a file begins as a segment does.

    Raises:
        Corrupt: it does not, or its version is not known.
    """
    check(_SEGMENT_WHAT, len(data) >= SEGMENT_HEADER_SIZE, "it is too short for a header")
    name, version = _SEGMENT.unpack_from(data)
    check(_SEGMENT_WHAT, name == b"OSIL", "it does not begin with OSIL")
    check(_SEGMENT_WHAT, version == 1, f"version {version} is not known, only 1")


def decode_chunk_header(data: bytes) -> ChunkHeader:
    """Read the header at the beginning of a chunk.

    Raises:
        Corrupt: it is too short, or no header of this version can say this.
    """
    check(_WHAT, len(data) >= CHUNK_HEADER_SIZE, "it is too short for a header")
    first, kind, *rest = _CHUNK.unpack_from(data)
    check(_WHAT, first == _CHUNK_MAGIC, f"it begins with {first:#04x}, not {_CHUNK_MAGIC:#04x}")
    check(_WHAT, kind in _KINDS, f"kind {kind} is not known")
    header = ChunkHeader(ChunkKind(kind), *rest)
    for size in (header.data_size, header.trailer_size):
        check(_WHAT, size <= DATA_SIZE_MAX, f"a part of it has {size} bytes")
    return header


_KINDS: Final = frozenset(ChunkKind)


def verify_data(header: ChunkHeader, data: "bytes | memoryview") -> None:
    """Check the data of a chunk against its header.

    Raises:
        Corrupt: the size or the checksum is another.
    """
    check(_WHAT, len(data) == header.data_size, f"{len(data)} bytes of {header.data_size}")
    check(_WHAT, zlib.crc32(data) == header.data_crc, "the checksum of its data does not match")


def entries_of(header: ChunkHeader, data: bytes) -> Iterator[Entries]:
    """Read the entries of a chunk whose data is verified, in order.

    Raises:
        Corrupt: the data is not what the header says, or a sub-entry does not decompress.
    """
    position = entry_count = record_count = 0
    while entry_count < header.entry_count:
        entries, position, passed = _plain_entries(data, position, header.entry_count - entry_count)
        if not passed:
            entries, position = _sub_entry(data, position)
        entry_count += passed or 1
        record_count += len(entries.messages)
        yield entries
    check(_WHAT, position == len(data), "its data goes on after its last entry")
    matches = record_count == header.record_count
    check(_WHAT, matches, f"{record_count} messages, not {header.record_count}")


def _plain_entries(data: bytes, position: int, count: int) -> tuple[Entries, int, int]:
    """Read at most `count` entries, until a sub-entry begins."""
    messages: list[bytes] = []
    end, size_of = len(data), _U32.unpack_from
    for _ in range(count):
        start = position + 4
        check(_WHAT, start <= end, "an entry begins after the end of the data")
        (size,) = size_of(data, position)
        if size >= _HIGH_BIT:
            break
        check(_WHAT, start + size <= end, "an entry goes beyond the data")
        position = start + size
        messages.append(data[start:position])
    return Entries(None, messages), position, len(messages)


def _sub_entry(data: bytes, position: int) -> tuple[Entries, int]:
    start = position + _SUB_ENTRY.size
    check(_WHAT, start <= len(data), "a sub-entry begins after the end of the data")
    kind, count, raw_size, size = _SUB_ENTRY.unpack_from(data, position)
    number, end = (kind >> 4) & 7, start + size
    check(_WHAT, end <= len(data), "a sub-entry goes beyond the data")
    check(_WHAT, number in _CODECS, f"codec {number} of a sub-entry is not known")
    check(_WHAT, raw_size <= DECOMPRESSED_SIZE_MAX, f"a sub-entry of {raw_size} bytes")
    codec = SubEntryCodec(number)
    messages = _split(decompress(codec, data[start:end], raw_size))
    check(_WHAT, len(messages) == count, f"a sub-entry of {len(messages)} messages, not {count}")
    return Entries(codec, messages), end


_CODECS: Final = frozenset(SubEntryCodec)


def _split(raw: bytes) -> list[bytes]:
    messages, position = [], 0
    while position < len(raw):
        check(_WHAT, position + 4 <= len(raw), "a sub-entry ends within a size")
        (size,) = _U32.unpack_from(raw, position)
        # The highest bit is 0 here: there is no sub-entry within a sub-entry.
        end = position + 4 + size
        check(_WHAT, end <= len(raw), "a message goes beyond its sub-entry")
        messages.append(raw[position + 4 : end])
        position = end
    return messages


def decompress(codec: SubEntryCodec, data: bytes, raw_size: int) -> bytes:
    """Decompress the messages of a sub-entry; never more than `raw_size` bytes are made.

    Raises:
        Corrupt: it does not decompress, or to another size.
        MemoryError: there is too little memory, which says nothing about the bytes.
    """
    try:
        match codec:
            case SubEntryCodec.NONE:
                raw = data
            case SubEntryCodec.GZIP:
                raw = _gunzip(data, raw_size)
            case SubEntryCodec.SNAPPY:
                raw = _unframed(data, raw_size)
            case SubEntryCodec.LZ4:
                raw = _streamed("lz4", data, raw_size)
            case SubEntryCodec.ZSTD:
                raw = _of_zstd(data, raw_size)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, zlib.error) as error:
        raise corrupt(_WHAT, f"a sub-entry of {codec.name} does not decompress") from error
    check(_WHAT, len(raw) == raw_size, f"a sub-entry of {codec.name} has another size than it says")
    return raw


def _gunzip(data: bytes, raw_size: int) -> bytes:
    # 31: with a gzip header. One byte more than allowed shows what is too large.
    unpacking = zlib.decompressobj(31)
    raw = unpacking.decompress(data, raw_size + 1)
    check(_WHAT, unpacking.eof and not unpacking.unused_data, "a sub-entry of GZIP is cut short")
    return raw


def _of_zstd(data: bytes, raw_size: int) -> bytes:
    # Arrow takes a size of 0 for none.
    if not raw_size:
        return _streamed("zstd", data, 0)
    return bytes(pa.Codec("zstd").decompress(data, raw_size, asbytes=True))


def _streamed(name: Literal["lz4", "zstd"], data: bytes, raw_size: int) -> bytes:
    # As formats/batch.py does it: Codec.decompress gives uninitialised bytes for a shorter LZ4 frame.
    with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
        raw = bytes(stream.read_buffer(raw_size).to_pybytes())
        check(_WHAT, stream.read_buffer(1).size == 0, "a sub-entry is larger than it says")
    return raw


_STREAM_IDENTIFIER: Final = 0xFF
_COMPRESSED: Final = 0x00
_UNCOMPRESSED: Final = 0x01
_SKIPPABLE_FIRST: Final = 0x80
_BLOCK_SIZE_MAX: Final = 65_536
"""A block of Snappy's framing format has at most so many bytes before compression."""


def _unframed(data: bytes, raw_size: int) -> bytes:
    """Snappy's framing format: blocks with a masked CRC-32C each, after a stream identifier."""
    parts: list[bytes] = []
    position = left = 0
    left = raw_size
    check(_WHAT, data[:10] == b"\xff\x06\x00\x00sNaPpY", "a sub-entry of SNAPPY is not framed")
    while position < len(data):
        kind = data[position]
        end = position + 4 + int.from_bytes(data[position + 1 : position + 4], "little")
        check(_WHAT, position + 4 <= len(data) and end <= len(data), "a block of SNAPPY is cut")
        block = data[position + 4 : end]
        position = end
        if kind in (_COMPRESSED, _UNCOMPRESSED):
            raw = _block(kind, block, left)
            left -= len(raw)
            parts.append(raw)
        elif kind == _STREAM_IDENTIFIER:
            check(_WHAT, block == b"sNaPpY", "a stream identifier of SNAPPY is another")
        else:
            check(_WHAT, kind >= _SKIPPABLE_FIRST, f"a block of SNAPPY of kind {kind}")
    return b"".join(parts)


def _block(kind: int, block: bytes, left: int) -> bytes:
    check(_WHAT, len(block) >= 4, "a block of SNAPPY has no checksum")
    (masked,) = struct.unpack_from("<I", block)
    raw = block[4:]
    if kind == _COMPRESSED:
        size = _varint(raw)
        fits = size <= min(left, _BLOCK_SIZE_MAX)
        check(_WHAT, fits, "a block of SNAPPY is larger than it may be")
        raw = pa.Codec("snappy").decompress(raw, size, asbytes=True) if size else b""
    check(_WHAT, len(raw) <= left, "a sub-entry of SNAPPY is larger than it says")
    crc = crc32c(raw)
    right = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF
    check(_WHAT, masked == right, "the checksum of a block of SNAPPY does not match")
    return raw


def _varint(data: bytes) -> int:
    """The size with which a block of Snappy begins."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return size
    raise corrupt(_WHAT, "a block of SNAPPY has no size")
