"""A page: exactly the records that were asked for, cut out of whole chunks.

Rows stay in Arrow until the answer is rendered; what is counted against `size_max` is
what users sent (values, keys, headers, filter values), not the bytes of our formats.

On the record's path: after ../fragments.py or ../tail.py read the chunks, before
rendering.py makes them an answer.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import corrupt
from bottomless.formats.chunk import batches_of
from bottomless.model.chunk import ChunkHeader, ChunkKind
from bottomless.model.manifest import GapReason
from bottomless_server.reader.core.arrow_schema import Rows
from bottomless_server.reader.core.scan import Scan


class Gap(NamedTuple):
    """Offsets that no data will ever be found for."""

    first_offset: int
    next_offset: int
    reason: str = "none"
    """Why, as the fragment list says it."""


def gap_reason(reason: int) -> str:
    """A gap's reason by its name."""
    return GapReason(reason).name.lower().replace("_", "-")


class PageBuilder:
    """Takes chunks in order from `start` on, until it is full. Chunks may begin before `start`."""

    def __init__(
        self,
        start: int,
        limit: int,
        size_max: int,
        until: int | None = None,
        *,
        answer_limit: int | None = None,
    ) -> None:
        """`answer_limit`: records of this page and all that follow it, where that has an end."""
        self.start = start
        self.position = start
        """Where this reader continues."""
        self.rows: list[Rows] = []
        self.gaps: list[Gap] = []
        self.count = 0
        self.size = 0
        self.chunks: list[memoryview] = []
        """What a page of whole chunks is made of."""
        self._held: dict[int, int] = {}
        self._limit = limit
        self._size_max = size_max
        self._until = until
        self._full = False
        self._answer_limit = answer_limit
        self.scan: Scan | None = None
        """What is looked at under a filter; None where there is no filter."""
        self.first_timestamp: int | None = None
        """When the record at the start was committed; None before it was looked at."""

    @property
    def spent(self) -> bool:
        """The page ends although more may belong to it: it has looked at as much as it may."""
        return False

    @property
    def advanced(self) -> bool:
        """The page can be answered as it is, and the reader comes further by it."""
        return self.count > 0

    @property
    def lasting(self) -> bool:
        """Whatever comes, the same request gets this page."""
        return self.full

    @property
    def wanted_size(self) -> int:
        """Bytes of chunks to ask for next."""
        return self.size_left

    @property
    def held_size(self) -> int:
        """Bytes of what was read that stay in memory as long as views of it are in the page."""
        return sum(self._held.values())

    @property
    def full(self) -> bool:
        """Nothing more may be added."""
        ended = self._until is not None and self.position >= self._until
        return self._full or ended or self.count >= self._limit

    @property
    def count_left(self) -> int:
        return self._limit - self.count

    @property
    def size_left(self) -> int:
        """Bytes that are still wanted; at least 1 while the page is not full."""
        return max(self._size_max - self.size, 1)

    @property
    def end(self) -> int:
        """No record at or beyond this offset can be in the page, short of a gap."""
        ends = self.position + self.count_left
        return ends if self._until is None else min(ends, self._until)

    @property
    def reads_to(self) -> int | None:
        """The reader wants no record at or beyond this offset, short of a gap, if it said so. A
        page's `limit` says nothing of it: the next page goes on."""
        if self._answer_limit is None:
            return self._until
        ends = self.position + self._answer_limit - self.count
        return ends if self._until is None else min(ends, self._until)

    def skip(self, gap: Gap) -> None:
        """Go on after a gap that begins at or before the position."""
        assert gap.first_offset <= self.position < gap.next_offset
        assert not self.full
        self.gaps.append(gap)
        self.position = gap.next_offset

    def add(self, header: ChunkHeader, chunk: memoryview) -> None:
        """Add what the page wants of one verified chunk.

        Raises:
            Corrupt: its batches are damaged, or it does not hold the records it should.
        """
        if self.full or header.next_offset <= self.position:
            return
        if header.first_offset > self.position:
            raise corrupt("chunk", "records between it and the one before it are missing")
        if header.kind is ChunkKind.HOLE:
            self.skip(Gap(header.first_offset, header.next_offset))
            return
        batches = decode_frames(batches_of(header, chunk), verified=True)
        if sum(batch.num_rows for batch in batches) != header.record_count:
            raise corrupt("chunk", "its record count is not that of its batches")
        self._hold(chunk)
        if self.position == self.start:
            self.first_timestamp = header.timestamp
        first = header.first_offset
        for batch in batches:
            if self.full:
                return
            self._add_batch(first, header.timestamp, batch)
            first += batch.num_rows

    def _hold(self, chunk: memoryview) -> None:
        self._held[id(chunk.obj)] = memoryview(chunk.obj).nbytes

    def _add_batch(self, first: int, timestamp: int, batch: pa.RecordBatch) -> None:
        skipped = max(self.position - first, 0)
        if skipped >= batch.num_rows:
            return
        wanted = min(batch.num_rows - skipped, self.count_left)
        if self._until is not None:
            wanted = min(wanted, self._until - self.position)
        rows = batch.slice(skipped, wanted)
        ends = record_ends(rows)
        fitting = int(np.searchsorted(ends, self._size_max - self.size, side="right"))
        if fitting < wanted:
            self._full = True
            # Soft: a page that would be empty takes one record, whatever its size.
            fitting = max(fitting, 0 if self.count else 1)
        if fitting == 0:
            return
        self.rows.append(Rows(self.position, timestamp, rows.slice(0, fitting)))
        self.size += int(ends[fitting - 1])
        self.count += fitting
        self.position += fitting


class ChunkPageBuilder(PageBuilder):
    """Takes chunks whole: the first and the last may stick out of what was asked for."""

    def add(self, header: ChunkHeader, chunk: memoryview) -> None:
        """Add one verified chunk, if it fits or is the first.

        Raises:
            Corrupt: it does not follow the one before.
        """
        if self.full or header.next_offset <= self.position:
            return
        if header.first_offset > self.position:
            raise corrupt("chunk", "records between it and the one before it are missing")
        if self.chunks and self.size + len(chunk) > self._size_max:
            self._full = True
            return
        if header.kind is ChunkKind.HOLE:
            self.gaps.append(Gap(header.first_offset, header.next_offset))
        self._hold(chunk)
        self.chunks.append(chunk)
        self.size += len(chunk)
        self.count += header.next_offset - self.position
        self.position = header.next_offset


def record_ends(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of users' data up to and including each record, without a loop over records."""
    ends = np.zeros(batch.num_rows, dtype=np.int64)
    for name in ("value", "key", "filter_value"):
        if name in batch.schema.names:
            offsets = _offsets(batch.column(name))
            ends += offsets[1:] - offsets[0]
    if "headers" in batch.schema.names:
        headers: Any = batch.column("headers")
        places = _offsets(headers)
        for part in (headers.keys, headers.items):
            # keys and items are whole child arrays, whatever slice of the maps this is.
            offsets = _offsets(part)[places]
            ends += offsets[1:] - offsets[0]
    return ends


def _offsets(array: Any) -> NDArray[np.int64]:
    """The array's own offset buffer, where the slice that it is begins and ends."""
    raw = np.frombuffer(array.buffers()[1], dtype=np.int32)
    return raw[array.offset : array.offset + len(array) + 1].astype(np.int64)
