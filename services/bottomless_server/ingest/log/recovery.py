"""Find out what a stream's log holds after a stop of any kind.

Below the checkpoint's synced position the log is durable: index records are believed
there, each with its checksum, and what is damaged is damage, never cut. Above it every
chunk is walked with its checksums, and what a power cut left torn is cut: nothing of it
was answered, since an answer follows the sync of the whole round.

A bad chunk that a good one of a later round follows is damage too, wherever it lies:
a round is written only after the one before it was synced. So is a bad chunk that has a
record in the index, which is written after the sync (recovery_damage.py).

A log may begin anywhere: its oldest segments are removed when they are published. Where they
were lost before that, and the place of the checkpoint with them, the rest is a log all the same:
it begins after a hole that readers are told of, and that an operator accepts or does not. What is
missing between two segments, or at the end below the checkpoint, is damage.

Everything here may be cut short by a crash and begun again: cutting a torn tail, removing a
segment without a header, writing whole rounds over themselves and writing an index anew all
end in the same state. The last file and the directory are synced before the log is offered,
since what was read may so far be in memory only.

What nothing proves to have been synced is written once more before that. A sync that failed
leaves pages that count as clean, and a process that died before it could cut them leaves a good
round in memory that no later sync would bring to the disk: served, and gone with the next power
cut.

On the record's path: beside local/appender.py, after a crash.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from bottomless.errors import Corrupt
from bottomless.formats.checks import corrupt
from bottomless.formats.segment import (
    CHECKPOINT_SIZE,
    HEADER_SIZE,
    INDEX_RECORD_SIZE,
    decode_checkpoint,
    decode_index_header,
    decode_index_record,
    decode_segment_header,
    encode_index_header,
)
from bottomless.guards import guard
from bottomless.model.chunk import ChunkPlace
from bottomless.model.limits import TIMESTAMP_MIN
from bottomless.model.names import StreamId
from bottomless.model.segment import Checkpoint, SegmentHeader
from bottomless_server.ingest.log.core.chunk_index import ChunkIndex
from bottomless_server.ingest.log.layout import (
    CHECKPOINT_NAME,
    index_path,
    parse_segment_name,
    segment_path,
)
from bottomless_server.ingest.log.recovery_damage import Place, walk
from bottomless_server.ingest.log.segments import Segment
from bottomless_server.node.file_calls import FileCalls, read_exactly, read_file, write_all

log = structlog.get_logger(__name__)

_INDEX_SIZE_MAX: Final = 2**31
_COPY_SIZE: Final = 1024 * 1024
"""Bytes in memory at a time while a round is written once more."""
_BEGINNING: Final = Place(HEADER_SIZE, 0, TIMESTAMP_MIN, 0)


@dataclass(slots=True)
class Recovered:
    """A log that may be offered."""

    segments: list[Segment]
    next_offset: int
    last_timestamp: int
    epoch: int
    """The highest that this disk has seen."""
    checkpoint: Checkpoint | None
    cut_size: int = 0
    """Bytes that were torn and are gone."""
    damaged: bool = False
    """Whether a chunk is bad that an index record says was synced; it keeps its place."""


def recover(
    files: FileCalls,
    directory: Path,
    stream_id: StreamId,
    elapsed: int,
    cut_at: tuple[int, int] | None = None,
    *,
    believes_index: bool = True,
) -> Recovered:
    """Recover one stream's directory; in a worker thread.

    Unless it `believes_index`, every chunk is walked with its checksums, also below the checkpoint's
    synced position. An owner does without: it reads all of its log next, for what it knows of producers.

    `cut_at` is a segment and a position from which on nothing may be believed, although its
    checksums match: what a failed sync left there may be in memory only.

    Raises:
        Corrupt: something durable is damaged; nothing was changed on disk.
        OSError
    """
    names = files.names(directory)
    firsts = sorted(first for name in names if (first := parse_segment_name(name)) is not None)
    checkpoint = None
    if CHECKPOINT_NAME in names:
        data = read_file(files, directory / CHECKPOINT_NAME, CHECKPOINT_SIZE + 1)
        checkpoint = decode_checkpoint(data)
        _check(checkpoint.stream_id == stream_id, "the checkpoint is another stream's")
    found = _Recovery(files, directory, stream_id, elapsed, checkpoint, cut_at, believes_index)
    if firsts and found.is_unborn(firsts[-1]):
        files.unlink(segment_path(directory, firsts.pop()))
        files.fsync_dir(directory)
    for number, first in enumerate(firsts):
        found.take(first, last=number == len(firsts) - 1)
    found.finish(names)
    return Recovered(
        segments=found.segments,
        next_offset=found.next_offset,
        last_timestamp=found.last_timestamp,
        epoch=found.epoch,
        checkpoint=checkpoint,
        cut_size=found.cut_size,
        damaged=found.damaged,
    )


@dataclass(slots=True)
class _Recovery:
    files: FileCalls
    directory: Path
    stream_id: StreamId
    elapsed: int
    checkpoint: Checkpoint | None
    cut_at: tuple[int, int] | None
    believes_index: bool
    segments: list[Segment] = field(default_factory=list)
    next_offset: int = 0
    last_timestamp: int = 0
    epoch: int = 0
    cut_size: int = 0
    damaged: bool = False
    before: Place = _BEGINNING
    """The end of the last chunk that was taken up."""

    def __post_init__(self) -> None:
        if self.checkpoint is not None:
            self.next_offset = self.checkpoint.synced_next
            self.last_timestamp = self.checkpoint.last_timestamp
            self.epoch = self.checkpoint.epoch

    def is_unborn(self, first_offset: int) -> bool:
        """Whether a crash left a segment without its header: nothing was written to it.

        The header is synced with the file's name before the first chunk is written.
        """
        if self._synced_position(first_offset) > 0:
            return False
        head = self._read(segment_path(self.directory, first_offset), HEADER_SIZE + 1)
        if len(head) > HEADER_SIZE:
            return False
        try:
            decode_segment_header(head)
        except Corrupt:
            return True
        return False

    def take(self, first_offset: int, *, last: bool) -> None:
        """Take up the next segment; the last one may be torn at its end."""
        if self.segments:
            _check(first_offset == self.next_offset, "a part between two segments is missing")
        else:
            point = self.checkpoint
            if point is not None and first_offset > point.synced_next:
                log.error(
                    "the oldest part of a local log is missing",
                    stream_id=self.stream_id,
                    synced_next=point.synced_next,
                    first_offset=first_offset,
                )
            self.next_offset = first_offset
        fd = self.files.open(segment_path(self.directory, first_offset))
        try:
            self._take(fd, first_offset, last=last)
        finally:
            self.files.close(fd)

    def _take(self, fd: int, first_offset: int, *, last: bool) -> None:
        size = self.files.size(fd)
        header = decode_segment_header(read_exactly(self.files, fd, HEADER_SIZE, 0))
        _check(header.stream_id == self.stream_id, "a segment is another stream's")
        _check(header.first_offset == first_offset, "a segment has another's name")
        synced = self._synced_position(first_offset) if last else size
        _check(synced <= size, "a segment is shorter than what was synced of it")
        if last and self.cut_at is not None:
            size = believed_size(size, first_offset, self.cut_at)
        segment = Segment(first_offset, first_offset, HEADER_SIZE, self._log_end(), self.elapsed)
        stored = self._read_index(header)
        for place in self._believed(stored, first_offset, synced):
            self._add(segment, place)
        start = self.before._replace(position=segment.size, offset=self.next_offset)

        def indexed(at: Place) -> ChunkPlace | None:
            # Asked of a bad chunk alone.
            known = indexed_at(stored, len(segment.index), at)
            self.damaged |= known is not None and known.position + known.size <= size
            return known

        for place in walk(self.files, fd, size, max(synced, HEADER_SIZE), start, indexed):
            self._add(segment, place)
        if last and self.checkpoint is not None:
            _check(self.next_offset >= self.checkpoint.synced_next, "its synced part is missing")
        self.segments.append(segment)
        if last:
            self._cut(fd, segment)
            proven = max(synced, _proven(stored, segment.index))
            write_again(self.files, fd, proven, segment.size)
            self.files.fdatasync(fd)
        # Only now: a record says that its chunk was synced.
        self._mend_index(header, segment.index, stored)

    def _add(self, segment: Segment, place: ChunkPlace) -> None:
        segment.index.append(place)
        segment.size = place.position + place.size
        segment.next_offset = self.next_offset = place.next_offset
        self.before = Place(segment.size, place.next_offset, place.timestamp, place.epoch)
        self.last_timestamp = max(self.last_timestamp, place.timestamp)
        self.epoch = max(self.epoch, place.epoch)

    def _cut(self, fd: int, segment: Segment) -> None:
        torn = self.files.size(fd) - segment.size
        if torn > 0:
            self.files.truncate(fd, segment.size)
            self.cut_size = torn

    def finish(self, names: list[str]) -> None:
        """Remove what belongs to no segment, and make the directory durable."""
        if self.checkpoint is not None:
            _check(self.next_offset >= self.checkpoint.synced_next, "its synced part is missing")
            whole = bool(self.segments) or self.checkpoint.synced_position == 0
            _check(whole, "its segments are missing")
        kept = {index_path(self.directory, s.first_offset).name for s in self.segments}
        for name in names:
            if name.endswith(".index") and name not in kept:
                self.files.unlink(self.directory / name)
        if names:
            self.files.fsync_dir(self.directory)

    def _synced_position(self, first_offset: int) -> int:
        point = self.checkpoint
        if point is None or first_offset > point.segment_first_offset:
            return 0
        return point.synced_position

    def _log_end(self) -> int:
        if not self.segments:
            return 0
        return self.segments[-1].log_start + self.segments[-1].size - HEADER_SIZE

    def _read(self, path: Path, size_max: int) -> bytes:
        return read_file(self.files, path, size_max)

    def _read_index(self, header: SegmentHeader) -> bytes:
        """Its records as stored; none if the file is missing or of another segment."""
        try:
            data = self._read(index_path(self.directory, header.first_offset), _INDEX_SIZE_MAX)
            if decode_index_header(data[:HEADER_SIZE])[:2] != header[:2]:
                return b""
        except (FileNotFoundError, Corrupt):
            return b""
        return data[HEADER_SIZE:]

    def _believed(self, stored: bytes, first_offset: int, synced: int) -> list[ChunkPlace]:
        """Places below the synced position, if the index names them without a gap."""
        places: list[ChunkPlace] = []
        if not self.believes_index:
            return places
        position, offset = HEADER_SIZE, first_offset
        view = memoryview(stored)
        while position < synced:
            start = len(places) * INDEX_RECORD_SIZE
            try:
                place = decode_index_record(view[start : start + INDEX_RECORD_SIZE])
            except Corrupt:
                break
            if (place.position, place.first_offset) != (position, offset):
                break
            places.append(place)
            position, offset = position + place.size, place.next_offset
        return places if position <= synced else []

    def _mend_index(self, header: SegmentHeader, index: ChunkIndex, stored: bytes) -> None:
        records = index.encoded()
        if stored == records:
            return
        path = index_path(self.directory, header.first_offset)
        if path.name in self.files.names(self.directory):
            self.files.unlink(path)
        fd = self.files.open(path, create=True)
        try:
            write_all(self.files, fd, [encode_index_header(header), records], 0)
        finally:
            self.files.close(fd)


@guard("index records, written after the sync")
def indexed_at(stored: bytes, number: int, at: Place) -> ChunkPlace | None:
    """What an index says, from its record `number` on, of the chunk that must start at a place."""
    view = memoryview(stored)
    for start in range(number * INDEX_RECORD_SIZE, len(stored), INDEX_RECORD_SIZE):
        try:
            place = decode_index_record(view[start : start + INDEX_RECORD_SIZE])
        except Corrupt:
            return None
        if place.position >= at.position:
            follows = (place.position, place.first_offset) == (at.position, at.offset)
            return place if follows and place.size > 0 else None
    return None


@guard("the cut after a failed sync")
def believed_size(size: int, first_offset: int, cut_at: tuple[int, int]) -> int:
    """How much of a segment of `size` bytes may be believed, after a sync that failed at `cut_at`."""
    if first_offset < cut_at[0]:
        return size
    believed = cut_at[1] if first_offset == cut_at[0] else HEADER_SIZE
    return min(size, max(believed, HEADER_SIZE))


@guard("the second write of what no index record proves")
def write_again(files: FileCalls, fd: int, start: int, end: int) -> None:
    """Make what stands between two positions unwritten in the eyes of the system."""
    for position in range(start, end, _COPY_SIZE):
        data = read_exactly(files, fd, min(_COPY_SIZE, end - position), position)
        write_all(files, fd, [data], position)


def _proven(stored: bytes, index: ChunkIndex) -> int:
    """Up to where an index file, written after each sync, says that a segment was synced."""
    records = index.encoded()
    end = min(len(stored), len(records)) // INDEX_RECORD_SIZE * INDEX_RECORD_SIZE
    for start in range(end - INDEX_RECORD_SIZE, -1, -INDEX_RECORD_SIZE):
        stop = start + INDEX_RECORD_SIZE
        if stored[start:stop] == records[start:stop]:
            place = index.place(start // INDEX_RECORD_SIZE)
            return place.position + place.size
    return 0


def _check(fact: bool, why: str) -> None:
    if not fact:
        raise corrupt("log", why)
