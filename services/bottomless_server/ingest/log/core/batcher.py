"""Give waiting appends their offsets and timestamp, and seal them into chunks.

Everything that waits becomes one chunk, as far as the bounds allow; an append larger
than a chunk becomes a group of chunks that stands alone and is visible with its last.
Rows of JSON and raw requests come first in a chunk, as one batch; Arrow batches follow.
That order is free to choose: requests that wait together overlap in time.

On the record's path: after records/intake.py (here a record gets its offset), before
formats/chunk.py and local/appender.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

from bottomless.formats.chunk import seal_chunk
from bottomless.formats.rows import Frame, build_batch, encode_frames
from bottomless.formats.tracking import seal_tracking
from bottomless.model.chunk import AppendEntry, AppendMode, ChunkFlags, TrackedEntry
from bottomless.model.limits import CHUNK_BATCH_COUNT_MAX, CHUNK_RECORD_COUNT_MAX
from bottomless_server.ingest.records.conditions import WithKey
from bottomless_server.ingest.records.intake import Append


class SealedChunk(NamedTuple):
    """The final bytes of one chunk, in several buffers for one gathered write."""

    buffers: list[bytes | memoryview]
    size: int
    record_count: int
    first_offset: int
    timestamp: int
    epoch: int
    entries: Sequence[AppendEntry] = ()
    """Entries of its trailer, for the state of producers once it is committed."""
    tracked: Sequence[TrackedEntry] = ()
    """Entries of a tracking chunk, for the state of producers once it is committed."""
    more_follows: bool = False


class Placement(NamedTuple):
    """Where an append went."""

    first_offset: int
    record_count: int


class Round(NamedTuple):
    """What is written and synced at once: one chunk, or one group of chunks."""

    chunks: list[SealedChunk]
    placements: list[Placement]
    """A placement for each append, in the order in which they were given."""
    timestamp: int
    next_offset: int

    @property
    def size(self) -> int:
        return sum(chunk.size for chunk in self.chunks)


class RoundSpace:
    """How much more one round takes."""

    def __init__(self, chunk_size_max: int) -> None:
        self._chunk_size_max = chunk_size_max
        self._size = self._records = self._batches = self._number = 0

    def take(self, append: Append) -> bool:
        """Whether the append goes into this round; the first always does, if need be alone."""
        self._size += append.size
        self._records += append.record_count
        self._batches += max(len(append.frames), 1)
        self._number += 1
        return self._number == 1 or self._fits

    @property
    def full(self) -> bool:
        """Whether nothing else may go in."""
        return not self._fits

    @property
    def _fits(self) -> bool:
        # One batch is kept free for the rows, which share it.
        return (
            self._size <= self._chunk_size_max
            and self._records <= CHUNK_RECORD_COUNT_MAX
            and self._batches < CHUNK_BATCH_COUNT_MAX
        )


def seal_round(
    appends: Sequence[Append], *, next_offset: int, timestamp: int, epoch: int, chunk_size_max: int
) -> Round:
    """Seal what had room; `next_offset` is the offset of the first record."""
    if len(appends) == 1 and appends[0].size > chunk_size_max:
        return _seal_group(appends[0], next_offset, timestamp, epoch, chunk_size_max)
    rowed = [append for append in appends if append.rows is not None]
    framed = [append for append in appends if append.rows is None]
    frames: list[bytes | memoryview] = []
    rows = [append.rows for append in rowed if append.rows is not None]
    if rows:
        # One frame whatever its size: it is bounded by the chunk, but for what Arrow adds.
        frames += [
            part
            for frame in encode_frames(build_batch(rows), 2 * chunk_size_max)
            for part in frame.parts
        ]
    frames += [part for append in framed for frame in append.frames for part in frame.parts]
    places, entries, count = {}, [], 0
    for append in (*rowed, *framed):
        places[id(append)] = Placement(next_offset + count, append.record_count)
        entries.append(_entry(append, count, append.record_count))
        count += append.record_count
    chunk = _seal(frames, entries, count, next_offset, timestamp, epoch, ChunkFlags.NONE)
    placements = [places[id(append)] for append in appends]
    return Round([chunk], placements, timestamp, next_offset + count)


def _seal_group(
    append: Append, next_offset: int, timestamp: int, epoch: int, chunk_size_max: int
) -> Round:
    frames = append.frames
    if append.rows is not None:
        frames = tuple(encode_frames(build_batch([append.rows]), chunk_size_max))
    shares = _shares(frames, chunk_size_max)
    chunks, offset = [], next_offset
    for number, share in enumerate(shares):
        count = sum(frame.record_count for frame in share)
        last = number == len(shares) - 1
        flags = ChunkFlags.NONE if last else ChunkFlags.MORE_FOLLOWS
        data = [part for frame in share for part in frame.parts]
        entries = [_entry(append, 0, count, offset - next_offset)]
        chunks.append(_seal(data, entries, count, offset, timestamp, epoch, flags))
        offset += count
    return Round(chunks, [Placement(next_offset, append.record_count)], timestamp, offset)


def _shares(frames: Sequence[Frame], size_max: int) -> list[list[Frame]]:
    """Divide whole frames among chunks: as many as fit, at least one each."""
    shares: list[list[Frame]] = []
    size = 0
    for frame in frames:
        size += frame.size
        if not shares or size > size_max:
            shares.append([])
            size = frame.size
        shares[-1].append(frame)
    return shares


def _entry(append: Append, first_record: int, record_count: int, before: int = 0) -> AppendEntry:
    """The trailer entry of an append, or of its part that comes after `before` of its records."""
    identity = append.conditions.identity
    if identity is None:
        return AppendEntry(AppendMode.PLAIN, first_record, record_count, append.body_crc)
    if isinstance(identity, WithKey):
        return AppendEntry(
            AppendMode.KEY,
            first_record,
            record_count,
            append.body_crc,
            idempotency_hash=identity.key_hash,
            body_hash=append.body_hash,
        )
    number = identity.number
    if identity.mode is AppendMode.STRICT:
        number += before
    elif identity.mode is AppendMode.HIGHWATER:
        assert append.ids is not None
        number = int(append.ids[-1])
    return AppendEntry(
        identity.mode,
        first_record,
        record_count,
        append.body_crc,
        number,
        identity.epoch,
        identity.producer_id,
    )


def seal_state(
    entries: Sequence[TrackedEntry],
    *,
    first_offset: int,
    timestamp: int,
    epoch: int,
    more_follows: bool = False,
) -> SealedChunk:
    """Seal what is known of producers into a chunk that takes no offset."""
    parts = seal_tracking(
        entries,
        first_offset=first_offset,
        timestamp=timestamp,
        epoch=epoch,
        flags=ChunkFlags.MORE_FOLLOWS if more_follows else ChunkFlags.NONE,
    )
    size = sum(map(len, parts))
    return SealedChunk(
        parts, size, 0, first_offset, timestamp, epoch, (), entries, more_follows=more_follows
    )


def _seal(
    frames: Sequence[bytes | memoryview],
    entries: Sequence[AppendEntry],
    record_count: int,
    first_offset: int,
    timestamp: int,
    epoch: int,
    flags: ChunkFlags,
) -> SealedChunk:
    parts = seal_chunk(
        frames,
        entries,
        record_count=record_count,
        first_offset=first_offset,
        timestamp=timestamp,
        epoch=epoch,
        flags=flags,
    )
    return SealedChunk(
        parts,
        sum(map(len, parts)),
        record_count,
        first_offset,
        timestamp,
        epoch,
        entries,
        more_follows=ChunkFlags.MORE_FOLLOWS in flags,
    )
