"""The schema of Arrow answers, and how stored batches become a table of it.

What is stored has only the columns that its records needed; an answer has all of them, always.

On the record's path: after page.py cut the batches to the page, before rendering.py.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from bottomless.model.limits import KIB


class Rows(NamedTuple):
    """Consecutive records of one stored batch."""

    first_offset: int
    timestamp: int
    batch: pa.RecordBatch


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


BATCH_SIZE_MIN: Final = 64 * KIB
"""A stored batch of this size stays as it is in a page's table; smaller neighbours are joined."""


def as_table(pages: Sequence[Rows]) -> pa.Table:
    """The records in one table of SCHEMA; a column that a batch lacks is null, content is 0.

    A large batch keeps its stored columns as they are, only offset and timestamp are new; small
    ones are copied together, since each batch of an answer costs a KiB and a look.
    """
    batches: list[pa.RecordBatch] = []
    small: list[pa.RecordBatch] = []
    for rows in pages:
        batch = _with_all_columns(rows)
        if rows.batch.nbytes >= BATCH_SIZE_MIN:
            batches += _joined(small)
            small = []
            batches.append(batch)
        else:
            small.append(batch)
    return pa.Table.from_batches([*batches, *_joined(small)], schema=SCHEMA)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    return pa.Table.from_batches(batches, schema=SCHEMA).combine_chunks().to_batches()


def _with_all_columns(rows: Rows) -> pa.RecordBatch:
    count = rows.batch.num_rows
    offsets = np.arange(rows.first_offset, rows.first_offset + count, dtype=np.int64)
    times = np.full(count, rows.timestamp, dtype=np.int64)
    columns = [pa.array(offsets), pa.array(times).view(SCHEMA.field("timestamp").type)]
    for field in _FIELDS[2:]:
        if field.name in rows.batch.schema.names:
            columns.append(rows.batch.column(field.name))
        elif count <= _EMPTY_COUNT:
            columns.append(_empty(field.name)[:count])
        else:
            columns.append(_made_empty(field.name, count))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


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
