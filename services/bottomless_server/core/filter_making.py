"""Make the filters of a fragment of its chunks, one after the other. Pure.

Only frames that have the column are looked into. Their values are dictionary-encoded by Arrow, so
that each different value of a chunk is hashed once, however many records have it.

On the record's path: after services/bottomless_server/uploader/core/epochs.py, before
shared/bottomless/formats/fragment.py.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from bottomless.formats.batch import FIELDS, decode_message, split_frames
from bottomless.formats.chunk import batches_of, split_chunks
from bottomless.formats.filter import (
    BLOCK_SIZE,
    VALUES_OF_A_BLOCK_MAX,
    Blocks,
    Hashes,
    block_count_for,
    build,
    hash_values,
    no_blocks,
)
from bottomless.formats.fragment_filters import (
    BLOCK_COUNTS_MAX,
    FILTER_COLUMNS,
    LINE_DTYPE,
    FilterTable,
    no_lines,
)
from bottomless.model.chunk import ChunkHeader, ChunkKind
from bottomless.model.config import FilterConfig
from bottomless.model.fragment import Presence
from bottomless.model.record import Columns

_SHARE: Final = 16
"""Filters of chunks take no more than one part in so many of the data."""
_CACHE_COUNT_MAX: Final = 8_192
_CACHE_VALUE_SIZE_MAX: Final = 256
"""Hashes of short values that a fragment has in many chunks: a few MiB at most."""


def indexed_columns(config: FilterConfig) -> Columns:
    """Tell which columns of a stream are to have filters."""
    match config.index:
        case "values":
            return Columns.FILTER_VALUE
        case "values-and-keys":
            return Columns.FILTER_VALUE | Columns.KEY
        case _:
            return Columns(0)


class ChunkValues(NamedTuple):
    """The values of one column in one chunk."""

    presence: Presence
    """Both bits are 0 of a chunk without records."""
    distinct: list[bytes]


def values_of(
    header: ChunkHeader, chunk: memoryview, columns: Columns
) -> dict[Columns, ChunkValues]:
    """Find the different values of some columns in a whole chunk.

    Raises:
        Corrupt: it is damaged.
    """
    arrays: dict[Columns, list[Any]] = {one: [] for one in FILTER_COLUMNS if one in columns}
    lacking: set[Columns] = set()
    if header.kind is ChunkKind.DATA:
        for frame, stored in split_frames(batches_of(header, chunk)):
            batch = decode_message(frame, stored) if frame.columns & columns else None
            for column, found in arrays.items():
                if batch is not None and column in frame.columns:
                    # Cast before they are put together: texts and bytes are then of one type.
                    found.append(batch.column(FIELDS[column].name).cast(pa.binary()))
                else:
                    lacking.add(column)
    return {one: _values_of(found, one in lacking) for one, found in arrays.items()}


def _values_of(arrays: list[Any], lacking: bool) -> ChunkValues:
    whole = pa.chunked_array(arrays, pa.binary())
    presence = Presence(0)
    if lacking or whole.null_count:
        presence |= Presence.NONE
    if len(whole) > whole.null_count:
        presence |= Presence.SOME
    values = whole.unique().to_pylist() if Presence.SOME in presence else []
    return ChunkValues(presence, [value for value in values if value is not None])


def make_filters(
    data: Iterable[bytes | memoryview], data_size: int, config: FilterConfig
) -> tuple[FilterTable, ...]:
    """Make the filters of whole chunks that are in memory; none where the stream asks for none.

    Raises:
        Corrupt: a chunk is damaged.
    """
    making = FilterMaking(config, data_size)
    if making.wanted:
        for run in data:
            for header, chunk in split_chunks(run):
                making.take(header, chunk)
    return making.tables()


class FilterMaking:
    """Filters of one fragment while its chunks are gone through. Memory is bounded by what the
    filters may take, and by the different values of one chunk.
    """

    def __init__(self, config: FilterConfig, data_size: int) -> None:
        """`data_size` is of all chunks, in bytes."""
        columns = indexed_columns(config)
        self._makings = {
            column: _ColumnMaking(column, config.max_bytes // BLOCK_SIZE, data_size)
            for column in FILTER_COLUMNS
            if column in columns
        }
        self._columns = columns

    @property
    def wanted(self) -> bool:
        """Whether chunks have to be gone through at all."""
        return bool(self._makings)

    def take(self, header: ChunkHeader, chunk: memoryview) -> None:
        """Go through the next chunk.

        Raises:
            Corrupt: it is damaged.
        """
        for column, values in values_of(header, chunk, self._columns).items():
            self._makings[column].take(values)

    def tables(self) -> tuple[FilterTable, ...]:
        """The filters of all chunks that were taken; none where they have no record."""
        made = [making.table() for making in self._makings.values()]
        return tuple(table for table in made if table is not None)


class _ColumnMaking:
    def __init__(self, column: Columns, chunk_block_count_max: int, data_size: int) -> None:
        self._column = column
        self._chunk_block_count_max = chunk_block_count_max
        self._room = data_size // _SHARE
        """Bytes that filters of chunks may still take; below 0 there are none."""
        self._hash_count_max = VALUES_OF_A_BLOCK_MAX * BLOCK_COUNTS_MAX[column]
        self._presence = Presence(0)
        self._hashes: Hashes | None = hash_values([])
        """Hashes of the different values so far, or None once they are too many."""
        self._lines: list[tuple[int, int, int]] = []
        self._blocks: list[Blocks] = []
        self._block_count = 0
        self._cache: dict[bytes, int] = {}

    def take(self, values: ChunkValues) -> None:
        """Take the values of the next chunk."""
        self._presence |= values.presence
        self._note(values.presence, self._hashed(values.distinct))

    def _hashed(self, distinct: list[bytes]) -> Hashes | None:
        """Hashes of the different values of a chunk; None where no filter could hold them."""
        of_chunk = VALUES_OF_A_BLOCK_MAX * self._chunk_block_count_max if self._room >= 0 else 0
        of_fragment = self._hash_count_max if self._hashes is not None else 0
        if len(distinct) > max(of_chunk, of_fragment):
            self._hashes = None
            return None
        hashes = _hashes_of(distinct, self._cache)
        if self._hashes is not None:
            # Sorted and without repeats, so that it grows by new values alone.
            known = np.union1d(self._hashes, hashes)
            self._hashes = known if len(known) <= self._hash_count_max else None
        return hashes

    def _note(self, presence: Presence, hashes: Hashes | None) -> None:
        self._room -= LINE_DTYPE.itemsize
        count = 0 if hashes is None else block_count_for(len(hashes), self._chunk_block_count_max)
        self._room -= count * BLOCK_SIZE
        if self._room < 0:
            self._lines, self._blocks, self._block_count = [], [], 0
            return
        if count and hashes is not None:
            self._blocks.append(build(hashes, count))
        self._lines.append((self._block_count if count else 0, count, presence))
        self._block_count += count

    def table(self) -> FilterTable | None:
        if not self._presence:
            return None
        hashes = self._hashes
        count = 0
        if hashes is not None:
            count = block_count_for(len(hashes), BLOCK_COUNTS_MAX[self._column])
        lines = no_lines()
        # The line of a chunk is 8 bytes, and all of them together are padded.
        if self._room >= BLOCK_SIZE:
            lines = np.zeros(len(self._lines), LINE_DTYPE)
            rows = np.array(self._lines, dtype=np.int64).reshape(-1, 3)
            lines["first_block"], lines["blocks"], lines["presence"] = rows.T
        blocks = self._blocks if len(lines) else []
        return FilterTable(
            self._column,
            self._presence,
            build(hashes, count) if hashes is not None and count else no_blocks(),
            lines,
            np.concatenate(blocks) if blocks else no_blocks(),
            0 if hashes is None else len(hashes),
        )


def _hashes_of(values: list[bytes], cache: dict[bytes, int]) -> Hashes:
    """Hashes of different values, those of short ones from the cache of their fragment."""
    new = [value for value in values if value not in cache]
    fresh: Mapping[bytes, int] = dict(zip(new, hash_values(new).tolist(), strict=True))
    for value, hash_ in fresh.items():
        if len(cache) >= _CACHE_COUNT_MAX:
            break
        if len(value) <= _CACHE_VALUE_SIZE_MAX:
            cache[value] = hash_
    known = [fresh[value] if value in fresh else cache[value] for value in values]
    return np.array(known, dtype=np.uint64)
