"""What lies here of a stream whose log follows that of another node, and what is made of it when that
one opens it: the calls on files, and what they are to do. log_opener.py has the order of the steps.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from bottomless.errors import Corrupt
from bottomless.formats.segment import CHECKPOINT_SIZE, decode_checkpoint, encode_checkpoint
from bottomless.model.names import StreamId
from bottomless.model.segment import Checkpoint
from bottomless_server.ingest.log.layout import (
    CHECKPOINT_NAME,
    aside_dir,
    index_path,
    parse_segment_name,
    segment_path,
    stream_dir,
)
from bottomless_server.ingest.log.recovery import Recovered, recover
from bottomless_server.ingest.replicas.followed_log import (
    held_of,
    last_timestamp_at,
    told_committed,
)
from bottomless_server.node.core.following import Held, Opened
from bottomless_server.node.file_calls import (
    FileCalls,
    make_dir_durable,
    read_file,
    replace_file,
)
from bottomless_server.protocol.replica import Opening

log = structlog.get_logger(__name__)

ASIDE_COUNT_MAX: Final = 8
"""Logs of one stream and one epoch that are kept aside; an operator removes them."""


class Found(NamedTuple):
    """What lies here of a stream."""

    recovered: Recovered
    held: Held

    @property
    def damaged(self) -> bool:
        """Whether a chunk that was synced once is bad: this log is nobody's to count on."""
        return self.recovered.damaged


class LogFiles:
    """The files of one stream; all calls block, in a worker thread."""

    def __init__(self, files: FileCalls, data_dir: Path, stream_id: StreamId) -> None:
        self.directory = stream_dir(data_dir, stream_id)
        self.stream_id = stream_id
        self.calls = files
        self._data_dir = data_dir

    def find(self, elapsed: int, cut_at: tuple[int, int] | None, *, verified: bool = True) -> Found:
        """Recover what lies here; nothing is believed from the place `cut_at` on. What was not `verified`
        since this process began is read whole, with all checksums.

        Raises:
            Corrupt: it is damaged where nothing can be told of it.
            OSError
        """
        recovered = recover(
            self.calls, self.directory, self.stream_id, elapsed, cut_at, believes_index=verified
        )
        committed = min(told_committed(recovered.checkpoint), recovered.next_offset)
        return Found(recovered, held_of(recovered.segments, recovered.epoch, committed))

    def note(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, into a directory that is made if need be.

        Raises:
            OSError: the old one is still there; or the directory of the node is gone.
        """
        self.calls.make_dir(self.directory)
        self.calls.fsync_dir(self.directory.parent)
        replace_file(self.calls, self.directory / CHECKPOINT_NAME, encode_checkpoint(checkpoint))

    def remove(self, firsts: Sequence[int]) -> None:
        """Remove segments in this order.

        Raises:
            OSError: some are still there; the same again is right.
        """
        for first in firsts:
            for path_of in (segment_path, index_path):
                with suppress(FileNotFoundError):
                    self.calls.unlink(path_of(self.directory, first))
            self.calls.fsync_dir(self.directory)

    def put_aside(self, epoch: int, firsts: Sequence[int]) -> None:
        """Move segments out of the way in this order, to where an operator may look at them.

        Raises:
            OSError: some are still here; the same again is right.
        """
        if not firsts:
            return
        target = self._free_place(epoch)
        make_dir_durable(self.calls, target)
        for first in firsts:
            for path_of in (segment_path, index_path):
                with suppress(FileNotFoundError):
                    path = path_of(self.directory, first)
                    self.calls.rename(path, target / path.name)
            self.calls.fsync_dir(target)
            self.calls.fsync_dir(self.directory)
        log.warning("a replica was set aside", stream_id=self.stream_id, epoch=epoch)

    def cut(self, first_offset: int, size: int) -> None:
        """Cut a segment to a size.

        Raises:
            OSError: it may be longer; the same again is right.
        """
        fd = self.calls.open(segment_path(self.directory, first_offset))
        try:
            self.calls.truncate(fd, size)
            self.calls.fdatasync(fd)
        finally:
            self.calls.close(fd)

    def firsts(self) -> list[int]:
        """The first offsets of all segments here, whatever is in them, oldest first."""
        names = self.calls.names(self.directory)
        return sorted(first for name in names if (first := parse_segment_name(name)) is not None)

    def noted_epoch(self) -> int:
        """The epoch that the checkpoint names, of a log that cannot be recovered; 0 if it says none."""
        try:
            data = read_file(self.calls, self.directory / CHECKPOINT_NAME, CHECKPOINT_SIZE + 1)
            return decode_checkpoint(data).epoch
        except (Corrupt, FileNotFoundError):
            return 0

    def _free_place(self, epoch: int) -> Path:
        taken = set(self.calls.names(aside_dir(self._data_dir)))
        for number in range(1, ASIDE_COUNT_MAX + 1):
            name = f"{self.stream_id}.{epoch}" + ("" if number == 1 else f".{number}")
            if name not in taken:
                return aside_dir(self._data_dir) / name
        raise OSError("too many logs of one stream were set aside under one epoch")


class Plan(NamedTuple):
    """What has to be done with segments, by their first offsets, in this order."""

    freed: tuple[int, ...]
    beyond: tuple[int, ...]
    cut: tuple[int, int] | None
    """The segment that is cut, and its size then."""

    @property
    def is_nothing(self) -> bool:
        """Whether the log stays as it is."""
        return not self.freed and not self.beyond and self.cut is None


def plan_of(before: Held, opened: Opened) -> Plan:
    """What makes of a log the one that was opened."""
    firsts = [one.first_offset for one in before.segments]
    kept = opened.held.segments
    if not kept:
        return Plan((), tuple(reversed(firsts)), None)
    oldest, newest = kept[0].first_offset, kept[-1].first_offset
    return Plan(
        tuple(first for first in firsts if first < oldest),
        tuple(first for first in reversed(firsts) if first > newest),
        None if opened.cut is None else (newest, opened.cut.position),
    )


def checkpoint_of(
    stream_id: StreamId, found: Found, opened: Opened, opening: Opening
) -> Checkpoint:
    """What is noted before anything is cut: the epoch, and the place at which the log will end."""
    seen, held = found.recovered.checkpoint, opened.held
    end = opened.end
    if end is None:
        return emptied(stream_id, lowest_of(found), opening, seen)
    return Checkpoint(
        stream_id=stream_id,
        segment_first_offset=end.segment_first,
        synced_position=end.position,
        synced_next=held.next_offset,
        last_timestamp=last_timestamp_at(found.recovered.segments, end),
        epoch=held.epoch,
        version=max(opening.version, 0 if seen is None else seen.version),
        published_next=max(opening.published_next, 0 if seen is None else seen.published_next),
        reserved_next=held.committed_next,
    )


def emptied(
    stream_id: StreamId, first_offset: int, opening: Opening, seen: Checkpoint | None
) -> Checkpoint:
    """What is noted before nothing of a log is kept that begins at an offset."""
    return Checkpoint(
        stream_id=stream_id,
        segment_first_offset=first_offset,
        synced_position=0,
        synced_next=first_offset,
        last_timestamp=0,
        epoch=max(opening.epoch, 0 if seen is None else seen.epoch),
        version=max(opening.version, 0 if seen is None else seen.version),
        published_next=max(opening.published_next, 0 if seen is None else seen.published_next),
        reserved_next=0,
    )


def lowest_of(found: Found) -> int:
    """Where a log begins; of an empty one where its checkpoint says."""
    segments = found.recovered.segments
    return segments[0].first_offset if segments else 0
