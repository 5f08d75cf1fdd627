"""Frames of buffers as they lie: metadata of our own before buffers that somebody has checked.

The bytes are those that `encode_frame` makes of the same columns: Arrow's writer lays buffers one
after the other, each padded to 8, and writes the same structure for the same columns each time.
Buffers that lie so already are not copied, and a frame then has two parts: header and metadata,
and a view of where the buffers lie.

On the record's path: made by services/bottomless_server/ingest/records/arrow_in_place.py.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from bottomless.formats.batch import (
    FIELDS,
    Codec,
    FrameHeader,
    encode_frame_header,
    schema_of,
)
from bottomless.formats.checks import crc32c
from bottomless.formats.message_shape import PREFIX, MessageShape, Numbers, shape_of
from bottomless.formats.rows import Frame
from bottomless.model.limits import KIB
from bottomless.model.record import Columns

_JOINED_SIZE_MAX: Final = 32 * KIB
"""Bytes in several parts that are put together: to carry so many parts would cost more."""
_OFFSET: Final = struct.Struct("<i")
_ALIGNMENT: Final = 64
"""The alignment of Arrow's buffers in memory: its writer keeps what fills a buffer up to here, and cuts more."""
_ZEROS: Final = [bytes(count) for count in range(8)]


class Piece(NamedTuple):
    """A buffer: so many bytes of a source."""

    source: memoryview
    start: int
    """In bytes, from the beginning of the source."""
    size: int


NO_PIECE: Final = Piece(memoryview(b""), 0, 0)
"""A buffer that is left out, such as the validity of a column without nulls."""


class LaidColumn(NamedTuple):
    """A column of a stored batch: its field nodes, each of rows and nulls, and its buffers."""

    nodes: tuple[int, ...]
    pieces: tuple[Piece, ...]


def lay_fixed(
    row_count: int, null_count: int, validity: Piece, data: Piece, width: int
) -> LaidColumn | None:
    """A column of values of `width` bytes, as Arrow's writer lays it; None where it would cut it.

    What stands after the last value is stored too, as long as it is no more than the writer's own
    alignment explains.
    """
    values_size = row_count * width
    if not values_size <= data.size <= _aligned(values_size):
        return None
    seen = _lay_validity(row_count, null_count, validity)
    return None if seen is None else LaidColumn((row_count, null_count), (seen, data))


def lay_bytes(
    row_count: int, null_count: int, validity: Piece, offsets: Piece, data: Piece
) -> LaidColumn | None:
    """A column of bytes or text of any length, as Arrow's writer lays it; None where it would
    shift or cut it."""
    # Of no rows, which headers may have, Arrow keeps as many offsets as there happen to be.
    found = _ends_of(offsets, row_count) if row_count else None
    if found is None or found[0] or not found[1] <= data.size <= _aligned(found[1]):
        return None
    seen = _lay_validity(row_count, null_count, validity)
    if seen is None:
        return None
    used = Piece(offsets.source, offsets.start, _OFFSET.size * (row_count + 1))
    pieces = (seen, used, data)
    return LaidColumn((row_count, null_count), pieces)


