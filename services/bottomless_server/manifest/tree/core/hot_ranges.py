"""Find the fragments that were fetched so often that their tier promotes them. Pure.

A generator that wants groups as it goes, as `find_tiering` in tiering.py. What was told may be of a
manifest before this one: a fragment counts only where it begins and lies as it was told.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from bottomless.model.drive import MIXED
from bottomless.model.manifest import EntryKind, Node
from bottomless_server.tree.retention import live_entries, totals

GROUP_COUNT_MAX: Final = 64
"""Groups that one search opens; what lies in others is found another time."""


class Fetched(NamedTuple):
    """What was fetched of a fragment."""

    first_offset: int
    drive: int
    """The number of the drive from which."""
    size: int
    """Bytes."""


class HotRange(NamedTuple):
    """Neighbours on one drive that are to be promoted."""

    first_offset: int
    next_offset: int
    """Exclusive."""
    drive: int


Descent = Generator[np.void, Node, list[HotRange]]
"""Yields the entry of the group to load, wants the node, returns the ranges."""


def find_hot_ranges(
    root: Node,
    fetched: Sequence[Fetched],
    reads: Mapping[int, int],
    group_count_max: int = GROUP_COUNT_MAX,
) -> Descent:
    """Ranges to promote, in the order of their offsets.

    `reads` says, for the number of each drive that promotes, from how many times its size on.
    """
    wanted = {one.first_offset: one for one in fetched if one.drive in reads}
    waiting = [(root.entries, np.array(sorted(wanted), dtype=np.uint64))]
    found: list[HotRange] = []
    opened = 0
    while waiting:
        entries, offsets = waiting.pop()
        places = (
            np.searchsorted(entries["first_offset"], offsets, side="right").astype(np.int64) - 1
        )
        for at in np.unique(places[places >= 0]).tolist():
            entry = entries[at]
            if entry["kind"] == EntryKind.FRAGMENT:
                one = wanted.get(int(entry["first_offset"]))
                if one is not None and _is_hot(entry, one, reads):
                    end = int(entry["next_offset"])
                    found.append(HotRange(one.first_offset, end, one.drive))
            elif entry["kind"] == EntryKind.GROUP and opened < group_count_max:
                if entry["drive"] != MIXED and int(entry["drive"]) not in reads:
                    continue
                opened += 1
                node = yield entry
                below = live_entries(node, root.first_offset, totals(entries[at : at + 1]))
                waiting.append((below, offsets[places == at]))
    return _joined(sorted(found))


def _is_hot(entry: np.void, fetched: Fetched, reads: Mapping[int, int]) -> bool:
    same = int(entry["drive"]) == fetched.drive
    return same and fetched.size >= reads[fetched.drive] * int(entry["object_size"])


def _joined(ranges: Sequence[HotRange]) -> list[HotRange]:
    joined: list[HotRange] = []
    for one in ranges:
        if joined and joined[-1][1:] == (one.first_offset, one.drive):
            joined[-1] = joined[-1]._replace(next_offset=one.next_offset)
        else:
            joined.append(one)
    return joined
