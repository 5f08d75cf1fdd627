"""Open one stream: recover its directory, claim it with the next epoch, note the claim.

What is there after a crash at each step:

1. the directory is recovered            the log is whole; the next opening does the same again
2. a log that is outdated is put away    the stream is as if it had never been here
3. the stream is claimed                 the next opening claims it with a higher epoch
4. what the last owner knew of           it is in coordination still, and taken up again
   producers is taken up
5. the claim is noted in the checkpoint  the stream takes appends

On the record's path: beside it; streams.py calls it, and appender.py is what it makes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from bottomless.errors import Corrupt, Outcome, Unavailable
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.appender_context import AppenderContext
from bottomless_server.ingest.log.layout import aside_dir, stream_dir, streams_dir
from bottomless_server.ingest.log.leftovers import give_up, local_ids
from bottomless_server.ingest.log.producer_log import read_tracking, take_left
from bottomless_server.ingest.log.recovery import Recovered, recover
from bottomless_server.ingest.log.segments import LogBroken, RollBounds, Segment, SegmentLog
from bottomless_server.node.core.ownership import LocalView, is_outdated
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.owner import Claim, Owner
from bottomless_server.runtime.base.on_loop import in_thread

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FoundHere:
    """What this node's disk holds of a stream."""

    local: LocalView
    segments: list[Segment]
    last_timestamp: int
    tracking: Tracking
    is_nothing: bool
    record: StreamRecord | None = None
    """The stream's record, where what was found was compared with it."""


class Opener:
    """Opens streams that lie in a data directory, one call after the other or several at once; it
    keeps nothing of them."""

    def __init__(
        self,
        files: FileCalls,
        data_dir: Path,
        owner: Owner,
        context: AppenderContext,
        roll: RollBounds,
        changed: Callable[[LocalAppender], None],
    ) -> None:
        self._files = files
        self._data_dir = data_dir
        self._owner = owner
        self._context = context
        self._roll = roll
        self._changed = changed

    async def make_dirs(self) -> None:
        """Make the directories that those of streams lie in."""
        await in_thread(self._context.executor, self._make_dirs)

    async def local_ids(self) -> list[StreamId]:
        """Name the streams that have a directory here."""
        return await in_thread(self._context.executor, local_ids, self._files, self._data_dir)

    async def recover(self, stream_id: StreamId, cut_at: tuple[int, int] | None) -> FoundHere:
        """Find out what lies here, cut at a place after which nothing is believed.

        Raises:
            Corrupt: what lies here is damaged.
            LogBroken: `storage-failed`, outcome none.
        """
        directory = stream_dir(self._data_dir, stream_id)
        elapsed = self._context.clocks.elapsed()
        try:
            found, tracking = await self._context.hops.call(
                self._read, directory, stream_id, elapsed, cut_at
            )
        except OSError as error:
            raise _storage_failed() from error
        if found.cut_size:
            log.warning("a torn end was cut", stream_id=stream_id, bytes=found.cut_size)
        is_nothing = not found.segments and found.checkpoint is None
        local = local_view(found)
        return FoundHere(local, found.segments, found.last_timestamp, tracking, is_nothing)

    async def without_outdated(self, stream_id: StreamId, found: FoundHere) -> FoundHere:
        """Put away what was found if another node has continued it; returns what is left.

        Raises:
            StoreError: as `Owner.load`; also `storage-failed`, outcome none.
        """
        if found.is_nothing:
            return found
        record = await self._owner.load(stream_id)
        if not is_outdated(record, self._owner.node_id, found.local):
            return replace(found, record=record)
        try:
            await in_thread(
                self._context.executor,
                self._give_up,
                stream_id,
                record.epoch,
                found.local.published,
            )
        except OSError as error:
            raise _storage_failed() from error
        local = replace(found.local, next_offset=0, empty=True)
        nothing = Tracking(self._context.tracking)
        return FoundHere(local, [], found.last_timestamp, nothing, is_nothing=True, record=record)

    async def claim(self, stream_id: StreamId, found: FoundHere) -> LocalAppender:
        """Claim what was found, and take appends.

        Raises:
            StoreError: as `Owner.claim`; also `storage-failed`, outcome none.
        """
        record, claim = await self._owner.claim(stream_id, found.local, found.record)
        # One may lie here without a chunk, and then says nothing of producers.
        if not any(len(segment.index) for segment in found.segments):
            await self._take_left(record, claim, found.tracking)
        try:
            return await self._begin(stream_id, found, record, claim)
        except OSError as error:
            raise _storage_failed() from error

    async def _begin(
        self, stream_id: StreamId, found: FoundHere, record: StreamRecord, claim: Claim
    ) -> LocalAppender:
        directory = stream_dir(self._data_dir, stream_id)
        if found.is_nothing:
            await in_thread(self._context.executor, self._make_dir, directory)
        appender = LocalAppender(
            self._context,
            claim,
            SegmentLog(
                self._files,
                directory,
                stream_id,
                self._roll,
                segments=found.segments,
                next_offset=claim.first_offset,
                last_timestamp=max(found.last_timestamp, record.last_timestamp),
            ),
            record,
            found.tracking,
            self._changed,
        )
        await appender.start()
        return appender

    async def _take_left(self, record: StreamRecord, claim: Claim, tracking: Tracking) -> None:
        """Take up what the last owner knew of producers, where nothing lies here that says it."""
        left = await self._owner.left_producers(record)
        try:
            if left is not None and not take_left(tracking, left, claim.first_offset):
                log.warning("producers are not known any more", stream_id=record.stream_id)
        except Corrupt as error:
            log.exception("what was left of producers is damaged", stream_id=record.stream_id)
            raise Unavailable("what is known of producers is damaged", retryable=False) from error

    def _read(
        self, directory: Path, stream_id: StreamId, elapsed: int, cut_at: tuple[int, int] | None
    ) -> tuple[Recovered, Tracking]:
        found = recover(self._files, directory, stream_id, elapsed, cut_at)
        return found, read_tracking(self._files, directory, found.segments, self._context.tracking)

    def _give_up(self, stream_id: StreamId, epoch: int, published: bool) -> None:
        give_up(self._files, self._data_dir, stream_id, epoch, published=published)

    def _make_dirs(self) -> None:
        for path in (streams_dir(self._data_dir), aside_dir(self._data_dir)):
            self._files.make_dir(path)
        self._files.fsync_dir(self._data_dir)
        # Once for all that lie here: their directories are not synced again one by one.
        self._files.fsync_dir(streams_dir(self._data_dir))

    def _make_dir(self, directory: Path) -> None:
        self._files.make_dir(directory)
        self._files.fsync_dir(directory.parent)


@guard("what a disk has seen of coordination")
def local_view(found: Recovered) -> LocalView:
    """What a log that was found says of its stream, and what its disk has seen of coordination."""
    point = found.checkpoint
    return LocalView(
        next_offset=found.next_offset,
        empty=not found.segments,
        epoch=found.epoch,
        version=0 if point is None else point.version,
        published_next=0 if point is None else point.published_next,
    )


def _storage_failed() -> LogBroken:
    return LogBroken("the local disk does not work", outcome=Outcome.NONE)
