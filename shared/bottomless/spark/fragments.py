"""Read a slice of a fragment from its object, without the services.

One ranged read brings index and footer, which say where each chunk lies; then
chunks come in ranges of some MiB, are verified, and become Arrow batches that view the
bytes as they were read.

On the record's path: after shared/bottomless/spark/plan.py, before
shared/bottomless/spark/rows.py.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from bottomless.errors import Corrupt
from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import check
from bottomless.formats.chunk import batches_of, decode_header, verify_body
from bottomless.formats.fragment import FragmentIndex, decode_index
from bottomless.model.chunk import ChunkHeader, ChunkKind, ChunkPlace
from bottomless.model.limits import MIB
from bottomless.spark.plan import Slice, Stored
from bottomless.spark.rows import RowShape
from bottomless.spark.store import Objects

RANGE_SIZE: Final = 8 * MIB
"""Bytes of one read: large enough for an object store, small enough for a worker's memory."""


class Placed(NamedTuple):
    """A batch, and the offset after its last record."""

    rows: pa.RecordBatch
    next_offset: int


def read_slice(
    objects: Objects, piece: Slice, shape: RowShape, *, verify: bool = True
) -> Iterator[Placed]:
    """Every record of the slice, in order, clipped exactly.

    `verify` checks whole chunks; the batches in them are always checked against their own
    checksums. What comes damaged or cut short is read once more, since that can have
    happened on the way.

    Raises:
        NotFound: `data-missing`, the object is gone; what came before was good.
        Unavailable: the store does not give it; what came before was good.
        Corrupt: the object is not what the manifest or its checksums say.
    """
    index = _load_index(objects, piece.fragment)
    number = index.at_offset(piece.first_offset)
    end = index.at_offset(piece.next_offset - 1) + 1
    while number < end:
        following = _end_of_range(index, number, end)
        first, last = index.place(number), index.place(following - 1)
        offset = piece.first_offset
        try:
            for placed in _read_range(objects, piece, first, last, shape, verify=verify):
                offset = placed.next_offset
                yield placed
        except Corrupt:
            rest = piece._replace(first_offset=offset)
            yield from _read_range(objects, rest, first, last, shape, verify=verify)
        number = following


def _load_index(objects: Objects, fragment: Stored) -> FragmentIndex:
    def load() -> FragmentIndex:
        size = fragment.size - fragment.index_position
        data = objects.read(fragment, fragment.index_position, size)
        check("fragment", len(data) == size, "its object is cut short")
        return decode_index(data)

    try:
        index = load()
    except Corrupt:
        index = load()
    first, last = index.place(0), index.place(len(index) - 1)
    check(
        "fragment index",
        (first.first_offset, last.next_offset) == (fragment.first_offset, fragment.next_offset),
        "its offsets are not those of the manifest",
    )
    return index


def _end_of_range(index: FragmentIndex, number: int, end: int) -> int:
    """Number after the last chunk that still fits into one read; a large chunk goes alone."""
    records = index.records[number:end]
    sizes = np.cumsum(records["size"], dtype=np.uint64)
    return number + max(1, int(np.searchsorted(sizes, np.uint64(RANGE_SIZE), side="right")))


def _read_range(
    objects: Objects,
    piece: Slice,
    first: ChunkPlace,
    last: ChunkPlace,
    shape: RowShape,
    *,
    verify: bool,
) -> Iterator[Placed]:
    """Records of the slice that lie in the chunks from `first` to `last`, by one read."""
    size = last.position + last.size - first.position
    data = memoryview(objects.read(piece.fragment, first.position, size))
    check("fragment", len(data) == size, "its object is cut short")
    position, expected = 0, first.first_offset
    while position < size:
        header = decode_header(data, position)
        check("fragment", header.first_offset == expected, "its chunks are not those of its index")
        expected = header.next_offset
        chunk = data[position : position + header.total_size]
        position += header.total_size
        # Once more after damage: chunks before it were good and have been handed on.
        if header.kind is ChunkKind.DATA and header.next_offset > piece.first_offset:
            if verify:
                verify_body(header, chunk)
            yield from _rows(header, chunk, piece, shape)
    check("fragment", expected == last.next_offset, "its chunks are not those of its index")


def _rows(
    header: ChunkHeader, chunk: memoryview, piece: Slice, shape: RowShape
) -> Iterator[Placed]:
    offset = header.first_offset
    for batch in decode_frames(batches_of(header, chunk)):
        start = max(0, piece.first_offset - offset)
        stop = min(batch.num_rows, piece.next_offset - offset)
        if start < stop:
            rows = shape.of_chunk(
                batch.slice(start, stop - start), offset + start, header.timestamp
            )
            yield Placed(rows, offset + stop)
        offset += batch.num_rows
    check("chunk", offset == header.next_offset, "its batches do not hold its records")
