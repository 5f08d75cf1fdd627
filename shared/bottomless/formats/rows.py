"""Rows: single records become columns, and columns become one Arrow batch with a stored schema.

In bulk: a batch of its own for each record would cost some 500 bytes and 20 µs. Ingest makes one
batch of the small requests that wait together, the client's producer one of the records that were
sent one by one.

On the record's path: after services/bottomless_server/ingest/records/intake.py, before
core/batcher.py there; in a client that numbers its records, before the request.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from bottomless.formats.batch import FIELDS, Codec, encode_frame, schema_of
from bottomless.model.record import Columns, Content
from bottomless.model.rows import Rows


class Frame(NamedTuple):
    """A batch in its stored form: an encoded batch frame and the count of its records."""

    record_count: int
    parts: tuple[bytes | memoryview, ...]
    """The bytes of the frame, in order; its header stands whole at the beginning of the first."""

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    @property
    def data(self) -> bytes | memoryview:
        """The frame in one piece: a copy where it has several parts."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


def build_batch(parts: Sequence[Rows]) -> pa.RecordBatch:
    """Make one batch of the rows of several requests, in their order."""
    columns = Columns.VALUE
    arrays: list[Any] = [_array(Columns.VALUE, _joined(parts, "values"))]
    for column, name in _OPTIONAL:
        if all(getattr(rows, name) is None for rows in parts):
            continue
        items = _joined(parts, name)
        # A column that nobody uses is left out, and so is one that only says "bytes".
        if column is Columns.CONTENT:
            needed = not set(items) <= {Content.BYTES}
        else:
            needed = any(item is not None for item in items)
        if needed:
            columns |= column
            arrays.append(_array(column, items))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


_OPTIONAL = (
    (Columns.KEY, "keys"),
    (Columns.HEADERS, "headers"),
    (Columns.EVENT_TIME, "event_times"),
    (Columns.CONTENT, "contents"),
    (Columns.FILTER_VALUE, "filter_values"),
)


def _array(column: Columns, items: list[Any]) -> Any:
    return pa.array(items, FIELDS[column].type)


def _joined(parts: Sequence[Rows], name: str) -> list[Any]:
    joined: list[Any] = []
    for rows in parts:
        column = getattr(rows, name)
        joined.extend(column if column is not None else [None] * len(rows.values))
    return joined


def encode_frames(
    batch: pa.RecordBatch, size_max: int, codec: Codec = Codec.NONE
) -> Iterator[Frame]:
    """Encode a batch as frames, split by rows until each has at most `size_max` bytes or one row."""
    # What a slice refers to is counted, not what its parent holds.
    if batch.num_rows > 1 and batch.nbytes > size_max:
        yield from _halves(batch, size_max, codec)
        return
    data = encode_frame(batch, codec)
    if batch.num_rows > 1 and len(data) > size_max:
        yield from _halves(batch, size_max, codec)
    else:
        yield Frame(batch.num_rows, (data,))


def _halves(batch: pa.RecordBatch, size_max: int, codec: Codec) -> Iterator[Frame]:
    middle = batch.num_rows // 2
    yield from encode_frames(batch.slice(0, middle), size_max, codec)
    yield from encode_frames(batch.slice(middle), size_max, codec)


def slices_of(batch: pa.RecordBatch, *, record_count: int, size: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces of at most `record_count` records and about `size` bytes.

    Each piece has at least one record, however large.
    """
    fitting = batch.num_rows * size // max(batch.nbytes, 1)
    step = max(1, min(record_count, fitting))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)
