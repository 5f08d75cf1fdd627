"""Locate: from what a reader asks for to the offset where it starts, and to the chunks that hold it.

Who decides what: a start too low is moved by the manifest's floor alone, one too high by
the live owner's committed offset alone. The search in a node is services/bottomless_server/tree/search.py.

On the record's path: after services/bottomless_server/manifest/tree/committer.py published the
root, before ../fragments.py reads the bytes.
"""

from typing import NamedTuple

import numpy as np

from bottomless.errors import Code, Corrupt, OffsetGone
from bottomless.formats.fragment import FragmentIndex
from bottomless.model.offset_spec import At, OffsetSpec, Since
from bottomless_server.protocol.tail import Bounds


class Start(NamedTuple):
    """Where a read begins, and whether that is not where it was asked to."""

    offset: int
    clamped: str | None = None
    """`low` or `high`."""


def above_floor(spec: OffsetSpec, wanted: int, floor: int, next_offset: int, strict: bool) -> Start:
    """Move a start that retention or trim has passed; `next_offset` is for the error's facts.

    Raises:
        OffsetGone: `offset-trimmed`, of a numeric offset if `strict`.
    """
    if wanted >= floor:
        return Start(wanted)
    if strict and isinstance(spec, At):
        raise OffsetGone(
            "the offset was removed by retention or trim",
            code=Code.OFFSET_TRIMMED,
            facts={"first_offset": floor, "next_offset": next_offset},
        )
    return Start(floor, "low")


def below_end(
    spec: OffsetSpec, start: Start, first_offset: int, committed_next: int, strict: bool
) -> Start:
    """Move a start that nobody has written yet; exactly the next offset is a place to wait at.

    Raises:
        OffsetGone: `offset-out-of-range`, of a numeric offset if `strict`.
    """
    if start.offset <= committed_next:
        return start
    if strict and isinstance(spec, At):
        raise OffsetGone(
            "the offset is beyond the end of the stream",
            code=Code.OFFSET_OUT_OF_RANGE,
            facts={"first_offset": first_offset, "next_offset": committed_next},
        )
    return Start(committed_next, "high")


def outside_gaps(
    spec: OffsetSpec, start: Start, gap: tuple[int, int], bounds: tuple[int, int]
) -> None:
    """Refuse a start within offsets that were given up; `gap` and `bounds` are first and next.

    At the first offset of a gap stands who read everything before it: that reader goes on, and
    the page names the gap.

    Raises:
        OffsetGone: `offset-trimmed`, of a numeric offset.
    """
    if isinstance(spec, At) and gap[0] < start.offset < gap[1]:
        raise OffsetGone(
            "the offset was given up; nothing is stored for it",
            code=Code.OFFSET_TRIMMED,
            facts={
                "first_offset": bounds[0],
                "next_offset": bounds[1],
                "readable_offset": gap[1],
            },
        )


def hole_of(bounds: Bounds, published_next: int) -> tuple[int, int] | None:
    """What neither tier has: first and next offset, None if they meet.

    `published_next` is of a root at least as new as `bounds` ask for. An owner frees only what is
    published, so where its log begins beyond that, what was between is lost and does not come.
    """
    stored_next = max(published_next, bounds.published_next)
    return (
        (stored_next, bounds.local_first_offset)
        if bounds.local_first_offset > stored_next
        else None
    )


def outside_hole(position: int, hole: tuple[int, int] | None) -> None:
    """Refuse to read within what is lost.

    Raises:
        Corrupt: `local-log-lost`.
    """
    if hole is not None and hole[0] <= position < hole[1]:
        raise Corrupt(
            "records are lost: the object store has none of them, and the owner's log begins later",
            code=Code.LOCAL_LOG_LOST,
            facts={"first_offset": hole[0], "readable_offset": hole[1]},
        )


def since_clamped(spec: OffsetSpec, start: Start, first_offset: int, timestamp: int) -> Start:
    """Say `low` where a time before the first record was asked for; `timestamp` is of the start."""
    if isinstance(spec, Since) and start.offset == first_offset and timestamp > spec.timestamp:
        return Start(start.offset, "low")
    return start


def chunks_wanted(index: FragmentIndex, offset: int, size: int, end: int) -> range:
    """Numbers of the chunks to read: from the one that holds `offset`, at least that one.

    As many as start within `size` bytes, and none that starts at or beyond `end`.
    """
    first = index.at_offset(offset)
    positions, firsts = index.records["position"], index.records["first_offset"]
    limit = positions[first] + np.uint64(size)
    by_size = int(np.searchsorted(positions, limit, side="left"))
    by_end = int(np.searchsorted(firsts, np.uint64(end), side="left"))
    return range(first, max(first + 1, min(by_size, by_end)))
