"""The log of a stream that another node owns, on the disk of this one.

It has the files of that node's log, byte for byte: its segments begin where that one's do, and its
chunks are written as they came. So it is read again after a crash as any log is, by `recover`, and
whoever becomes the owner of the stream goes on with it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bottomless.model.chunk import ChunkHeader
from bottomless.model.names import StreamId
from bottomless.model.segment import Checkpoint
from bottomless_server.ingest.log.core.batcher import Round, SealedChunk
from bottomless_server.ingest.log.epoch_runs import runs_of
from bottomless_server.ingest.log.recovery import Recovered
from bottomless_server.ingest.log.segments import RollBounds, Segment, SegmentLog
from bottomless_server.node.core.following import Held, HeldSegment
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.protocol.replica import Place

_NEVER: Final = RollBounds(size_max=2**63, age_ms_max=2**63, chunk_count_max=2**63)


class FollowedLog(SegmentLog):
    """A log that begins a segment where the owner's log does, and nowhere else."""

    begins_next = False
    """Whether the next round begins a segment; said before it is written."""

    @classmethod
    def of(
        cls, files: FileCalls, directory: Path, stream_id: StreamId, found: Recovered
    ) -> "FollowedLog":
        """The log that was found in a directory."""
        return cls(
            files,
            directory,
            stream_id,
            _NEVER,
            segments=found.segments,
            next_offset=found.next_offset,
            last_timestamp=found.last_timestamp,
        )

    def begin_at(self, first_offset: int) -> None:
        """Let an empty log begin at an offset, before which all is published."""
        assert not self.segments
        self.synced_next = self.committed_next = first_offset

    def _is_full(self, segment: Segment, sealed: Round, elapsed: int) -> bool:  # noqa: ARG002
        # The one that a refused write has left is used by the next attempt.
        return self.begins_next and segment.first_offset != sealed.chunks[0].first_offset


def round_of(chunks: Sequence[tuple[ChunkHeader, memoryview]]) -> Round:
    """Chunks as they came, as a round that is written and synced at once."""
    copied = [
        SealedChunk(
            [data],
            header.total_size,
            header.record_count,
            header.first_offset,
            header.timestamp,
            header.epoch,
        )
        for header, data in chunks
    ]
    last = chunks[-1][0]
    return Round(copied, [], last.timestamp, last.first_offset + last.record_count)


def held_of(segments: Sequence[Segment], epoch: int, committed_next: int) -> Held:
    """What a log holds, in the words of `node/core/following.py`."""
    return Held(epoch, committed_next, tuple(map(_held_segment, segments)))


def told_committed(checkpoint: Checkpoint | None) -> int:
    """The committed bound that a follower's checkpoint kept; 0 if an owner wrote it, or nobody.

    A follower writes the bound where an owner writes up to where it has reserved offsets. An owner
    reserves many more than it has records, so what is not above the synced end is a bound.
    """
    if checkpoint is None or checkpoint.reserved_next > checkpoint.synced_next:
        return 0
    return checkpoint.reserved_next


def last_timestamp_at(segments: Sequence[Segment], end: Place | None) -> int:
    """The timestamp of the last chunk that ends at or before a place; 0 if there is none."""
    for segment in reversed(segments):
        if end is None or segment.first_offset > end.segment_first or not len(segment.index):
            continue
        position = end.position if segment.first_offset == end.segment_first else segment.size
        number = segment.index.before(position)
        if number >= 0:
            return segment.index.place(number).timestamp
    return 0


def _held_segment(segment: Segment) -> HeldSegment:
    return HeldSegment(segment.first_offset, tuple(runs_of(segment)))
