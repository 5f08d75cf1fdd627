"""Arrow batches of stored columns to Arrow batches as Spark wants them. Pure.

Spark checks types exactly, so every batch is fitted to the schema of the DataFrame: columns that a
batch does not store are filled, `offset` and `timestamp` are made from the chunk's header, and
nothing is done record by record. Values stay where they are: a fitted batch views the bytes that
were read.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bottomless.formats.filter import AskedHashes, asked_by
from bottomless.model.filter import Filter, asked_for
from bottomless.model.limits import MIB
from bottomless.spark.json_values import parse_json
from bottomless.spark.options import PARTITION_COLUMN

JSON_COLUMN: Final = "json"
"""The column into which members of JSON values are put."""
BATCH_ROW_COUNT_MAX: Final = 50_000
BATCH_SIZE_MAX: Final = 8 * MIB
"""Bytes of a batch: bounds what the worker holds and what the JVM has to take at once."""
BATCH_ROW_COUNT_WANTED: Final = 10_000
"""Larger batches go through as they are; smaller ones are joined, which copies them."""


class RowShape:
    """The columns of a DataFrame, and how stored batches are fitted to them."""

    def __init__(
        self,
        schema: pa.Schema,
        wanted: Filter | None = None,
        *,
        bad_json_fails: bool = False,
        partition: int | None = None,
    ) -> None:
        """`wanted` says which records are kept; None keeps all. `partition` is what the column of
        this name holds."""
        self._partition = partition
        self._schema = schema
        self._bad_json_fails = bad_json_fails
        self.wanted: Final = wanted
        self.asked: AskedHashes | None = None if wanted is None else asked_by(wanted)
        """What is wanted, as filters of fragments know it: they say where it is not."""

    def of_chunk(self, stored: pa.RecordBatch, first_offset: int, timestamp: int) -> pa.RecordBatch:
        """Fit a batch of a chunk.

        `first_offset` and `timestamp` (ms) are those of the chunk's header.
        """
        return self._chosen(stored, self._fit(stored, first_offset, timestamp))

    @property
    def is_in_index(self) -> bool:
        """Whether a fragment's index has all that is wanted, so that no record need be read."""
        known = {"offset", "timestamp", PARTITION_COLUMN}
        return self.wanted is None and known.issuperset(self._schema.names)

    def of_index(self, first_offset: int, timestamps: NDArray[np.int64]) -> pa.RecordBatch:
        """Make a row for each of the times in ms; for a shape that `is_in_index`."""
        made = {
            "offset": lambda: _counting(first_offset, len(timestamps)),
            "timestamp": lambda: _times(timestamps * 1000),
            PARTITION_COLUMN: lambda: self._partitions(len(timestamps)),
        }
        arrays = [made[name]() for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def of_page(self, page: pa.RecordBatch) -> pa.RecordBatch:
        """Fit a batch that has `offset` and `timestamp` columns, as the reader sends it."""
        return self._chosen(page, self._fit(page, None, None))

    def _chosen(self, source: pa.RecordBatch, fitted: pa.RecordBatch) -> pa.RecordBatch:
        """The records that are wanted; chosen at last, when offsets have been counted."""
        if self.wanted is None:
            return fitted
        mask: Any = asked_for(self.wanted, source)
        return fitted.filter(mask)

    def _partitions(self, count: int) -> "pa.Array[Any]":
        assert self._partition is not None, "a stream has no such column"
        return pa.array(np.full(count, self._partition, dtype=np.int32))

    def _fit(
        self, batch: pa.RecordBatch, first_offset: int | None, timestamp: int | None
    ) -> pa.RecordBatch:
        names = frozenset(batch.schema.names)
        arrays = []
        for field in self._schema:
            if field.name == "offset" and first_offset is not None:
                arrays.append(_counting(first_offset, batch.num_rows))
            elif field.name == "timestamp" and timestamp is not None:
                arrays.append(_constant_time(timestamp, batch.num_rows))
            elif field.name == PARTITION_COLUMN:
                arrays.append(self._partitions(batch.num_rows))
            elif field.name == JSON_COLUMN:
                values = batch.column("value")
                arrays.append(parse_json(values, field.type, strict=self._bad_json_fails))
            elif field.name in names:
                arrays.append(_cast(batch.column(field.name), field.type))
            else:
                arrays.append(_absent(field, batch.num_rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _counting(first: int, count: int) -> "pa.Array[Any]":
    return pa.array(np.arange(first, first + count, dtype=np.int64))


def _constant_time(timestamp: int, count: int) -> "pa.Array[Any]":
    return _times(np.full(count, timestamp * 1000, dtype=np.int64))


def _times(microseconds: NDArray[np.int64]) -> "pa.Array[Any]":
    kind = pa.timestamp("us", tz="UTC")
    return pa.Array.from_buffers(kind, len(microseconds), [None, pa.py_buffer(microseconds.data)])


def _cast(array: "pa.Array[Any]", wanted: pa.DataType) -> "pa.Array[Any]":
    fitted: pa.Array[Any] = array if array.type.equals(wanted) else array.cast(wanted)
    return fitted


def _absent(field: Any, count: int) -> "pa.Array[Any]":
    if field.name == "content":
        # A batch without the column holds plain bytes, which is 0.
        return pa.array(np.zeros(count, dtype=np.int8))
    nulls: pa.Array[Any] = pa.nulls(count, field.type)
    return nulls


def bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut and join batches, in order, so that none is too large or needlessly small."""
    held: list[pa.RecordBatch] = []
    row_count = size = 0
    for batch in batches:
        for piece in _halved(batch):
            full = (
                row_count + piece.num_rows > BATCH_ROW_COUNT_MAX
                or size + piece.nbytes > BATCH_SIZE_MAX
            )
            if held and (full or piece.num_rows >= BATCH_ROW_COUNT_WANTED):
                yield _joined(held)
                held, row_count, size = [], 0, 0
            held.append(piece)
            row_count += piece.num_rows
            size += piece.nbytes
    if held:
        yield _joined(held)


def _halved(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # Halves rather than equal cuts: sizes of records differ, and a half that still is
    # too large is halved again. Slices are views.
    if batch.num_rows > BATCH_ROW_COUNT_MAX or (
        batch.nbytes > BATCH_SIZE_MAX and batch.num_rows > 1
    ):
        middle = batch.num_rows // 2
        yield from _halved(batch.slice(0, middle))
        yield from _halved(batch.slice(middle))
    elif batch.num_rows:
        yield batch


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    joined: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined]
    return joined
