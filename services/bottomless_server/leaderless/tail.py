"""The tail of a leaderless stream, as a value.

A tail is a record and an index of entries. Both change in one transaction, so whoever sees the
record knows what stands in the index: entries without a hole from `pruned_next` to `next_offset`.

    floor ... pruned_next ... published_next ... next_offset
              |<--- entries, oldest first ------------------>|
              |<- leftovers ->|<- in no fragment yet ------->|

What changes it is in tail_changes.py; its bytes are in tail_format.py.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from bottomless.model.limits import OFFSET_MAX, WAL_SIZE_MAX
from bottomless.model.names import StreamId, Uid, stream_id_bytes
from bottomless.model.stream import unknown_epoch

SHARD_COUNT: Final = 16
"""Streams are shared out among uploaders by the last byte of their ids."""


class TailState(IntEnum):
    """Whether appends are committed. Zero is never valid."""

    OPEN = 1
    FENCED = 2
    """An operator stopped the stream; everything else goes on."""
    CLOSED = 3
    """The stream is being deleted; nothing is committed any more."""


class Tail(NamedTuple):
    """The tail record. Fields stand in wire order; bounds are exclusive next-offsets."""

    state: TailState
    epoch: int
    next_offset: int
    """After the last record that was committed."""
    number: int
    """Commits so far."""
    last_timestamp: int
    """Time of the last commit, in ms since 1970."""
    last_chunk_offset: int
    """First offset of the last chunk that was committed."""
    log_end: int
    """Bytes of pieces that were ever committed."""
    pruned_next: int
    """The end of the last entry that was taken out of the index."""
    pruned_end: int
    """`log_end` as it was there."""
    published_next: int
    """What the stream's record said when entries were pruned last."""
    manifest_version: int
    """What the stream's record said when entries were pruned last."""
    created_at: int
    entry_count: int
    producer_count: int
    key_count: int
    max_age_ms: int
    """`fragment.max_age_ms` of the stream's configuration."""
    generation: int

    @property
    def size(self) -> int:
        """Bytes of the pieces that the entries name."""
        return self.log_end - self.pruned_end


class TailEntry(NamedTuple):
    """One line of the index: pieces that were committed beside each other. Fields in wire order."""

    next_offset: int
    number: int
    """The commit that wrote it, counted in its stream."""
    timestamp: int
    log_end: int
    """Bytes of pieces that were ever committed, up to the end of these."""
    instance: Uid
    sequence: int
    position: int
    """Byte of the WAL object at which the pieces begin."""
    size: int
    record_count: int

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""
        return self.next_offset - self.record_count


class HeldMember(NamedTuple):
    """What holds a WAL object: entries of one shard that may name it. Fields in wire order."""

    sequence: int
    shard: int
    committed_at: int
    """The clock of the commit, in ms since 1970."""
    max_age_ms: int
    """The smallest of the streams that the commit was for."""
    entry_count: int


class SeenTail(NamedTuple):
    """The highest that somebody has seen of a tail: a store that shows less has gone back."""

    epoch: int = 0
    next_offset: int = 0
    pruned_next: int = 0


UNSEEN: Final = SeenTail()


def shard_of(stream_id: StreamId) -> int:
    """Tell the shard of a stream, from 0 to SHARD_COUNT - 1."""
    return stream_id_bytes(stream_id)[-1] % SHARD_COUNT


def first_epoch(generation: int) -> int:
    """Tell the epoch of every leaderless stream that is created, or rebuilt, in a generation."""
    return unknown_epoch(generation) + 1


def new_tail(
    *,
    generation: int,
    created_at: int,
    max_age_ms: int,
    next_offset: int = 0,
    last_timestamp: int = 0,
    manifest_version: int = 0,
) -> Tail:
    """Make the tail of a stream that has no entry: a new one, or one that a rebuild restores.

    `next_offset` is where the stream's manifest ends.
    """
    return Tail(
        state=TailState.OPEN,
        epoch=first_epoch(generation),
        next_offset=next_offset,
        number=0,
        last_timestamp=last_timestamp,
        last_chunk_offset=next_offset,
        log_end=0,
        pruned_next=next_offset,
        pruned_end=0,
        published_next=next_offset,
        manifest_version=manifest_version,
        created_at=created_at,
        entry_count=0,
        producer_count=0,
        key_count=0,
        max_age_ms=max_age_ms,
        generation=generation,
    )


def check_tail(tail: Tail) -> None:
    """Assert what must hold of every tail ever written; a failure is a bug."""
    assert tail.pruned_next <= tail.published_next <= tail.next_offset
    assert tail.pruned_next <= tail.next_offset <= OFFSET_MAX + 1
    assert tail.pruned_end <= tail.log_end
    assert tail.last_chunk_offset <= tail.next_offset
    assert (tail.entry_count == 0) == (tail.pruned_next == tail.next_offset)
    assert tail.size <= tail.entry_count * WAL_SIZE_MAX


def check_step(before: Tail, after: Tail) -> None:
    """Assert that nothing of a tail goes back from one value to the next."""
    check_tail(after)
    assert before.epoch <= after.epoch
    assert before.next_offset <= after.next_offset
    assert before.number <= after.number
    assert before.last_timestamp <= after.last_timestamp
    assert before.log_end <= after.log_end
    assert before.pruned_next <= after.pruned_next
    assert before.published_next <= after.published_next
    assert before.manifest_version <= after.manifest_version
    if before.state is TailState.CLOSED:
        assert after.state is TailState.CLOSED


def check_index(tail: Tail, entries: Sequence[TailEntry]) -> None:
    """Assert that a tail and its whole index say the same."""
    assert len(entries) == tail.entry_count
    offset, end, number = tail.pruned_next, tail.pruned_end, 0
    for entry in entries:
        assert entry.first_offset == offset, "the index has a hole"
        assert entry.log_end == end + entry.size
        assert entry.record_count > 0
        assert entry.number >= number
        offset, end, number = entry.next_offset, entry.log_end, entry.number
    assert (offset, end) == (tail.next_offset, tail.log_end)
    assert number <= tail.number
