"""Frames of the usual Arrow bodies, made of the body's own buffers.

Arrow's reader, its casts and its writer cost some hundred microseconds a body, whatever its size,
and copy it. A body whose structure is known is read by its numbers instead: its columns are
validated where they lie and stored under metadata of our own, as the very bytes that the long way
makes of them. Columns in another type than the stored one go through the same functions as there.

Whatever is not usual, and whatever would be refused, is left to the long way
(`arrow_records.py`), which alone says what is wrong with a body. What counts as usual:
docs/performance.md, "Arrow bodies". `tests/unit/ingest/test_arrow_in_place.py` holds both ways to
the same verdict and the same bytes.

On the record's path: after front/forms.py, before formats/laid_frame.py.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bottomless.errors import InvalidRequest
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
from bottomless.formats.message_shape import PREFIX
from bottomless.formats.rows import Frame
from bottomless.model.limits import (
    ARROW_RECORD_COUNT_MAX,
    DECOMPRESSED_SIZE_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
)
from bottomless.model.record import Columns, Content
from bottomless_server.ingest.records.arrow_buffers import MessageBuffers, Source, UnusualError
from bottomless_server.ingest.records.arrow_columns import read_ids
from bottomless_server.ingest.records.arrow_plan import Plan, PlannedColumn, metadata_size, plan_of
from bottomless_server.ingest.records.arrow_records import (
    BATCH_COUNT_KEPT,
    decoded_size,
    stored_column,
)

_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
_CONTENT_BIT: Final = Columns.CONTENT.value
_MASKS: Final = [Columns(mask) for mask in range(Columns.ALL + 1)]


def read_in_place(
    body: bytes, frame_size_max: int, *, numbered: bool = False
) -> tuple[tuple[Frame, ...], NDArray[np.int64] | None] | None:
    """What `read_arrow` would return, the same bytes; None for a body that is left to it."""
    try:
        return _Body(body, frame_size_max, numbered=numbered).read()
    except MemoryError:
        raise
    except (
        UnusualError,
        InvalidRequest,
        pa.ArrowException,
        OSError,
        EOFError,
        ValueError,
        IndexError,
    ):
        return None


class _Body:
    """One body while it is read."""

    def __init__(self, body: bytes, frame_size_max: int, *, numbered: bool) -> None:
        self._source = Source(body)
        self._frame_size_max = frame_size_max
        self._numbered = numbered
        self._dictionaries: dict[int, Any] = {}
        self._frames: list[Frame] = []
        self._ids: list[Any] = []
        self._record_count = self._decoded_size = 0

    def read(self) -> tuple[tuple[Frame, ...], NDArray[np.int64] | None]:
        view = self._source.view
        size = metadata_size(view, 0)
        if size is None:
            raise UnusualError
        position = PREFIX.size + size
        plan = plan_of(bytes(view[:position]), self._numbered)
        if plan is None:
            raise UnusualError
        while not self._ends(position):
            position = self._take_message(plan, position)
        if not self._frames:
            raise UnusualError
        return tuple(self._frames), read_ids(self._ids) if self._numbered else None

    def _ends(self, position: int) -> bool:
        """Whether the body is over, or its end mark is what is left; it may be left out."""
        left = len(self._source.view) - position
        return not left or (left == len(_END) and bytes(self._source.view[position:]) == _END)

    def _take_message(self, plan: Plan, position: int) -> int:
        found = plan.read(self._source.view, position)
        if found is None:
            raise UnusualError
        shape, numbers = found
        buffers = MessageBuffers(self._source, numbers, position + shape.size)
        if shape.dictionary_id is None:
            self._take_batch(plan, buffers)
        else:
            self._take_dictionary(plan, shape.dictionary_id, buffers)
        buffers.finish()
        return buffers.end

    def _take_dictionary(self, plan: Plan, dictionary_id: int, buffers: MessageBuffers) -> None:
        form = plan.dictionaries.get(dictionary_id)
        # One that is replaced counts for the batches after it only. None comes first after a batch,
        # which needs all of them.
        if form is None or dictionary_id in self._dictionaries:
            raise UnusualError
        _, _, values = buffers.plain(form)
        self._dictionaries[dictionary_id] = values

    def _take_batch(self, plan: Plan, buffers: MessageBuffers) -> None:
        self._record_count += buffers.row_count
        if (
            self._record_count > ARROW_RECORD_COUNT_MAX
            or len(self._frames) == BATCH_COUNT_KEPT
            or len(self._dictionaries) != len(plan.dictionaries)
            or buffers.size > self._frame_size_max
        ):
            raise UnusualError
        laid: dict[int, LaidColumn] = {}
        for one in plan.columns:
            if one.column is None:
                self._ids.append(buffers.column(one, self._dictionaries))
                continue
            column = self._take_column(plan, one, buffers)
            if column is not None:
                laid[one.bit] = column
        if plan.adds_content:
            laid[_CONTENT_BIT] = _all_text(buffers.row_count)
        ordered = [laid[bit] for bit in sorted(laid)]
        frame = lay_frame(_MASKS[sum(laid)], buffers.row_count, ordered)
        if frame.size > self._frame_size_max:
            # It is divided, by rows.
            raise UnusualError
        self._frames.append(frame)

    def _count(self, decoded_size: int) -> None:
        """Before a dictionary or a view is decoded: it may name one large value a million times."""
        self._decoded_size += decoded_size
        if self._decoded_size > DECOMPRESSED_SIZE_MAX:
            raise UnusualError

    def _take_column(
        self, plan: Plan, one: PlannedColumn, buffers: MessageBuffers
    ) -> LaidColumn | None:
        """The column as it is stored; None where it is not, since it says nothing."""
        assert one.column is not None
        if one.as_stored:
            null_count, pieces, array = buffers.plain(one.form)
            # More than is counted on the long way, never less.
            self._count(sum([piece.size for piece in pieces]) + 8 * buffers.row_count)
            if one.nullable and null_count == buffers.row_count:
                return None
            column = _as_it_lies(one, null_count, pieces, buffers.row_count)
        else:
            array = buffers.column(one, self._dictionaries)
            self._count(decoded_size(array))
            if one.nullable and array.null_count == buffers.row_count:
                return None
            array = stored_column(one.column, one.name, array)
            column = lay_map(array) if one.column is Columns.HEADERS else lay_array(array)
        if column is None or (column.nodes[1] and not one.nullable):
            raise UnusualError
        if one.column is Columns.CONTENT:
            _check_contents(plan, column)
        if one.column is Columns.VALUE and plan.text_values and not one.as_stored:
            array.cast(pa.utf8()).validate(full=True)
        return column


def _as_it_lies(
    one: PlannedColumn, null_count: int, pieces: list[Piece], row_count: int
) -> LaidColumn | None:
    validity, first, *data = pieces
    if one.width:
        if one.column is Columns.EVENT_TIME:
            times = _numbers(first, np.int64, row_count)
            # What stands under a null may be anything; then the long way looks.
            if times.min() < TIMESTAMP_MIN or times.max() > TIMESTAMP_MAX:
                raise UnusualError
        return lay_fixed(row_count, null_count, validity, first, one.width)
    offsets = _numbers(first, np.int32, row_count + 1)
    if (offsets[1:] - offsets[:-1]).max() > one.size_max:
        raise UnusualError
    return lay_bytes(row_count, null_count, validity, first, data[0])


def _check_contents(plan: Plan, column: LaidColumn) -> None:
    """JSON is parsed on the long way, and what is said to be text is looked at there, unless its
    column is text by its type."""
    contents = _numbers(column.pieces[1], np.uint8, column.nodes[0])
    if contents.max() > (Content.TEXT if plan.text_values else Content.BYTES):
        raise UnusualError


def _numbers(piece: Piece, kind: Any, count: int) -> NDArray[Any]:
    return np.frombuffer(piece.source, kind, count, piece.start)


def _all_text(row_count: int) -> LaidColumn:
    marks = Piece(memoryview(bytes([Content.TEXT]) * row_count), 0, row_count)
    return LaidColumn((row_count, 0), (NO_PIECE, marks))
