"""Open one stream: recover its directory, claim it with the next epoch, note the claim.

What is there after a crash at each step:

1. the directory is recovered            the log is whole; the next opening does the same again
2. a log that is outdated is put away,   the stream is as if it had never been here
   once the bucket names its next owner
3. what the last owner knew of           the next opening of a stream that is another node's puts
   producers becomes a log here          it away: left_producers.py
4. the stream is claimed                 the next opening claims it with a higher epoch
5. the bucket says that it is here       the same
6. the claim is noted in the checkpoint  the stream takes appends

Why 3 before 4, and 2 so late? What is known of producers is in the log of the last owner or of the
next, and a rebuild of coordination gives the stream to the one that the bucket names. So it is in the
next one's log before the bucket can name that, and in the last one's until it does.

On the record's path: beside it; streams.py calls it, and appender.py is what it makes.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from bottomless.errors import Corrupt, Outcome, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.appender_context import AppenderContext
from bottomless_server.ingest.log.epoch_runs import epochs_of
from bottomless_server.ingest.log.layout import aside_dir, stream_dir, streams_dir
from bottomless_server.ingest.log.left_producers import (
    LeftChunk,
    begin_with_left,
    left_chunk,
    take_left,
)
from bottomless_server.ingest.log.leftovers import give_up, local_ids, stored_size
from bottomless_server.ingest.log.producer_log import read_tracking
from bottomless_server.ingest.log.recovery import Recovered, recover
from bottomless_server.ingest.log.segments import LogBroken, RollBounds, Segment, SegmentLog
from bottomless_server.node.core.ownership import LocalView, is_outdated, is_past, may_be_needed
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

    async def sizes(self, stream_ids: Sequence[StreamId]) -> dict[StreamId, int]:
        """Bytes of segments that lie here of each stream, as far as the disk says so."""
        return await in_thread(self._context.executor, self._sizes, stream_ids)

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

    async def is_sound(self, stream_id: StreamId) -> bool:
        """Read all that lies here of a stream, with its checksums; tells whether nothing is damaged.

        Raises:
            LogBroken: `storage-failed`, outcome none.
        """
        directory, elapsed = stream_dir(self._data_dir, stream_id), self._context.clocks.elapsed()
        read = partial(recover, self._files, directory, stream_id, elapsed, believes_index=False)
        try:
            # Not in a hop that others share: it may take seconds.
            found = await self._context.sound.in_turn(self._context.executor, read)
        except Corrupt:
            return False
        except OSError as error:
            raise _storage_failed() from error
        return not found.damaged

    async def without_outdated(self, stream_id: StreamId, found: FoundHere) -> FoundHere:
        """Put away what was found if another node has continued it; returns what is left.

        Nothing is put away as long as the bucket may still name this node, and it cannot be asked, nor
        by a member of a stream whose owner lives.

        Raises:
            OwnedElsewhere: its owner lives.
            StoreError: as `Owner.load`; also `storage-failed`, outcome none.
        """
        if found.is_nothing:
            return found
        record = await self._owner.load(stream_id)
        if not is_outdated(record, self._owner.node_id, found.local):
            return replace(found, record=record)
        if may_be_needed(record, found.local):
            if not await self._is_noted(stream_id):
                return replace(found, record=record)
            # Coordination may have been rebuilt before the bucket was told: as it named this node.
            record = await self._owner.load(stream_id)
            if not is_outdated(record, self._owner.node_id, found.local):
                return replace(found, record=record)
        if self._owner.node_id in record.members:
            # Its owner may write at any moment, and counts on this log as long as the record does.
            await self._owner.require_claimable(stream_id)
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
        self._context.disk.count(stream_id, 0)
        local = replace(found.local, next_offset=0, empty=True)
        nothing = Tracking(self._context.tracking)
        return FoundHere(local, [], found.last_timestamp, nothing, is_nothing=True, record=record)

    async def part_with(self, stream_id: StreamId) -> bool:
        """Remove the log of a stream that other nodes hold now, if object storage has all of it; returns
        whether it is gone. Nothing here has its files open.

        Raises:
            StoreError: what lies here, or what became of the stream, cannot be told now.
        """
        mine, record = self._owner.node_id, await self._owner.load(stream_id)
        if record.home in (None, mine) or mine in record.members:
            return False
        found = await self.recover(stream_id, None)
        if not is_past(record, mine, found.local) or not await self._is_noted(stream_id):
            return False
        # Coordination may have been rebuilt before the bucket was told: as it named this node.
        record = await self._owner.load(stream_id)
        if not is_past(record, mine, found.local):
            return False
        try:
            await in_thread(self._context.executor, self._give_up, stream_id, record.epoch, True)
        except OSError as error:
            raise _storage_failed() from error
        self._context.disk.count(stream_id, 0)
        return True

    async def claim(self, stream_id: StreamId, found: FoundHere) -> LocalAppender:
        """Claim what was found, and take appends.

        Raises:
            StoreError: as `Owner.claim`; also `storage-failed`, outcome none.
        """
        # A segment may lie here without a chunk, and then says nothing of producers.
        says = any(len(segment.index) for segment in found.segments)
        keeper = None if says else _Keeper(stream_id, found, self.keep)
        record, claim = await self._owner.claim(stream_id, found.local, found.record, keeper)
        if keeper is not None:
            found = keeper.found
        try:
            return await self._begin(stream_id, found, record, claim)
        except OSError as error:
            raise _storage_failed() from error

    async def keep(
        self, stream_id: StreamId, found: FoundHere, record: StreamRecord, left: LeftChunk
    ) -> FoundHere:
        """Let a stream's log begin with what its last owner left; returns what lies here then.

        Raises:
            Corrupt: what was left is damaged.
            WriteRefused: `storage-full` or `storage-failed`.
            LogBroken: `storage-failed`, outcome none.
        """
        take_left(found.tracking, left)
        local = self._log_of(stream_id, found, left.header.first_offset, left.header.timestamp)
        elapsed = self._context.clocks.elapsed()
        try:
            if found.is_nothing:
                await in_thread(self._context.executor, self._make_dir, local.directory)
            await in_thread(
                self._context.executor, begin_with_left, local, left, record, found.local, elapsed
            )
        except (OSError, LogBroken) as error:
            raise _storage_failed() from error
        return replace(
            found,
            segments=local.segments,
            last_timestamp=local.last_timestamp,
            is_nothing=False,
        )

    async def _begin(
        self, stream_id: StreamId, found: FoundHere, record: StreamRecord, claim: Claim
    ) -> LocalAppender:
        directory = stream_dir(self._data_dir, stream_id)
        if found.is_nothing:
            await in_thread(self._context.executor, self._make_dir, directory)
        local = self._log_of(
            stream_id, found, claim.first_offset, record.last_timestamp, shown_at_claim(record)
        )
        replicate = self._context.replicate
        appender = LocalAppender(
            self._context,
            claim,
            local,
            record,
            found.tracking,
            self._changed,
            None if replicate is None else replicate(record, claim, local),
        )
        await appender.start()
        return appender

    def _log_of(
        self,
        stream_id: StreamId,
        found: FoundHere,
        next_offset: int,
        last_timestamp: int,
        committed_next: int | None = None,
    ) -> SegmentLog:
        return SegmentLog(
            self._files,
            stream_dir(self._data_dir, stream_id),
            stream_id,
            self._roll,
            segments=found.segments,
            next_offset=next_offset,
            last_timestamp=max(found.last_timestamp, last_timestamp),
            committed_next=committed_next,
        )

    async def _is_noted(self, stream_id: StreamId) -> bool:
        """Whether the bucket says by now who has a stream."""
        try:
            await self._owner.note_home(stream_id)
        except StoreError as error:
            log.warning("an older local log stays", stream_id=stream_id, error=str(error))
            return False
        return True

    def _read(
        self, directory: Path, stream_id: StreamId, elapsed: int, cut_at: tuple[int, int] | None
    ) -> tuple[Recovered, Tracking]:
        found = recover(self._files, directory, stream_id, elapsed, cut_at)
        return found, read_tracking(self._files, directory, found.segments, self._context.tracking)

    def _sizes(self, stream_ids: Sequence[StreamId]) -> dict[StreamId, int]:
        found: dict[StreamId, int] = {}
        for stream_id in stream_ids:
            with suppress(OSError):
                found[stream_id] = stored_size(self._files, stream_dir(self._data_dir, stream_id))
        return found

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


class _Keeper:
    """Keeps what the last owner of a stream left, where nothing lies here that says as much."""

    def __init__(
        self,
        stream_id: StreamId,
        found: FoundHere,
        keep: Callable[[StreamId, FoundHere, StreamRecord, LeftChunk], Awaitable[FoundHere]],
    ) -> None:
        self.found = found
        """What lies here by now."""
        self.kept: bytes | None = None
        self._stream_id = stream_id
        self._keep = keep

    def is_left_at(self, left: bytes, next_offset: int) -> bool:
        try:
            return left_chunk(left).header.first_offset == next_offset
        except Corrupt as error:
            raise self._damaged(error) from error

    async def keep(self, record: StreamRecord, left: bytes) -> None:
        try:
            self.found = await self._keep(self._stream_id, self.found, record, left_chunk(left))
        except Corrupt as error:
            raise self._damaged(error) from error
        self.kept = left

    def _damaged(self, error: Corrupt) -> Unavailable:
        stream_id = self._stream_id
        log.error("what was left of producers is damaged", stream_id=stream_id, error=str(error))
        return Unavailable("what is known of producers is damaged", retryable=False)


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
        epochs=epochs_of(found.segments),
    )


@guard("what is shown of a log when it is claimed")
def shown_at_claim(record: StreamRecord) -> int | None:
    """The end of what may be shown at once of a log that was claimed; None if that is all of it.

    With replicas the rest may lie here alone, and whoever claims the stream next would not have it.
    """
    return record.published_next if record.members else None


def _storage_failed() -> LogBroken:
    return LogBroken("the local disk does not work", outcome=Outcome.NONE)
