"""Free segments that are published, and save the checkpoint of one stream.

The stream's appender calls it between rounds, so that one task does all that changes files.
Nothing here is needed for what was answered: without it recovery walks further, and the disk
stays fuller.

A segment goes in this order: manifest said that all of it is published, `local_keep_ms`
passed, a checkpoint names a later segment, the segment is offered no more, its files are
deleted, their directory is synced. After a crash at any step the rest of the log is whole.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import structlog

from bottomless.errors import Code, Overloaded
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless.model.segment import Checkpoint
from bottomless_server.ingest.log.segments import Segment, SegmentLog
from bottomless_server.node.lease import Clocks
from bottomless_server.runtime.base.shared_hops import SharedHops

log = structlog.get_logger(__name__)

_LITTLE_SHARE: Final = 256
"""Less than this part of `checkpoint_bytes` is little: 256 KiB, as they are set."""
_LITTLE_TIMES: Final = 8
"""How many times `checkpoint_ms` a checkpoint may be old before which little came."""


class FreeingBounds(NamedTuple):
    """When checkpoints are saved and how long segments stay: the settings of the same names."""

    local_keep_ms: int
    local_bytes_keep: int
    checkpoint_bytes: int
    checkpoint_ms: int


def is_checkpoint_due(grown: int, age_ms: int, bounds: FreeingBounds) -> bool:
    """Tell whether a checkpoint is to be saved, by the bytes that came since the last one and its age.

    Saving one costs two syncs, more than the append of a slow stream. So where little came it may be
    older: what recovery has to verify is little then, and the index tells up to where it was synced.
    """
    little = grown < bounds.checkpoint_bytes // _LITTLE_SHARE
    age_max = bounds.checkpoint_ms * (_LITTLE_TIMES if little else 1)
    return grown > 0 and (grown >= bounds.checkpoint_bytes or age_ms >= age_max)


class Noted(Protocol):
    """What a checkpoint says beside what the log and object storage say: a claim, of one's own
    streams."""

    @property
    def stream_id(self) -> StreamId: ...

    @property
    def epoch(self) -> int: ...

    @property
    def reserved_next(self) -> int: ...


_FOLLOWED_SHARE: Final = 8
"""This part of the bound is kept for logs that follow others', beyond what own streams may take."""


@dataclass(slots=True)
class DiskUse:
    """How many bytes the local logs of the whole process take, owned and followed."""

    bytes_max: int
    held: int = 0
    _sizes: dict[StreamId, int] = field(default_factory=dict)

    def count(self, stream_id: StreamId, size: int) -> None:
        """Count the log of a stream with so many bytes from now on; 0 is one that is not here."""
        self.held += size - self._sizes.pop(stream_id, 0)
        if size:
            self._sizes[stream_id] = size

    @guard("the bound of logs that follow others")
    def is_full(self) -> bool:
        """Whether nothing more is followed. Own appends are refused before: where all nodes hold as
        much, producers are to wait, and not the set in sync to become smaller."""
        return self.held > self.bytes_max + self.bytes_max // _FOLLOWED_SHARE

    def require_room(self) -> None:
        """Refuse appends while local segments take more than they may.

        Raises:
            Overloaded: `disk-bound`.
        """
        if self.held > self.bytes_max:
            raise Overloaded(
                "local logs wait for their upload",
                code=Code.DISK_BOUND,
                retry_after_seconds=2,
                facts={"limit_bytes": self.bytes_max},
            )


