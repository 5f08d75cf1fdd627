"""WAL objects: what many leaderless streams were sent, in one object, before it is in fragments.

    | header 128 | piece line 64 ... | note 64 ... | piece | piece ... |
                 ^ HEADER_SIZE                     ^ data_position

The lines name the stream of each piece, so that a rebuild needs nothing but the directory: header,
lines and notes, without the data. Pieces lie in the order of their lines without a hole, and lines
are in the order of their stream ids: the pieces of a stream are one range of the object.

A piece holds chunks that are not placed yet: placing.py gives them their offset, timestamp and epoch.

Byte tables: docs/formats.md, "WAL object".
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.formats.checks import VERSION, check, check_magic, crc32c, magic
from bottomless.formats.chunk import HEADER_SIZE as CHUNK_HEADER_SIZE
from bottomless.formats.crc32c import combine
from bottomless.model.limits import (
    OFFSET_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    WAL_NOTE_COUNT_MAX,
    WAL_PIECE_COUNT_MAX,
    WAL_SEQUENCE_MAX,
    WAL_SIZE_MAX,
)
from bottomless.model.names import (
    StreamId,
    Uid,
    stream_id_bytes,
    stream_id_from_bytes,
    uid_bytes,
    uid_from_bytes,
)
from bottomless.model.wal import Note, Piece, PieceLine, WalFlags, WalHeader

MAGIC: Final = magic("BLwl")

_HEADER = struct.Struct(
    "<"
    "I"  # magic
    "B"  # version
    "B"  # flags
    "2x"  # reserved
    "16s"  # instance
    "Q"  # sequence
    "Q"  # noted_below
    "q"  # created_at
    "Q"  # data_position
    "Q"  # data_size
    "I"  # generation
    "I"  # piece_count
    "I"  # note_count
    "I"  # directory_crc
    "I"  # notes_crc
    "I"  # data_crc
    "Q"  # attempt
    "28x"  # reserved
    "I"  # header_crc, of the 124 bytes before
)
HEADER_SIZE: Final = _HEADER.size
assert HEADER_SIZE == 128  # docs/formats.md, "WAL object"

LINE_DTYPE: Final = np.dtype(
    [
        ("stream_id", "V16"),
        ("position", "<u4"),
        ("size", "<u4"),
        ("record_count", "<u4"),
        ("chunk_count", "<u4"),
        ("crc", "<u4"),
        ("append_count", "<u4"),
        ("reserved", "V24"),
    ]
)
LINE_SIZE: Final = LINE_DTYPE.itemsize
assert LINE_SIZE == 64  # docs/formats.md, "Piece line"

NOTE_DTYPE: Final = np.dtype(
    [
        ("sequence", "<u8"),
        ("first_piece", "<u4"),
        ("piece_count", "<u4"),
        ("first_offset", "<u8"),
        ("timestamp", "<i8"),
        ("epoch", "<u8"),
        ("number", "<u8"),
        ("reserved", "V16"),
    ]
)
NOTE_SIZE: Final = NOTE_DTYPE.itemsize
assert NOTE_SIZE == 64  # docs/formats.md, "Note"

_COMBINED_SIZE_MIN: Final = 1024 * 1024
"""A smaller piece is read twice, from the processor's cache: quicker than to put checksums together."""
_LINE: Final = struct.Struct("<16s6I24x")
_NOTE: Final = struct.Struct("<QIIQqQQ16x")


class PackedWal(NamedTuple):
    """A WAL object ready to be put: its bytes in parts, and what they say."""

    header: WalHeader
    lines: list[PieceLine]
    """A line for each piece, in the order of the directory."""
    numbers: list[int]
    """The number in the directory of each piece, in the order in which they were given."""
    parts: list[bytes | memoryview]
    crc: int
    """CRC-32C of the whole object."""


class WalDirectory:
    """Header, piece lines and notes of one object, searched by numpy and never in a loop."""

    def __init__(self, header: WalHeader, lines: NDArray[np.void], notes: NDArray[np.void]) -> None:
        self.header = header
        self._lines = lines
        self._notes = notes

    def line(self, number: int) -> PieceLine:
        """Get the line of the piece with this number, from 0."""
        raw, *numbers, _ = self._lines[number].item()
        return PieceLine(stream_id_from_bytes(raw), *numbers)

    def note(self, number: int) -> Note:
        """Get the note with this number, from 0."""
        *fields, _ = self._notes[number].item()
        return Note(*fields)

    def pieces_of(self, stream_id: StreamId) -> range:
        """Find the numbers of a stream's pieces; an empty range if it has none."""
        found = np.flatnonzero(self._lines["stream_id"] == np.void(stream_id_bytes(stream_id)))
        return range(int(found[0]), int(found[-1]) + 1) if len(found) else range(0)

    def stream_ids(self) -> list[StreamId]:
        """List the streams that have a piece in the object, each once, in the order of their ids."""
        return [
            stream_id_from_bytes(raw) for raw in dict.fromkeys(self._lines["stream_id"].tolist())
        ]


