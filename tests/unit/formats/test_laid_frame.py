"""A frame of buffers has the bytes of the frame that Arrow's writer makes of the same columns."""

import struct
from itertools import product
from typing import Any, Final

import pyarrow as pa
import pytest

from bottomless.formats.batch import FIELDS, decode_frames, encode_frame, schema_of
from bottomless.formats.laid_frame import (
    NO_PIECE,
    LaidColumn,
    Piece,
    lay_array,
    lay_bytes,
    lay_fixed,
    lay_frame,
    lay_map,
)
from bottomless.model.record import Columns

MASKS: Final = [Columns(mask | Columns.VALUE) for mask in range(0, 64, 2)]
VALUES: Final[dict[Columns, list[Any]]] = {
    Columns.VALUE: [b"one", b"", b"three"],
    Columns.KEY: [b"k", None, b""],
    Columns.HEADERS: [[("a", b"x"), ("b", b"")], None, []],
    Columns.EVENT_TIME: [1, None, -5],
    Columns.CONTENT: [0, 1, 2],
    Columns.FILTER_VALUE: ["é", "", None],
}


def laid(array: Any, column: Columns) -> LaidColumn:
    found = lay_map(array) if column is Columns.HEADERS else lay_array(array)
    assert found is not None
    return found


@pytest.mark.parametrize("columns", MASKS, ids=str)
@pytest.mark.parametrize("repeated", [1, 2_000])
def test_a_laid_frame_has_the_bytes_of_arrow(columns: Columns, repeated: int) -> None:
    present = [column for column in FIELDS if column in columns]
    arrays = [pa.array(VALUES[one] * repeated, FIELDS[one].type) for one in present]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))

    frame = lay_frame(
        columns, len(batch), [laid(*one) for one in zip(arrays, present, strict=True)]
    )

    assert bytes(frame.data) == encode_frame(batch)
    assert frame.size == len(frame.data)
    assert decode_frames(memoryview(frame.data)) == [batch]


def test_a_column_that_arrow_would_shift_or_cut_is_not_laid() -> None:
    """Sliced, begun late, or followed by more than alignment explains."""
    values: Any = pa.array([b"a", b"b", b"c"])
    times: Any = pa.array([1, 2, 3], pa.timestamp("ms", "UTC"))
    for array in (values, times):
        assert lay_array(array) is not None
        assert lay_array(array.slice(1)) is None
    _, offsets, data = values.buffers()
    late = pa.Array.from_buffers(pa.binary(), 2, [None, offsets.slice(4, 12), data])
    assert lay_array(late) is None
    for extra, kept in ((61, True), (62, False)):
        longer = pa.py_buffer(b"abc" + bytes(extra))
        array = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, longer])
        assert (lay_array(array) is not None) is kept
    headers = pa.array(VALUES[Columns.HEADERS], FIELDS[Columns.HEADERS].type)
    assert lay_map(headers) is not None
    assert lay_map(headers.slice(1)) is None


def piece(size: int) -> Piece:
    return Piece(memoryview(bytes(128)), 0, size)


@pytest.mark.parametrize(("size", "kept"), [(23, False), (24, True), (64, True), (65, False)])
def test_values_are_laid_where_they_are_all_there_and_no_more_than_alignment_follows(
    size: int, kept: bool
) -> None:
    assert (lay_fixed(3, 0, NO_PIECE, piece(size), 8) is not None) is kept


@pytest.mark.parametrize(("size", "kept"), [(1, False), (2, True), (64, True), (65, False)])
def test_what_says_where_nulls_are_is_laid_as_values_are(size: int, kept: bool) -> None:
    offsets = piece(4 * 10)
    assert (lay_fixed(9, 1, piece(size), piece(72), 8) is not None) is kept
    assert (lay_bytes(9, 1, piece(size), offsets, NO_PIECE) is not None) is kept


def test_fewer_offsets_than_rows_need_are_not_laid() -> None:
    assert lay_bytes(9, 0, NO_PIECE, piece(4 * 10), NO_PIECE) is not None
    assert lay_bytes(9, 0, NO_PIECE, piece(4 * 10 - 1), NO_PIECE) is None


def headers_of(entries: Any, count: int, nulls: bytes | None = None) -> Any:
    """One record, whose headers are these entries; with `nulls` it has none."""
    kind = FIELDS[Columns.HEADERS].type
    offsets = pa.py_buffer(struct.pack("<2i", 0, count))
    validity = None if nulls is None else pa.py_buffer(nulls)
    null_count = int(nulls is not None)
    return pa.Array.from_buffers(kind, 1, [validity, offsets], null_count, children=[entries])


def test_headers_whose_entries_arrow_would_shift_or_cut_are_not_laid() -> None:
    kind: Any = FIELDS[Columns.HEADERS].type
    columns = [pa.array(["a", "b"], kind.key_type), pa.array([b"x", b"y"], kind.item_type)]
    fields = [kind.key_field, kind.item_field]
    entries = pa.StructArray.from_arrays(columns, fields=fields)
    assert lay_map(headers_of(entries, 2)) is not None
    assert lay_map(headers_of(entries, 1)) is None, "one that no record has"
    assert lay_map(headers_of(entries.slice(1), 1)) is None
    assert lay_map(headers_of(entries, 2, bytes(64))) is not None
    assert lay_map(headers_of(entries, 2, bytes(65))) is None


def test_buffers_that_lie_as_they_are_to_be_stored_are_one_view() -> None:
    """Any gap, any other padding, any other order takes a part of its own."""
    offsets = b"".join(number.to_bytes(4, "little") for number in (0, 40_000, 50_001))
    offsets += bytes(4)
    data = b"x" * 50_001
    for gap, padding in product((b"", b"gap to 8"), (bytes(7), b"junk---")):
        source = memoryview(offsets + gap + data + padding)
        pieces = (Piece(source, 0, 12), Piece(source, 16 + len(gap), len(data)))
        column = lay_bytes(2, 0, Piece(source, 0, 0), *pieces)
        assert column is not None
        frame = lay_frame(Columns.VALUE, 2, [column])
        assert len(frame.parts) == 2 + bool(gap) + bool(any(padding))
        [batch] = decode_frames(memoryview(frame.data))
        assert batch["value"].to_pylist() == [b"x" * 40_000, b"x" * 10_001]
