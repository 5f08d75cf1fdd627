"""Decide which task reads which offsets. Pure; the reading is in read.py.

A task costs some 50 ms before its first row, so consecutive fragments are packed
until a task has bytes enough. A fragment that is larger than a task should be is cut
by offsets in equal shares: the worker finds the chunks of its share in the index.
The tail, which is not in object storage, is one task of its own: it is bounded by what
local disks hold and comes through the reader anyway.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Stored(NamedTuple):
    """A fragment as the list shows it. `next_offset` is exclusive."""

    fragment_id: str
    object_key: str | None
    """Where it lies; None where workers do not open it by themselves."""
    first_offset: int
    next_offset: int
    size: int
    """Bytes of the whole object."""
    index_position: int
    place: int = 0
    """The number of its store, among those of a plan from 0 on: fragments may be on several drives."""


class Slice(NamedTuple):
    """The offsets `first_offset` to `next_offset`, exclusive, of one stored fragment."""

    fragment: Stored
    first_offset: int
    next_offset: int

    @property
    def size(self) -> int:
        """Bytes that reading it costs, as its share of the object."""
        fragment = self.fragment
        held = fragment.next_offset - fragment.first_offset
        return -(-fragment.size * (self.next_offset - self.first_offset) // held)


class Share(NamedTuple):
    """What one task reads: slices of fragments, or a range of the tail if there are none."""

    first_offset: int
    next_offset: int
    slices: tuple[Slice, ...]


def plan(
    fragments: Iterable[Stored],
    *,
    first_offset: int,
    next_offset: int,
    target_bytes: int,
    min_shares: int = 1,
    stored_next: int = 0,
) -> list[Share]:
    """Split a range of offsets into shares, in offset order, each offset in exactly one.

    `fragments` are in offset order and may extend beyond the range on both sides; where they end
    before the range does, the rest is the tail, but for what lies before `stored_next`: that is known
    to hold nothing of what is read. Offsets between fragments hold nothing of it either, and belong to
    no share. A share has about `target_bytes`, and less where otherwise there
    would be fewer than `min_shares`, or where the next fragment lies in another store: a task opens one.
    """
    assert first_offset <= next_offset
    clipped = [cut for item in fragments if (cut := _clip(item, first_offset, next_offset))]
    tail = max(clipped[-1].next_offset if clipped else first_offset, stored_next)
    wanted = min(target_bytes, max(1, sum(cut.size for cut in clipped) // min_shares))
    pieces = [piece for cut in clipped for piece in _divide(cut, wanted)]
    shares = [
        Share(run[0].first_offset, run[-1].next_offset, tuple(run)) for run in _pack(pieces, wanted)
    ]
    if tail < next_offset:
        shares.append(Share(tail, next_offset, ()))
    return shares


def _clip(fragment: Stored, first_offset: int, next_offset: int) -> Slice | None:
    first = max(first_offset, fragment.first_offset)
    end = min(next_offset, fragment.next_offset)
    return Slice(fragment, first, end) if first < end else None


def _divide(piece: Slice, wanted: int) -> list[Slice]:
    held = piece.next_offset - piece.first_offset
    count = min(held, max(1, round(piece.size / wanted)))
    bounds = [piece.first_offset + held * number // count for number in range(count + 1)]
    return [Slice(piece.fragment, start, end) for start, end in pairwise(bounds)]


def _pack(pieces: Sequence[Slice], wanted: int) -> list[list[Slice]]:
    runs: list[list[Slice]] = []
    held = 0
    for piece in pieces:
        # Half of the next one over the bound is better than a small rest after it, but
        # never more than half of a whole share above it.
        over = held + piece.size // 2 > wanted or held + piece.size > wanted + wanted // 2
        elsewhere = bool(runs) and runs[-1][-1].fragment.place != piece.fragment.place
        if not runs or over or elsewhere:
            runs.append([])
            held = 0
        runs[-1].append(piece)
        held += piece.size
    return runs
