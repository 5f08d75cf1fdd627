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

from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import check
from bottomless.formats.chunk import batches_of, decode_header, verify_body
from bottomless.formats.fragment import FragmentIndex, decode_index
from bottomless.model.chunk import ChunkKind
from bottomless.model.limits import MIB
from bottomless.spark.plan import Slice
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
    checksums.

    Raises:
        NotFound: `data-missing`, the object is gone; what came before was good.
        Corrupt: the object is not what the manifest or its checksums say.
    """
    object_key = piece.fragment.object_key
    assert object_key is not None
    index = _load_index(objects, object_key, piece)
    number = index.at_offset(piece.first_offset)
    end = index.at_offset(piece.next_offset - 1) + 1
    while number < end:
        following = _end_of_range(index, number, end)
        start, size = _span(index, number, following)
        data = memoryview(objects.read(object_key, start, size))
        check("fragment", len(data) == size, "its object is cut short")
        yield from _read_chunks(data, piece, shape, verify=verify)
        number = following


def _load_index(objects: Objects, object_key: str, piece: Slice) -> FragmentIndex:
    fragment = piece.fragment
    size = fragment.size - fragment.index_position
    index = decode_index(objects.read(object_key, fragment.index_position, size))
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


def _span(index: FragmentIndex, number: int, following: int) -> tuple[int, int]:
    first, last = index.place(number), index.place(following - 1)
    return first.position, last.position + last.size - first.position


def _read_chunks(
    data: memoryview, piece: Slice, shape: RowShape, *, verify: bool
) -> Iterator[Placed]:
    position = 0
    while position < len(data):
        header = decode_header(data, position)
        chunk = data[position : position + header.total_size]
        position += header.total_size
        if header.kind is not ChunkKind.DATA:
            continue
        if verify:
            verify_body(header, chunk)
        offset = header.first_offset
        for batch in decode_frames(batches_of(header, chunk)):
            start = max(0, piece.first_offset - offset)
            stop = min(batch.num_rows, piece.next_offset - offset)
            if start < stop:
                wanted = batch.slice(start, stop - start)
                rows = shape.of_chunk(wanted, offset + start, header.timestamp)
                yield Placed(rows, offset + stop)
            offset += batch.num_rows
        check("chunk", offset == header.next_offset, "its batches do not hold its records")
