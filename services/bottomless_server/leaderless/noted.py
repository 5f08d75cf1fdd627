"""What the notes in the bucket say of the end of a leaderless stream, after coordination was lost. Pure.

    manifest ... end | noted | gap | noted | ...      | gap of 2^32 offsets
                             not noted ^                ^ only after an undecided object

All that is noted was committed, and is brought back. What lies between was committed too, by a writer
that died with its notes: its offsets are never used again. An undecided object may hold records that
somebody has read already, at offsets that nobody knows; so the stream goes on far beyond them.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from bottomless.guards import guard
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import Uid

UNDECIDED_COUNT: Final = 2**32
"""More records than all undecided objects of a stream can hold."""


class NotedEntry(NamedTuple):
    """Adjacent pieces of one stream that were committed, as a note says. Bounds are offsets."""

    first_offset: int
    record_count: int
    epoch: int
    timestamp: int
    number: int
    """The number of the commit among those of its stream."""
    instance: Uid
    sequence: int
    position: int
    """Byte of the WAL object at which the pieces begin."""
    size: int

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.record_count


class StreamEnd(NamedTuple):
    """What a rebuild puts after the end of a manifest."""

    entries: Sequence[NotedEntry]
    """In the order of their offsets; where one does not go on from the last, a gap comes between."""
    goes_on_at: int
    """The next offset of the stream; what lies before it and in no entry is a gap."""
    differs_at: int | None = None
    """Where two notes of one epoch say different things, which is a bug: nothing is believed from
    there on."""


def end_of(next_offset: int, noted: Collection[NotedEntry], *, undecided: bool) -> StreamEnd:
    """Find what comes after a manifest that ends at `next_offset`.

    `undecided` tells whether the stream has pieces in an undecided object.
    """
    # The same note twice is one.
    beyond = sorted({one for one in noted if one.next_offset > next_offset})
    kept: list[NotedEntry] = []
    differs_at: int | None = None
    for one in beyond:
        if any(_overlap(last, one) and last.epoch > one.epoch for last in kept[-1:]):
            continue
        while kept and _overlap(kept[-1], one) and kept[-1].epoch < one.epoch:
            kept.pop()
        if kept and _overlap(kept[-1], one):
            differs_at = kept.pop().first_offset
            break
        kept.append(one)
    goes_on_at = max(next_offset, kept[-1].next_offset if kept else 0)
    if undecided or differs_at is not None:
        highest = max([goes_on_at, *(one.next_offset for one in beyond)])
        goes_on_at = after_undecided(highest)
    return StreamEnd(kept, goes_on_at, differs_at)


def _overlap(one: NotedEntry, other: NotedEntry) -> bool:
    return one.first_offset < other.next_offset and other.first_offset < one.next_offset


@guard("offsets after what was not decided before a loss")
def after_undecided(next_offset: int) -> int:
    """Where a stream goes on that may have given offsets after `next_offset` that nobody knows."""
    return min(next_offset + UNDECIDED_COUNT, OFFSET_MAX + 1)
