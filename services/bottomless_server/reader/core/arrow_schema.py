"""The schema of Arrow answers, and how stored batches become a table of it.

What is stored has only the columns that its records needed; an answer has all of them, or those
that it was asked for, always.

On the record's path: after page.py cut the batches to the page, before rendering.py.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bottomless.model.limits import KIB


class Rows(NamedTuple):
    """Records of one stored batch, in its order: consecutive ones, unless a filter chose them."""

    first_offset: int
    timestamp: int
    batch: pa.RecordBatch
    offsets: NDArray[np.int64] | None = None
    """Offsets of the records, where they are not consecutive."""


_FIELDS: "list[pa.Field[Any]]" = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
    pa.field("value", pa.binary(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("headers", pa.map_(pa.utf8(), pa.binary())),
    pa.field("event_time", pa.timestamp("ms", tz="UTC")),
    pa.field("content", pa.uint8()),
    pa.field("filter_value", pa.utf8()),
]
SCHEMA = pa.schema(_FIELDS)
"""The schema of every Arrow answer: a reader may rely on it, whatever the stream holds."""
COLUMNS: Final = tuple(field.name for field in _FIELDS)
"""What a reader may ask for, in the order in which it comes."""


BATCH_SIZE_MIN: Final = 64 * KIB
"""A stored batch of this size stays as it is in a page's table; smaller neighbours are joined."""


def as_table(pages: Sequence[Rows], columns: tuple[str, ...] = COLUMNS) -> pa.Table:
    """The records in one table with these columns of SCHEMA; one that a batch lacks is null, content
    is 0.

    A large batch keeps its stored columns as they are, only offset and timestamp are new; small
    ones are copied together, since each batch of an answer costs a KiB and a look.
    """
    schema = _schema_of(columns)
    batches: list[pa.RecordBatch] = []
    small: list[pa.RecordBatch] = []
    for rows in pages:
        batch = _with_columns(rows, schema)
        if rows.batch.nbytes >= BATCH_SIZE_MIN:
            batches += _joined(small, schema)
            small = []
            batches.append(batch)
        else:
            small.append(batch)
    return pa.Table.from_batches([*batches, *_joined(small, schema)], schema=schema)


@lru_cache(maxsize=256)
def _schema_of(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([SCHEMA.field(name) for name in columns])


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    return pa.Table.from_batches(batches, schema=schema).combine_chunks().to_batches()


def _with_columns(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    columns = [_column(rows, name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(rows: Rows, name: str) -> "pa.Array[Any]":
    count = rows.batch.num_rows
    if name == "offset":
        if rows.offsets is not None:
            return pa.array(rows.offsets)
        return pa.array(np.arange(rows.first_offset, rows.first_offset + count, dtype=np.int64))
    if name == "timestamp":
        times = pa.array(np.full(count, rows.timestamp, dtype=np.int64))
        return times.view(SCHEMA.field("timestamp").type)
    if name in rows.batch.schema.names:
        return rows.batch.column(name)
    return _empty(name)[:count] if count <= _EMPTY_COUNT else _made_empty(name, count)


_EMPTY_COUNT: Final = 64 * 1024


@lru_cache(maxsize=len(_FIELDS))
def _empty(name: str) -> "pa.Array[Any]":
    """What stands for a column that a batch lacks: made once, since pages are full of it."""
    return _made_empty(name, _EMPTY_COUNT)


def _made_empty(name: str, count: int) -> "pa.Array[Any]":
    if name == "content":
        return pa.array(np.zeros(count, dtype=np.uint8))
    kind: Any = SCHEMA.field(name).type
    empty: pa.Array[Any]
    if name == "headers":
        # Arrow's own nulls have as many entries as maps, which are all sent, and with a slice
        # of them the entries of the whole.
        nowhere: list[pa.Buffer | None] = [
            pa.py_buffer(bytes(count // 8 + 1)),
            pa.py_buffer(bytes(4 * (count + 1))),
        ]
        fields: list[Any] = [kind.key_field, kind.item_field]
        entry = pa.struct(fields)
        empty = pa.Array.from_buffers(kind, count, nowhere, count, children=[pa.array([], entry)])
    else:
        empty = pa.nulls(count, kind)
    return empty
