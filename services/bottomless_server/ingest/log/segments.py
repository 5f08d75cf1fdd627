"""The local log of one stream: its segments, their indexes, its checkpoint.

Work is split in two: `write`, `sync`, `save_checkpoint` and `remove` make file calls and run in
a worker thread, one at a time; `extend`, `commit` and `forget` then change what the log says of
itself and run in the event loop. There are two bounds: what is below `synced_next` is durable on
this disk, and what is below `committed_next` is durable wherever it has to be, and visible. A
round passes the first by `extend`, which takes nothing but what a sync has returned, and the
second by `commit`. So readers see a chunk only when it is durable, and the order "durable first,
visible second" is the order of these calls in `local/appender.py`.

Checkpoints, recovery, the next round and the disk's room go by the first bound. What others are
shown goes by the second: readers, the uploader, conditions of appends, producers.

What is on disk after a crash:
- in `write`, or after it and before the sync: perhaps a new segment with its header or a part of
  it, which recovery removes; perhaps parts of chunks at the end, which recovery cuts.
- after the sync, before `commit` or after it: the chunks, unanswered; recovery offers them as
  committed.
- after a sync that failed, before the cut: the chunks as the system shows them, perhaps not on
  the disk; recovery writes them once more and syncs before it offers them.
- in `save_checkpoint`: the old checkpoint or the new one, both true.
- in `remove`: a prefix of the log fewer, since each removal is synced before the next.

On the record's path: after local/appender.py, before local/feed.py.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from bottomless.errors import Code, Outcome, Unavailable
from bottomless.formats.segment import (
    HEADER_SIZE,
    INDEX_RECORD_SIZE,
    encode_checkpoint,
    encode_index_header,
    encode_index_record,
    encode_segment_header,
)
from bottomless.model.chunk import ChunkPlace
from bottomless.model.names import StreamId
from bottomless.model.segment import Checkpoint, SegmentHeader
from bottomless_server.ingest.log.core.batcher import Round, SealedChunk
from bottomless_server.ingest.log.core.chunk_index import ChunkIndex
from bottomless_server.ingest.log.layout import CHECKPOINT_NAME, index_path, segment_path
from bottomless_server.node.file_calls import FileCalls, replace_file, write_all

log = structlog.get_logger(__name__)

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class WriteRefused(Unavailable):
    """A round was not written: nothing of it is in the log, and the log is good."""

    default_code = Code.STORAGE_FAILED


class LogBroken(Unavailable):
    """What the file holds is not known; the log must be closed and recovered."""

    default_code = Code.STORAGE_FAILED
    default_outcome = Outcome.UNKNOWN


class RollBounds(NamedTuple):
    """When a new segment is begun; looked at only when an append arrives."""

    size_max: int
    age_ms_max: int
    chunk_count_max: int


@dataclass(slots=True)
class Segment:
    """A file of the log, with whole synced chunks."""

    first_offset: int
    next_offset: int
    size: int
    """Bytes of the file, its header included; none while it is about to be made."""
    log_start: int
    """Bytes of chunks before it since the log was opened: cumulative positions, for the feed."""
    began: int
    """When it was begun, by the monotonic clock, in ms."""
    index: ChunkIndex = field(default_factory=ChunkIndex)
    published_at: int | None = None
    """When it was heard that all of it is published, by the monotonic clock, in ms."""


class Unsynced(NamedTuple):
    """A round that is in its file, perhaps in memory alone; none may follow before its sync."""

    segment: Segment
    places: list[ChunkPlace]
    size: int
    """Bytes of the segment with this round."""
    next_offset: int
    timestamp: int
    buffers: list[bytes | memoryview]
    """What was written, in its order: with replicas the same bytes go to other nodes."""


class Written(NamedTuple):
    """A round that is durable on this disk, but not visible."""

    round: Unsynced


class SegmentLog:
    """The log of one stream. One appender writes to it; reads of committed ranges go on meanwhile."""

    def __init__(
        self,
        files: FileCalls,
        directory: Path,
        stream_id: StreamId,
        bounds: RollBounds,
        *,
        segments: list[Segment],
        next_offset: int,
        last_timestamp: int,
        committed_next: int | None = None,
    ) -> None:
        """`committed_next`: below it everything lies wherever it has to, and what was found after it
        is not shown before `commit_found`; None: this disk is all that is needed."""
        self.directory = directory
        self.segments = segments
        self.synced_next = next_offset
        """Everything below is durable on this disk; the next round begins there."""
        self.committed_next = next_offset
        """Everything below is durable wherever it has to be, and visible; never above the other."""
        self.committed_end = self.synced_end
        """Bytes of committed chunks since the log was opened, freed ones included."""
        if committed_next is not None and committed_next < next_offset:
            self.committed_next = committed_next
            self.committed_end = self._end_below(committed_next)
        self.last_timestamp = last_timestamp
        """The timestamp of the last synced chunk."""
        self._files = files
        self._stream_id = stream_id
        self._bounds = bounds
        self._segment_fd: int | None = None
        self._index_fd: int | None = None
        self._index_broken = False
        """A record of the active segment's index is missing, so none may follow."""
        self._fresh: Segment | None = None
        """Made, and without a committed chunk: a refused write leaves it for the next one."""

    @property
    def first_offset(self) -> int:
        return self.segments[0].first_offset if self.segments else self.synced_next

    @property
    def synced_end(self) -> int:
        """Bytes of synced chunks since the log was opened, freed ones included."""
        if not self.segments:
            return 0
        return self.segments[-1].log_start + max(self.segments[-1].size - HEADER_SIZE, 0)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(s.size + HEADER_SIZE + len(s.index) * INDEX_RECORD_SIZE for s in self.segments)

    @property
    def is_open(self) -> bool:
        """Whether it holds file handles."""
        return self._segment_fd is not None

    @property
    def last_chunk_offset(self) -> int | None:
        """Where the last committed chunk with records begins."""
        place = self._last_with_records()
        return None if place is None else place.first_offset

    @property
    def last_record_timestamp(self) -> int | None:
        """The timestamp of the last committed record; `last_timestamp` may be that of a later chunk
        without any.
        """
        place = self._last_with_records()
        return None if place is None else place.timestamp

    def _last_with_records(self) -> ChunkPlace | None:
        for segment in reversed(self.segments):
            # The last chunk that begins before the segment's end has records; others have none.
            end = min(segment.next_offset, self.committed_next)
            number = segment.index.holding(end - 1)
            if end > segment.first_offset and number >= 0:
                return segment.index.place(number)
        return None

    def _end_below(self, offset: int) -> int:
        """Bytes of the chunks with records that begin below an offset, and of all before them."""
        for segment in reversed(self.segments):
            number = segment.index.holding(offset - 1)
            if number >= 0:
                place = segment.index.place(number)
                return segment.log_start + place.position + place.size - HEADER_SIZE
        return 0

    def committed_count(self, segment: Segment) -> int:
        """How many chunks of a segment are committed, and may be shown."""
        if self.committed_end == self.synced_end:
            return len(segment.index)
        return segment.index.before(self.committed_end - segment.log_start + HEADER_SIZE) + 1

    def write(
        self,
        sealed: Round,
        epoch: int,
        elapsed: int,
        state: Callable[[], SealedChunk | None] = lambda: None,
    ) -> Unsynced:
        """Write a round, which `sync` has to follow; in a worker thread.

        In a segment without a chunk what `state` makes stands before it: what was known of
        producers, so that all older segments can be deleted.

        Raises:
            WriteRefused: nothing was stored: `storage-full` or `storage-failed`.
            LogBroken: a failed write could not be undone.
        """
        segment = self._fresh or (self.segments[-1] if self.segments else None)
        if segment is None or self._is_full(segment, sealed, elapsed):
            segment = self._fresh = self._begin(sealed.chunks[0].first_offset, epoch, elapsed)
        elif self._segment_fd is None:
            self._reopen(segment)
        assert self._segment_fd is not None
        chunks = sealed.chunks
        if not len(segment.index) and (before := state()) is not None:
            chunks = [before, *chunks]
        places, position = [], segment.size
        for chunk in chunks:
            places.append(
                ChunkPlace(
                    chunk.first_offset,
                    chunk.timestamp,
                    position,
                    chunk.epoch,
                    chunk.size,
                    chunk.record_count,
                )
            )
            position += chunk.size
        buffers = [buffer for chunk in chunks for buffer in chunk.buffers]
        try:
            write_all(self._files, self._segment_fd, buffers, segment.size)
        except OSError as error:
            self._undo(self._segment_fd, segment.size, error)
            raise _refused(error) from error
        return Unsynced(segment, places, position, sealed.next_offset, sealed.timestamp, buffers)

    def sync(self, unsynced: Unsynced) -> Written:
        """Make the round that was written last durable; in a worker thread.

        Raises:
            LogBroken: the sync failed.
        """
        assert self._segment_fd is not None
        try:
            self._files.fdatasync(self._segment_fd)
        except OSError as error:
            self._give_up(self._segment_fd, unsynced.segment.size)
            raise LogBroken("the disk did not take a sync") from error
        return self.note_synced(unsynced)

    def note_synced(self, unsynced: Unsynced) -> Written:
        """Take the round that was written last for durable, after its whole file system was synced
        without an error; in a worker thread.
        """
        self._write_index(unsynced.segment, unsynced.places)
        return Written(unsynced)

    def extend(self, durable: Written) -> None:
        """Count a round that is durable here as a part of the log; in the event loop.

        It stays invisible until `commit`. After a restart it is there, and nobody had an answer.
        """
        written = durable.round
        segment = written.segment
        assert written.places[0].first_offset == self.synced_next
        if segment is self._fresh:
            self.segments.append(segment)
            self._fresh = None
        for place in written.places:
            segment.index.append(place)
        segment.size = written.size
        segment.next_offset = self.synced_next = written.next_offset
        self.last_timestamp = written.timestamp

    def commit(self, durable: Written) -> None:
        """Make a round visible that `extend` took, once every disk has it that must; in the event
        loop.
        """
        written = durable.round
        segment = written.segment
        end = segment.log_start + written.size - HEADER_SIZE
        assert written.size <= segment.size, "it is no part of the log yet"
        assert self.committed_end < end
        self.committed_end = end
        self.committed_next = written.next_offset

    def commit_found(self) -> None:
        """Make visible what lay here when the log was opened, once every disk has it that must; in
        the event loop, before any round."""
        self.committed_end = self.synced_end
        self.committed_next = self.synced_next

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint; in a worker thread.

        Raises:
            OSError: the old one is still there, and true.
        """
        path = self.directory / CHECKPOINT_NAME
        replace_file(self._files, path, encode_checkpoint(checkpoint))

    def synced_place(self) -> tuple[int, int]:
        """The segment and the position up to which everything is durable, for a checkpoint."""
        if not self.segments:
            return self.synced_next, 0
        return self.segments[-1].first_offset, self.segments[-1].size

    def committed_place(self) -> tuple[int, int]:
        """The segment and the position where the last committed chunk ends; zeros if none is here."""
        for segment in reversed(self.segments):
            if self.committed_end > segment.log_start:
                return segment.first_offset, self.committed_end - segment.log_start + HEADER_SIZE
        return 0, 0

    def chunks_end(self) -> tuple[int, int] | None:
        """The segment and the position where the last synced chunk ends; None if there is none.

        A crash may leave a segment that was begun and has no chunk: nobody else has its beginning.
        """
        for segment in reversed(self.segments):
            if len(segment.index):
                return segment.first_offset, segment.size
        return None

    def remove(self, segment: Segment) -> None:
        """Delete the files of the oldest segment; in a worker thread, after `forget`.

        Raises:
            OSError: they may still be there; recovery takes them up again.
        """
        for path_of in (segment_path, index_path):
            with suppress(FileNotFoundError):
                self._files.unlink(path_of(self.directory, segment.first_offset))
        self._files.fsync_dir(self.directory)

    def forget(self, segment: Segment) -> None:
        """Stop offering the oldest segment; in the event loop. The active one never goes."""
        assert len(self.segments) > 1
        assert self.segments[0] is segment
        del self.segments[0]

    def close(self) -> None:
        """Close the active files; what is committed is durable already. The next write opens
        them again."""
        opened = (self._segment_fd, self._index_fd)
        self._segment_fd = self._index_fd = None
        for fd in opened:
            if fd is not None:
                self._files.close(fd)

    def _is_full(self, segment: Segment, sealed: Round, elapsed: int) -> bool:
        if segment.next_offset == segment.first_offset:
            # Without a record: the next one would have the same name.
            return False
        return (
            segment.size + sealed.size > self._bounds.size_max
            or elapsed - segment.began >= self._bounds.age_ms_max
            or len(segment.index) + len(sealed.chunks) > self._bounds.chunk_count_max
        )

    def _begin(self, first_offset: int, epoch: int, elapsed: int) -> Segment:
        """Make the next segment, durable with its name before anything is written to it."""
        self.close()
        header = SegmentHeader(self._stream_id, first_offset, epoch)
        path, fd = segment_path(self.directory, first_offset), None
        try:
            fd = self._files.open(path, create=True)
            write_all(self._files, fd, [encode_segment_header(header)], 0)
            self._files.fdatasync(fd)
            self._files.fsync_dir(self.directory)
        except OSError as error:
            self._unmake(path, fd)
            raise _refused(error) from error
        self._segment_fd = fd
        self._index_fd = self._begin_index(header)
        log_start = self.synced_end
        return Segment(first_offset, first_offset, HEADER_SIZE, log_start, elapsed)

    def _unmake(self, path: Path, fd: int | None) -> None:
        # Left behind, the name would be in the way of the next attempt.
        if fd is None:
            return
        self._files.close(fd)
        try:
            self._files.unlink(path)
        except OSError as error:
            raise LogBroken("a segment could not be made", outcome=Outcome.NONE) from error

    def _begin_index(self, header: SegmentHeader) -> int | None:
        path = index_path(self.directory, header.first_offset)
        self._index_broken = False
        try:
            if path.name in self._files.names(self.directory):
                self._files.unlink(path)
            fd = self._files.open(path, create=True)
            write_all(self._files, fd, [encode_index_header(header)], 0)
        except OSError as error:
            log.warning("no index is written, recovery will make it", error=str(error))
            self._index_broken = True
            return None
        return fd

    def _reopen(self, segment: Segment) -> None:
        try:
            self._segment_fd = self._files.open(segment_path(self.directory, segment.first_offset))
            if not self._index_broken:
                self._index_fd = self._files.open(index_path(self.directory, segment.first_offset))
        except OSError as error:
            if self._segment_fd is None:
                raise WriteRefused("the active segment could not be opened") from error
            log.warning("no index is written, recovery will make it", error=str(error))
            self._index_broken = True

    def _write_index(self, segment: Segment, places: list[ChunkPlace]) -> None:
        """Append index records without a sync: they can be made again from the chunks."""
        if self._index_fd is None:
            return
        position = HEADER_SIZE + len(segment.index) * INDEX_RECORD_SIZE
        try:
            records = [b"".join(map(encode_index_record, places))]
            write_all(self._files, self._index_fd, records, position)
        except OSError as error:
            # One missing record makes all later ones useless.
            log.warning("no index is written, recovery will make it", error=str(error))
            self._files.close(self._index_fd)
            self._index_fd, self._index_broken = None, True

    def _undo(self, fd: int, size: int, cause: OSError) -> None:
        """Cut what a failed write left, durably, before anything else may be written."""
        try:
            self._files.truncate(fd, size)
            self._files.fdatasync(fd)
        except OSError as error:
            raise LogBroken("a failed write could not be undone") from (error or cause)

    def _give_up(self, fd: int, size: int) -> None:
        """After a failed sync: cut the round, so that no later reader takes it for durable.

        The kernel may have marked its pages clean without writing them, so a second sync
        would say yes to data that is not on the disk.
        """
        try:
            self._files.truncate(fd, size)
        except OSError:
            log.exception("a round of unknown state stays in the file")


def _refused(error: OSError) -> WriteRefused:
    full = error.errno in _FULL
    return WriteRefused(
        "there is no space left on this node" if full else "the disk did not take a write",
        code=Code.STORAGE_FULL if full else Code.STORAGE_FAILED,
        retry_after_seconds=5,
    )