def lay_array(array: Any) -> LaidColumn | None:
    """A column of bytes, text, times or small numbers; None where Arrow's writer would shift or
    cut it."""
    if array.offset:
        return None
    pieces = [NO_PIECE if one is None else _whole(one) for one in array.buffers()]
    row_count, null_count = len(array), array.null_count
    validity, first, *data = pieces
    if data:
        return lay_bytes(row_count, null_count, validity, first, data[0])
    return lay_fixed(row_count, null_count, validity, first, array.type.bit_width // 8)


def lay_map(array: Any) -> LaidColumn | None:
    """A column of maps of text to bytes; None where Arrow's writer would shift or cut it."""
    entries = array.values
    keys, items = lay_array(entries.field(0)), lay_array(entries.field(1))
    if array.offset or entries.offset or entries.null_count or keys is None or items is None:
        return None
    validity, offsets = (NO_PIECE if one is None else _whole(one) for one in array.buffers()[:2])
    row_count, null_count = len(array), array.null_count
    seen = _lay_validity(row_count, null_count, validity)
    found = _ends_of(offsets, row_count)
    if seen is None or found != (0, len(entries)):
        return None
    offsets = Piece(offsets.source, offsets.start, _OFFSET.size * (row_count + 1))
    nodes = (row_count, null_count, len(entries), 0, *keys.nodes, *items.nodes)
    return LaidColumn(nodes, (seen, offsets, NO_PIECE, *keys.pieces, *items.pieces))


def _lay_validity(row_count: int, null_count: int, validity: Piece) -> Piece | None:
    if not null_count:
        return NO_PIECE
    bytes_needed = (row_count + 7) // 8
    return validity if bytes_needed <= validity.size <= _aligned(bytes_needed) else None


def _ends_of(offsets: Piece, row_count: int) -> tuple[int, int] | None:
    """The first offset and the last."""
    last_at = _OFFSET.size * row_count
    if offsets.size < last_at + _OFFSET.size:
        return None
    [first] = _OFFSET.unpack_from(offsets.source, offsets.start)
    [last] = _OFFSET.unpack_from(offsets.source, offsets.start + last_at)
    return first, last


def _whole(buffer: pa.Buffer) -> Piece:
    return Piece(memoryview(buffer), 0, buffer.size)


def _aligned(size: int) -> int:
    return size + -size % _ALIGNMENT


def lay_frame(columns: Columns, record_count: int, laid: Sequence[LaidColumn]) -> Frame:
    """Frame columns in their stored types, in column order; their rows must be validated already.

    Raises:
        Corrupt: the frame would be larger than a frame may be.
    """
    layout = _Layout()
    nodes: list[int] = []
    for column in laid:
        nodes += column.nodes
        for piece in column.pieces:
            layout.add(piece)
    shape = _shape(columns)
    numbers = Numbers((layout.size,), (record_count,), tuple(nodes), tuple(layout.buffers))
    metadata = shape.fill(numbers)
    parts = layout.parts()
    crc = crc32c(metadata)
    for part in parts:
        crc = crc32c(part, crc)
    # A multiple of 8, as metadata and buffers are: there is nothing to pad.
    size = shape.size + layout.size
    head = encode_frame_header(FrameHeader(Codec.NONE, columns, record_count, size, size, crc))
    if len(parts) > 1 and size <= _JOINED_SIZE_MAX:
        return Frame(record_count, (b"".join((head, metadata, *parts)),))
    return Frame(record_count, (head + metadata, *parts))


class _Layout:
    """Buffers one after the other, in as few runs of bytes as they lie in."""

    def __init__(self) -> None:
        self.size = 0
        self.buffers: list[int] = []
        self._runs: list[memoryview] = []
        self._source = NO_PIECE.source
        self._start = self._end = 0

    def add(self, piece: Piece) -> None:
        source, start, size = piece
        self.buffers += (self.size, size)
        if not size:
            return
        if source is not self._source or start != self._end:
            self._begin(source, start)
        self._end += size
        missing = -size & 7
        self.size += size + missing
        if missing:
            end = self._end + missing
            if source[self._end : end] != _ZEROS[missing]:
                self._begin(memoryview(_ZEROS[missing]), 0)
                end = missing
            self._end = end

    def parts(self) -> list[memoryview]:
        self._begin(NO_PIECE.source, 0)
        return self._runs

    def _begin(self, source: memoryview, start: int) -> None:
        """A new run; the one before is whole."""
        if self._end > self._start:
            self._runs.append(self._source[self._start : self._end])
        self._source, self._start, self._end = source, start, start


@lru_cache(maxsize=64)
def _shape(columns: Columns) -> MessageShape:
    """The shape that Arrow writes, seen at a batch of one row."""
    schema = schema_of(columns)
    row = [
        pa.array([_VALUES[column]], FIELDS[column].type) for column in FIELDS if column in columns
    ]
    message = memoryview(pa.RecordBatch.from_arrays(row, schema=schema).serialize())
    _, size = PREFIX.unpack_from(message)
    shape = shape_of(message[: PREFIX.size + size])
    assert shape is not None, "Arrow writes a batch in another way than it did"
    return shape


_VALUES: Final = {
    Columns.VALUE: b"x",
    Columns.KEY: b"x",
    Columns.HEADERS: [("x", b"x")],
    Columns.EVENT_TIME: 1,
    Columns.CONTENT: 1,
    Columns.FILTER_VALUE: "x",
}