class SegmentFreeing:
    """Knows what is published of a stream, as far as this node has heard, and frees it in time."""

    def __init__(
        self,
        hops: SharedHops,
        clocks: Clocks,
        disk: DiskUse,
        bounds: FreeingBounds,
        claim: Noted,
        local: SegmentLog,
        published: tuple[int, int],
    ) -> None:
        self.published_next, self.version = published
        self._hops = hops
        self._clocks = clocks
        self._disk = disk
        self._bounds = bounds
        self._claim = claim
        self._log = local
        self._checkpoint: Checkpoint | None = None
        self._wanted = True
        self._saved_end = local.synced_end
        self._saved_at = clocks.elapsed()
        self._removing: deque[Segment] = deque()

    def note_published(self, next_offset: int, version: int) -> bool:
        """Note what object storage holds, which never goes back; returns whether that is news."""
        if next_offset <= self.published_next and version <= self.version:
            return False
        self.published_next = max(self.published_next, next_offset)
        self.version = max(self.version, version)
        self._wanted = True
        mark_published(self._log.segments, self.published_next, self._clocks.elapsed())
        return True

    def is_due(self) -> bool:
        """Whether `look` has anything to do now."""
        return bool(self._removing) or self._checkpoint_due() or self._next_to_free() is not None

    async def look(self, *, last: bool = False) -> None:
        """Do what is due; what fails is tried again at the next tick."""
        try:
            if last or self._checkpoint_due():
                await self.save_checkpoint()
            await self._free()
        except OSError as error:
            log.warning(
                "local files were not tidied", stream_id=self._claim.stream_id, error=str(error)
            )
            # Not at once: a full disk would be asked with every append.
            self._wanted = False
            self._saved_at = self._clocks.elapsed()

    async def save_checkpoint(self) -> None:
        """Note what is durable, and the most that was seen in coordination.

        Raises:
            OSError: the old one is still there, and true.
        """
        segment_first_offset, synced_position = self._log.synced_place()
        checkpoint = Checkpoint(
            stream_id=self._claim.stream_id,
            segment_first_offset=segment_first_offset,
            synced_position=synced_position,
            synced_next=self._log.synced_next,
            last_timestamp=self._log.last_timestamp,
            epoch=self._claim.epoch,
            version=self.version,
            published_next=self.published_next,
            reserved_next=self._claim.reserved_next,
        )
        end = self._log.synced_end
        self._wanted = False
        await self._hops.call(self._log.save_checkpoint, checkpoint)
        self._checkpoint = checkpoint
        self._saved_end = end
        self._saved_at = self._clocks.elapsed()

    def count_disk(self, *, closed: bool = False) -> None:
        """Bring the process's sum up to date."""
        self._disk.count(self._claim.stream_id, 0 if closed else self._log.size)

    def _checkpoint_due(self) -> bool:
        if self._wanted:
            return True
        grown = self._log.synced_end - self._saved_end
        return is_checkpoint_due(grown, self._clocks.elapsed() - self._saved_at, self._bounds)

    def _next_to_free(self) -> Segment | None:
        """The oldest segment, once all of it has been published for long enough."""
        if len(self._log.segments) < 2:
            # The active one never goes. Asked after each round, so it says so before all else.
            return None
        mark_published(self._log.segments, self.published_next, self._clocks.elapsed())
        if self._log.size <= self._bounds.local_bytes_keep:
            return None
        if not len(self._log.segments[-1].index):
            # What is known of producers stands in the one before, until something is written.
            return None
        oldest = self._log.segments[0]
        published_at = oldest.published_at
        now = self._clocks.elapsed()
        if published_at is None or now - published_at < self._bounds.local_keep_ms:
            return None
        return oldest

    async def _free(self) -> None:
        while (segment := self._next_to_free()) is not None:
            named = None if self._checkpoint is None else self._checkpoint.segment_first_offset
            if named is None or named <= segment.first_offset:
                # Recovery must find the segment that the checkpoint names.
                await self.save_checkpoint()
            self._log.forget(segment)
            self._removing.append(segment)
            self.count_disk()
        while self._removing:
            # In order, so that no hole can appear in the log.
            await self._hops.call(self._log.remove, self._removing[0])
            self._removing.popleft()


@guard("local frees after the EXEC, at the owner")
def mark_published(segments: Sequence[Segment], published_next: int, now: int) -> None:
    """Start the clock of segments that are published as a whole; the active one grows on."""
    for segment in segments[:-1]:
        if segment.next_offset > published_next:
            break
        if segment.published_at is None:
            segment.published_at = now
