"""A page with a filter: of the chunks that it is given, the records that are asked for.

Offsets are no counts here: after a page the reader goes on after all that was looked at, which may be
far beyond the last record that it got.

On the record's path: instead of page.py, for a reader that asks with a filter.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bottomless.formats.batch import FrameHeader, decode_message, split_frames
from bottomless.formats.checks import corrupt
from bottomless.formats.chunk import batches_of
from bottomless.model.chunk import ChunkHeader, ChunkKind
from bottomless.model.filter import asked_for
from bottomless.model.limits import OFFSET_MAX
from bottomless_server.reader.core.arrow_schema import Rows
from bottomless_server.reader.core.page import ChunkPageBuilder, Gap, PageBuilder, record_ends
from bottomless_server.reader.core.scan import Scan


class FilteredPageBuilder(PageBuilder):
    """Takes chunks in order, and of each the records that are asked for."""

    def __init__(
        self, start: int, limit: int, size_max: int, until: int | None, scan: Scan
    ) -> None:
        super().__init__(start, limit, size_max, until)
        self.scan: Scan = scan

    @property
    def spent(self) -> bool:
        return self.scan.spent

    @property
    def advanced(self) -> bool:
        return self.position > self.start

    @property
    def wanted_size(self) -> int:
        return self.scan.step(self.size_left)

    @property
    def end(self) -> int:
        return OFFSET_MAX + 1 if self._until is None else self._until

    @property
    def reads_to(self) -> int | None:
        return self._until

    @property
    def lasting(self) -> bool:
        # Where it ended by a bound, another setting or another moment would end it elsewhere.
        return self.count >= self._limit

    def pass_over(self, next_offset: int, size: int, fragment_count: int) -> None:
        """Go on after what cannot hold a record that is asked for, and was not read."""
        assert not self.full
        assert next_offset > self.position
        self.scan.leave_out(size, fragment_count)
        self.position = next_offset if self._until is None else min(next_offset, self._until)

    def add(self, header: ChunkHeader, chunk: memoryview) -> None:
        """Add of one verified chunk what is asked for.

        Raises:
            Corrupt: its batches are damaged, or it does not hold the records it should.
        """
        frames = self._frames(header, chunk)
        if frames is None:
            return
        self.scan.look_at(len(chunk))
        if self.position == self.start:
            self.first_timestamp = header.timestamp
        first = header.first_offset
        for frame, stored in frames:
            ends = min(first + frame.record_count, self.end)
            if ends > self.position:
                self._take(first, ends, header.timestamp, (frame, stored))
            if self.full:
                return
            first += frame.record_count

    def _frames(
        self, header: ChunkHeader, chunk: memoryview
    ) -> list[tuple[FrameHeader, memoryview]] | None:
        """The frames of a chunk that is to be looked at; None if it is not."""
        if self.full or self.spent or header.next_offset <= self.position:
            return None
        if header.first_offset > self.position:
            raise corrupt("chunk", "records between it and the one before it are missing")
        if header.kind is ChunkKind.HOLE:
            self.skip(Gap(header.first_offset, header.next_offset))
            return None
        frames = list(split_frames(batches_of(header, chunk)))
        if sum(frame.record_count for frame, _ in frames) != header.record_count:
            raise corrupt("chunk", "its record count is not that of its batches")
        return frames

    def _take(
        self, first: int, ends: int, timestamp: int, found: tuple[FrameHeader, memoryview]
    ) -> None:
        """Take of one batch, whose first offset is `first`, what is asked for and fits."""
        begin = self.position
        rows, places = self._asked_for(found, begin - first, ends - begin)
        if rows is None or not len(places):
            self.position = ends
            return
        wanted = min(len(places), self.count_left)
        sizes = record_ends(rows.slice(0, wanted))
        fitting = int(np.searchsorted(sizes, self._size_max - self.size, side="right"))
        if fitting < wanted:
            self._full = True
            # Soft: a page that would be empty takes one record, whatever its size.
            fitting = max(fitting, 0 if self.count else 1)
        if fitting:
            offsets = begin + places[:fitting]
            self.rows.append(Rows(int(offsets[0]), timestamp, rows.slice(0, fitting), offsets))
            self.size += int(sizes[fitting - 1])
            self.count += fitting
        if self.count >= self._limit:
            # Not further, although no more may follow here: so the page ends where it always ends.
            self.position = begin + int(places[fitting - 1]) + 1
        else:
            self.position = begin + int(places[fitting]) if fitting < len(places) else ends

    def _asked_for(
        self, found: tuple[FrameHeader, memoryview], skipped: int, count: int
    ) -> tuple[pa.RecordBatch | None, NDArray[np.int64]]:
        """The records of a part of a batch that are asked for, copied, and their places in it."""
        frame, stored = found
        if not self.scan.wanted.may_match(frame.columns):
            return None, np.zeros(0, np.int64)
        batch = decode_message(frame, stored, verified=True).slice(skipped, count)
        mask: Any = asked_for(self.scan.wanted, batch)
        return batch.filter(mask), np.flatnonzero(mask.to_numpy(zero_copy_only=False))


class FilteredChunkPageBuilder(FilteredPageBuilder, ChunkPageBuilder):
    """Takes whole chunks in which some record is asked for, and passes over the others."""

    def add(self, header: ChunkHeader, chunk: memoryview) -> None:
        """Add one verified chunk, if a record of it is asked for, and it fits or is the first.

        Raises:
            Corrupt: its batches are damaged, or it does not follow the one before.
        """
        frames = self._frames(header, chunk)
        if frames is None:
            return
        self.scan.look_at(len(chunk))
        # Of what is passed over nothing was looked at beyond the page's end.
        ends = min(header.next_offset, self.end)
        if self._holds_some(header.first_offset, frames):
            if self.chunks and self.size + len(chunk) > self._size_max:
                self._full = True
                return
            self._hold(chunk)
            self.chunks.append(chunk)
            self.size += len(chunk)
            self.count += header.next_offset - self.position
            ends = header.next_offset
        self.position = ends

    def _holds_some(self, first: int, frames: list[tuple[FrameHeader, memoryview]]) -> bool:
        for frame, stored in frames:
            begin = max(first, self.position)
            ends = min(first + frame.record_count, self.end)
            if begin < ends:
                _, places = self._asked_for((frame, stored), begin - first, ends - begin)
                if len(places):
                    return True
            first += frame.record_count
        return False
