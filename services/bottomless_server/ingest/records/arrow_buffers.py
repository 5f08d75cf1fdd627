"""The columns of one message of an Arrow stream, made of its numbers and its body.

Each number is held to its bounds before anything is made of it, and what is made is validated in
full by Arrow before anything follows it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from bottomless.formats.laid_frame import Piece
from bottomless.formats.message_shape import Numbers
from bottomless.guards import guard
from bottomless.model.limits import ARROW_RECORD_COUNT_MAX, DECOMPRESSED_SIZE_MAX, HEADER_COUNT_MAX
from bottomless_server.ingest.records.arrow_plan import Form, PlannedColumn
from bottomless_server.ingest.records.arrow_types import dictionary_size, viewed_size

_ENTRY_COUNT_MAX: Final = ARROW_RECORD_COUNT_MAX * HEADER_COUNT_MAX


class UnusualError(Exception):
    """A body that is left to Arrow's own reader. It may be good or bad."""


class Source:
    """A body, for who wants views of it and for Arrow."""

    def __init__(self, body: bytes) -> None:
        self.view = memoryview(body)
        self._buffer = pa.py_buffer(body)
        self._looked_at = 0

    def count(self, size: int) -> None:
        """Before so many bytes are looked at that stand in the body once and are named often."""
        self._looked_at += size
        if self._looked_at > DECOMPRESSED_SIZE_MAX:
            raise UnusualError

    def part(self, piece: Piece) -> pa.Buffer:
        return self._buffer.slice(piece.start, piece.size)


class MessageBuffers:
    """Hands out field nodes and buffers of one message, in their order.

    All methods raise UnusualError for numbers out of bounds, and ValueError or IndexError where
    there are fewer than columns need.
    """

    def __init__(self, source: Source, numbers: Numbers, start: int) -> None:
        [self.row_count], [self.size] = numbers.row_count, numbers.body_size
        self._source, self._start = source, start
        self._view = source.view
        if not 0 < self.row_count <= ARROW_RECORD_COUNT_MAX:
            raise UnusualError
        if self.size < 0 or self.size % 8 or start + self.size > len(self._view):
            raise UnusualError
        self._numbers = numbers
        self._node_at = self._buffer_at = self._variadic_at = 0

    @property
    def end(self) -> int:
        return self._start + self.size

    def finish(self) -> None:
        """Refuse a message of which something is left that no column has taken."""
        _, _, nodes, buffers, variadic = self._numbers
        taken = (self._node_at, self._buffer_at, self._variadic_at)
        if taken != (len(nodes), len(buffers), len(variadic)):
            raise UnusualError

    def node(self, row_count_max: int) -> tuple[int, int]:
        at = self._node_at
        self._node_at = at + 2
        row_count, null_count = self._numbers.nodes[at : at + 2]
        if not 0 <= null_count <= row_count <= row_count_max:
            raise UnusualError
        return row_count, null_count

    def piece(self) -> Piece:
        """The next buffer: within the body, and aligned."""
        at = self._buffer_at
        self._buffer_at = at + 2
        offset, size = self._numbers.buffers[at : at + 2]
        if offset % 8 or offset < 0 or size < 0 or offset + size > self.size:
            raise UnusualError
        return Piece(self._view, self._start + offset, size)

    def _pieces(self, form: Form) -> list[Piece]:
        """All buffers of a column of this form, without those of its children."""
        count = form.buffer_count
        if form.is_view:
            more = self._numbers.variadic_counts[self._variadic_at]
            self._variadic_at += 1
            if not 0 <= more <= ARROW_RECORD_COUNT_MAX:
                raise UnusualError
            count += more
        return [self.piece() for _ in range(count)]

    def plain(self, form: Form) -> tuple[int, list[Piece], Any]:
        """The next column, of a type without children: its nulls, its buffers, and the column,
        validated in full."""
        null_count = self._row_node()
        pieces = self._pieces(form)
        array = self._array(form, self.row_count, null_count, pieces)
        if form.is_view:
            array.validate()
            self._source.count(viewed_size(array))
        array.validate(full=True)
        return null_count, pieces, array

    def column(self, column: PlannedColumn, dictionaries: Mapping[int, Any]) -> Any:
        """The next column, validated in full."""
        if column.indices is None:
            if not column.form.children:
                return self.plain(column.form)[2]
            array = self._map(column.form)
        else:
            indices = self.plain(column.indices)[2]
            assert column.dictionary_id is not None
            values = dictionaries[column.dictionary_id]
            array = pa.DictionaryArray.from_arrays(indices, values, safe=False)
            self._source.count(dictionary_size(array) + viewed_size(values))
        array.validate(full=True)
        return array

    def _array(self, form: Form, row_count: int, null_count: int, pieces: Sequence[Piece]) -> Any:
        """A column without children; not yet validated in full."""
        if not pieces:
            if null_count != row_count:
                raise UnusualError
            return pa.nulls(row_count)
        part = self._source.part
        buffers: list[pa.Buffer | None] = [part(piece) for piece in pieces]
        if not null_count:
            buffers[0] = None
        return pa.Array.from_buffers(form.kind, row_count, buffers, null_count)

    def _row_node(self) -> int:
        """The nulls of a field that has a value for each row."""
        row_count, null_count = self.node(self.row_count)
        if row_count != self.row_count:
            raise UnusualError
        return null_count

    def _map(self, form: Form) -> Any:
        kind: Any = form.kind
        null_count = self._row_node()
        validity, offsets = self._pieces(form)
        entry_count, entry_nulls = self.node(_ENTRY_COUNT_MAX)
        self.piece()
        if entry_nulls:
            raise UnusualError
        inner: list[Any] = []
        for child in form.children:
            count, nulls = self.node(_ENTRY_COUNT_MAX)
            if count != entry_count:
                raise UnusualError
            if not inner:
                check_names(nulls)
            inner.append(self._array(child, count, nulls, self._pieces(child)))
        fields = pa.struct([kind.key_field, kind.item_field])
        entries = pa.Array.from_buffers(fields, entry_count, [None], 0, children=inner)
        buffers = [self._source.part(validity) if null_count else None, self._source.part(offsets)]
        return pa.Array.from_buffers(kind, self.row_count, buffers, null_count, children=[entries])


@guard("no nulls among the names of headers")
def check_names(null_count: int) -> None:
    """Refuse names of which some are null, before a map is made of them.

    Arrow's reader refuses such a map; who makes one of buffers has the process ended by Arrow.
    """
    if null_count:
        raise UnusualError