def pack_wal(
    instance: Uid,
    sequence: int,
    pieces: Sequence[Piece],
    notes: Sequence[Note] = (),
    *,
    noted_below: int,
    attempt: int,
    created_at: int,
    generation: int,
    flags: WalFlags = WalFlags.NONE,
) -> PackedWal:
    """Make a WAL object of pieces and notes; the bytes of the pieces are not copied.

    Pieces of one stream keep the order in which they are given. `attempt` is that of the instance's
    record, as far as the writer knows it; `created_at` is in ms since 1970.

    Raises:
        Corrupt: no reader would accept the object.
    """
    # The sort is stable: pieces of one stream stay in the order of their appends.
    order = sorted(range(len(pieces)), key=lambda one: stream_id_bytes(pieces[one].stream_id))
    ordered = [pieces[one] for one in order]
    numbers = [0] * len(order)
    for number, one in enumerate(order):
        numbers[one] = number
    position = start = HEADER_SIZE + LINE_SIZE * (len(pieces) + len(notes))
    lines: list[PieceLine] = []
    parts: list[bytes | memoryview] = []
    data_crc = 0
    for piece in ordered:
        size = sum(memoryview(part).nbytes for part in piece.parts)
        crc = _continued(0, piece.parts)
        large = size >= _COMBINED_SIZE_MIN
        data_crc = combine(data_crc, crc, size) if large else _continued(data_crc, piece.parts)
        parts += piece.parts
        counts = piece.record_count, piece.chunk_count, crc, piece.append_count
        lines.append(PieceLine(piece.stream_id, position, size, *counts))
        position += size
    # Before anything is packed: a size that no field can hold is refused like any other.
    check("WAL object", position <= WAL_SIZE_MAX, f"it has {position} bytes")
    directory = b"".join(_LINE.pack(stream_id_bytes(line.stream_id), *line[1:]) for line in lines)
    noted = b"".join(_NOTE.pack(*note) for note in notes)
    header = WalHeader(
        flags=flags,
        instance=instance,
        sequence=sequence,
        noted_below=noted_below,
        created_at=created_at,
        data_position=start,
        data_size=position - start,
        generation=generation,
        piece_count=len(lines),
        note_count=len(notes),
        directory_crc=crc32c(directory),
        notes_crc=crc32c(noted),
        data_crc=data_crc,
        attempt=attempt,
    )
    front = encode_wal_header(header) + directory + noted
    decode_directory(front)
    crc = combine(crc32c(front), data_crc, header.data_size)
    return PackedWal(header, lines, numbers, [front, *parts], crc)


def _continued(crc: int, parts: Sequence[bytes | memoryview]) -> int:
    for part in parts:
        crc = crc32c(part, crc)
    return crc


def encode_wal_header(header: WalHeader) -> bytes:
    """Encode the header of a WAL object: HEADER_SIZE bytes.

    Raises:
        Corrupt: no reader would accept the header.
    """
    _check_header(header)
    flags, instance, *numbers = header
    raw = _HEADER.pack(MAGIC, VERSION, flags, uid_bytes(instance), *numbers, 0)[:-4]
    return raw + crc32c(raw).to_bytes(4, "little")


def decode_wal_header(data: bytes | memoryview) -> WalHeader:
    """Read the first HEADER_SIZE bytes of a WAL object; `data_position` says where its pieces begin.

    Raises:
        Corrupt: no writer of this format can have written these bytes.
    """
    what = "WAL header"
    check(what, len(data) == HEADER_SIZE, f"{len(data)} bytes, not {HEADER_SIZE}")
    found, version, flags, instance, *numbers, crc = _HEADER.unpack(data)
    check_magic(what, found, MAGIC, version)
    check(what, crc == crc32c(memoryview(data)[:-4]), "its checksum does not match")
    # A flag changes what the object means, so one that is not known is not skipped.
    check(what, flags <= WalFlags.SYNC, f"flags {flags:#x} are not known")
    header = WalHeader(WalFlags(flags), uid_from_bytes(instance), *numbers)
    _check_header(header)
    return header


def _check_header(header: WalHeader) -> None:
    what = "WAL header"
    check(what, header.sequence <= WAL_SEQUENCE_MAX, f"sequence={header.sequence}")
    check(what, header.noted_below <= header.sequence, f"noted_below={header.noted_below}")
    check(what, header.attempt < 2**63, f"attempt={header.attempt}")
    check(what, TIMESTAMP_MIN <= header.created_at <= TIMESTAMP_MAX, f"created={header.created_at}")
    check(what, header.piece_count <= WAL_PIECE_COUNT_MAX, f"pieces={header.piece_count}")
    check(what, header.note_count <= WAL_NOTE_COUNT_MAX, f"notes={header.note_count}")
    wanted = HEADER_SIZE + LINE_SIZE * (header.piece_count + header.note_count)
    check(what, header.data_position == wanted, "the data does not follow the directory")
    check(what, header.data_size <= WAL_SIZE_MAX, f"data_size={header.data_size}")
    check(what, header.size <= WAL_SIZE_MAX, f"it has {header.size} bytes")
    empty = header.data_size == 0
    check(what, empty == (header.piece_count == 0), "it has data without pieces, or pieces without")


