"""Read a slice of a fragment from its object, without the services.

One ranged read brings index and footer, which say where each chunk lies; then
chunks come in ranges of some MiB, are verified, and become Arrow batches that view the
bytes as they were read.

On the record's path: after shared/bottomless/spark/plan.py, before
shared/bottomless/spark/rows.py.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from bottomless.errors import Corrupt
from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import check
from bottomless.formats.chunk import batches_of, decode_header, verify_body
from bottomless.formats.fragment import FragmentIndex, decode_index, decode_stored_filters
from bottomless.formats.fragment_filters import FilterTable, chunks_to_read
from bottomless.model.chunk import ChunkHeader, ChunkKind, ChunkPlace
from bottomless.model.fragment import FragmentFooter
from bottomless.spark.options import OnCorrupt, Reading
from bottomless.spark.plan import Slice, Stored
from bottomless.spark.prefetch import prefetched
from bottomless.spark.rows import BATCH_ROW_COUNT_MAX, RowShape
from bottomless.spark.store import Objects

_log: Final = logging.getLogger(__name__)

LEFT_OUT_SIZE_MIN: Final = 128 * 1024
"""Bytes between chunks that are wanted, from which on a request is spent to leave them unread."""


class Placed(NamedTuple):
    """A batch, and the offset after its last record."""

    rows: pa.RecordBatch
    next_offset: int


def read_slice(
    objects: Objects,
    piece: Slice,
    shape: RowShape,
    reading: Reading = Reading(),  # noqa: B008  # frozen
    skipped: Callable[[int], None] | None = None,
    left_out: Callable[[int], None] | None = None,
) -> Iterator[Placed]:
    """Read every record of the slice that the shape wants, in order, clipped exactly.

    Chunks that hold none of them by the fragment's own filters are not read; then `left_out` is
    called with their bytes. Where offsets and times are all that is wanted, they come from the index,
    and no chunk is read.
    `reading` says how to read chunks: whole chunks are checked, or the batches in them against
    checksums of their own. What arrives damaged or cut short is read once more, since that can have
    happened on the way. Chunks that are damaged again may be left out; then `skipped` is called
    with the count of their records.

    Raises:
        NotFound: `data-missing`, the object is gone; what was given before is good.
        Unavailable: the store does not give it; what was given before is good.
        Corrupt: the object is not what the manifest or its checksums say.
    """
    skips = reading.on_corrupt is OnCorrupt.SKIP
    try:
        index = _load_index(objects, piece.fragment)
    except Corrupt:
        if not skips:
            raise
        _skip(piece.first_offset, piece.next_offset, skipped)
        return
    if shape.is_in_index and not index.records["reserved"].any():
        yield from _rows_of_index(index, piece, shape)
        return
    runs = _runs(objects, piece, index, shape, skips=skips)
    if left_out is not None:
        left_out(_left_out_size(index, piece, runs))
    spans = [span for start, end in runs for span in _spans(index, start, end, reading.range_size)]
    fetched = prefetched((_fetch(objects, piece, span) for span in spans), reading.prefetch)
    for span, data in zip(spans, fetched, strict=True):
        offset = max(piece.first_offset, span.first.first_offset)
        try:
            for placed in _decode(data, piece, span, shape, verify=reading.verify_checksums):
                offset = placed.next_offset
                yield placed
        except Corrupt:
            rest = piece._replace(first_offset=offset)
            if skips:
                yield from _good_chunks(objects, rest, index, span, shape, skipped)
            else:
                again = _fetch(objects, rest, span)()
                yield from _decode(again, rest, span, shape, verify=reading.verify_checksums)


def _runs(
    objects: Objects, piece: Slice, index: FragmentIndex, shape: RowShape, *, skips: bool
) -> list[tuple[int, int]]:
    """The chunks of a slice that may hold what is wanted, as runs of their numbers, each without its
    end; what lies between two of them is not worth a request of its own, or is left unread.

    Raises:
        Corrupt: the fragment's filters are damaged, where that is not to be passed over.
    """
    start, end = index.at_offset(piece.first_offset), index.at_offset(piece.next_offset - 1) + 1
    if shape.asked is None or not index.footer.filters_size:
        return [(start, end)]
    try:
        tables = _load_filters(objects, piece.fragment, index.footer)
    except Corrupt:
        if not skips:
            raise
        # Filters only say what need not be read.
        return [(start, end)]
    wanted = np.flatnonzero(chunks_to_read(tables, len(index), shape.asked)[start:end]) + start
    if not len(wanted):
        return []
    sizes = np.concatenate([[0], np.cumsum(index.records["size"], dtype=np.int64)])
    between = sizes[wanted[1:]] - sizes[wanted[:-1] + 1]
    cuts = np.flatnonzero(between > LEFT_OUT_SIZE_MIN)
    firsts, lasts = np.append(wanted[:1], wanted[cuts + 1]), np.append(wanted[cuts], wanted[-1:])
    return [(int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)]


def _left_out_size(index: FragmentIndex, piece: Slice, runs: Sequence[tuple[int, int]]) -> int:
    """Bytes of the chunks of a slice that lie in none of these runs."""
    sizes = index.records["size"].astype(np.int64)
    start, end = index.at_offset(piece.first_offset), index.at_offset(piece.next_offset - 1) + 1
    return int(sizes[start:end].sum()) - sum(int(sizes[a:b].sum()) for a, b in runs)


def _rows_of_index(index: FragmentIndex, piece: Slice, shape: RowShape) -> Iterator[Placed]:
    """Offsets and times of a slice: offsets are dense, and all records of a chunk have its time."""
    offset = piece.first_offset
    while offset < piece.next_offset:
        end = min(piece.next_offset, offset + BATCH_ROW_COUNT_MAX)
        chunks = index.records[index.at_offset(offset) : index.at_offset(end - 1) + 1]
        bounds = np.append(chunks["first_offset"], np.uint64(end))
        bounds[0] = offset
        times = np.repeat(chunks["timestamp"], np.diff(bounds).astype(np.int64))
        yield Placed(shape.of_index(offset, times), end)
        offset = end


class _Span(NamedTuple):
    """Chunks that one read brings."""

    first: ChunkPlace
    last: ChunkPlace
    first_number: int
    next_number: int

    @property
    def size(self) -> int:
        return self.last.position + self.last.size - self.first.position


def _span(index: FragmentIndex, number: int, following: int) -> _Span:
    return _Span(index.place(number), index.place(following - 1), number, following)


def _spans(index: FragmentIndex, number: int, end: int, range_size: int) -> list[_Span]:
    """As many chunks a read as fit into a range; a large chunk goes alone."""
    spans = []
    while number < end:
        sizes = np.cumsum(index.records[number:end]["size"], dtype=np.uint64)
        fitting = int(np.searchsorted(sizes, np.uint64(range_size), side="right"))
        spans.append(_span(index, number, number + max(1, fitting)))
        number = spans[-1].next_number
    return spans


def _fetch(objects: Objects, piece: Slice, span: _Span) -> Callable[[], bytes]:
    return lambda: objects.read(piece.fragment, span.first.position, span.size)


def _good_chunks(
    objects: Objects,
    piece: Slice,
    index: FragmentIndex,
    span: _Span,
    shape: RowShape,
    skipped: Callable[[int], None] | None,
) -> Iterator[Placed]:
    """Read the chunks of a damaged range again one by one, without those that stay damaged."""
    for number in range(span.first_number, span.next_number):
        one = _span(index, number, number + 1)
        first = max(piece.first_offset, one.first.first_offset)
        end = min(piece.next_offset, one.first.next_offset)
        if first >= end:
            continue
        rest = piece._replace(first_offset=first)
        try:
            data = _fetch(objects, rest, one)()
            # All of a chunk or nothing of it.
            good = list(_decode(data, rest, one, shape, verify=True))
        except Corrupt:
            _skip(first, end, skipped)
        else:
            yield from good


def _skip(first_offset: int, next_offset: int, skipped: Callable[[int], None] | None) -> None:
    _log.warning("skipped offsets %d to %d: damaged", first_offset, next_offset - 1)
    if skipped is not None:
        skipped(next_offset - first_offset)


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


def _load_filters(
    objects: Objects, fragment: Stored, footer: FragmentFooter
) -> tuple[FilterTable, ...]:
    def load() -> tuple[FilterTable, ...]:
        data = objects.read(fragment, footer.filters_position, footer.filters_size)
        return decode_stored_filters(data, footer)

    try:
        return load()
    except Corrupt:
        return load()


def _decode(
    given: bytes, piece: Slice, span: _Span, shape: RowShape, *, verify: bool
) -> Iterator[Placed]:
    """Records of the slice that lie in the chunks of a span, from the bytes that it was read as."""
    data = memoryview(given)
    check("fragment", len(data) == span.size, "its object is cut short")
    position, expected = 0, span.first.first_offset
    while position < len(data):
        header = decode_header(data, position)
        check("fragment", header.first_offset == expected, "its chunks are not those of its index")
        expected = header.next_offset
        chunk = data[position : position + header.total_size]
        position += header.total_size
        # Once more after damage: chunks before it were good and have been handed on.
        if header.kind is ChunkKind.DATA and header.next_offset > piece.first_offset:
            if verify:
                verify_body(header, chunk)
            yield from _rows(header, chunk, piece, shape, verified=verify)
    check("fragment", expected == span.last.next_offset, "its chunks are not those of its index")


def _rows(
    header: ChunkHeader, chunk: memoryview, piece: Slice, shape: RowShape, *, verified: bool
) -> Iterator[Placed]:
    offset = header.first_offset
    # Checksums are the dearest part of a scan, so no byte is summed twice.
    for batch in decode_frames(batches_of(header, chunk), verified=verified):
        start = max(0, piece.first_offset - offset)
        stop = min(batch.num_rows, piece.next_offset - offset)
        if start < stop:
            rows = shape.of_chunk(
                batch.slice(start, stop - start), offset + start, header.timestamp
            )
            yield Placed(rows, offset + stop)
        offset += batch.num_rows
    check("chunk", offset == header.next_offset, "its batches do not hold its records")