def decode_directory(data: bytes | memoryview) -> WalDirectory:
    """Read header, lines and notes from the first bytes of an object, at least `data_position` many.

    The pieces are not looked at, and need not be there.

    Raises:
        Corrupt: a checksum does not match, or no writer can have written these bytes.
    """
    what = "WAL directory"
    view = memoryview(data)
    header = decode_wal_header(view[:HEADER_SIZE])
    check(what, len(view) >= header.data_position, "it is cut short")
    middle = HEADER_SIZE + LINE_SIZE * header.piece_count
    raw, noted = view[HEADER_SIZE:middle], view[middle : header.data_position]
    check(what, crc32c(raw) == header.directory_crc, "the checksum of its lines does not match")
    check(what, crc32c(noted) == header.notes_crc, "the checksum of its notes does not match")
    lines, notes = np.frombuffer(raw, LINE_DTYPE), np.frombuffer(noted, NOTE_DTYPE)
    _check_lines(header, lines)
    _check_notes(header, notes)
    return WalDirectory(header, lines, notes)


def _check_lines(header: WalHeader, lines: NDArray[np.void]) -> None:
    what = "piece line"
    if not len(lines):
        return
    # In 64 bits: sums of u32 could wrap around.
    sizes, positions = lines["size"].astype(np.uint64), lines["position"].astype(np.uint64)
    ends = positions + sizes
    check(what, int(positions[0]) == header.data_position, "the first piece is not at the data")
    check(what, bool(np.all(positions[1:] == ends[:-1])), "pieces overlap or miss")
    check(what, int(ends[-1]) == header.size, "the pieces do not fill the data")
    check(what, bool(np.all(sizes % 8 == 0)), "a piece is not padded")
    counts = lines["chunk_count"]
    check(what, bool(np.all(counts > 0)), "a piece holds no chunk")
    fits = sizes >= counts.astype(np.uint64) * CHUNK_HEADER_SIZE
    check(what, bool(np.all(fits)), "a piece is too small for its chunks")
    check(what, bool(np.all(lines["record_count"] >= counts)), "a piece holds too few records")
    check(what, bool(np.all(lines["append_count"] > 0)), "a piece holds no append")
    halves = np.ascontiguousarray(lines["stream_id"]).view(">u8").reshape(-1, 2)
    (high, low), (after, below) = halves[:-1].T, halves[1:].T
    sorted_ = (high < after) | ((high == after) & (low <= below))
    check(what, bool(np.all(sorted_)), "streams are not in order")


def _check_notes(header: WalHeader, notes: NDArray[np.void]) -> None:
    what = "note"
    if not len(notes):
        return
    check(what, int(notes["sequence"].max()) < header.sequence, "it speaks of a later object")
    counts = notes["piece_count"].astype(np.uint64)
    check(what, bool(np.all(counts > 0)), "it speaks of no piece")
    ends = notes["first_piece"].astype(np.uint64) + counts
    check(what, int(ends.max()) <= WAL_PIECE_COUNT_MAX, f"piece {ends.max()}")
    check(what, int(notes["first_offset"].max()) <= OFFSET_MAX, "an offset is too large")
    check(what, int(notes["timestamp"].min()) >= TIMESTAMP_MIN, "a timestamp is too early")
    check(what, int(notes["timestamp"].max()) <= TIMESTAMP_MAX, "a timestamp is too late")


def decode_wal(data: bytes | memoryview) -> WalDirectory:
    """Read the directory of a whole object, and check its pieces against their checksum.

    Raises:
        Corrupt: any byte is not what was written, or the object is cut short or too long.
    """
    what, view = "WAL object", memoryview(data)
    directory = decode_directory(view)
    header = directory.header
    check(what, len(view) == header.size, f"{len(view)} bytes, not {header.size}")
    crc = crc32c(view[header.data_position :])
    check(what, crc == header.data_crc, "the checksum of its data does not match")
    return directory


def verify_piece(line: PieceLine, data: bytes | memoryview) -> None:
    """Check the bytes of one piece against its line, so that others of its object need not be whole.

    Raises:
        Corrupt: it is damaged or cut short.
    """
    check("piece", len(data) == line.size, f"{len(data)} bytes, not {line.size}")
    check("piece", crc32c(data) == line.crc, "its checksum does not match")
