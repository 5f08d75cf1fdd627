"""Find what between two offsets can go to other drives, as somebody asks for it by hand. Pure.

A generator that wants groups as it goes, as `find_tiering` in tiering.py.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.model.drive import MIXED, NUMBER_MAX
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.manifest import Entries, Node
from bottomless_server.manifest.tree.core.move_search import (
    NOWHERE,
    Held,
    Move,
    MoveSearch,
    Verdict,
)
from bottomless_server.tree.retention import Totals


class Range(NamedTuple):
    """Offsets, and to which drive each drive's fragments among them are to go."""

    first_offset: int
    next_offset: int
    """Exclusive. A fragment that does not lie whole between the two is not meant."""
    targets: Mapping[int, int]
    """Drives by the number of the drive on which a fragment lies; what lies on another one stays."""


class RangeMoves(NamedTuple):
    moves: tuple[Move, ...]
    """The oldest ones first, as many as there is room for."""
    waiting: Totals
    """All that is to be moved and is not held; so what `moves` names too."""


Descent = Generator[np.void, Node, RangeMoves]
"""Yields the entry of the group to load, wants the node, returns the moves."""


def everything_to(drive: int) -> dict[int, int]:
    """The targets by which all fragments go to one drive."""
    return {number: drive for number in range(NUMBER_MAX + 1) if number != drive}


def one_tier_up(drives: Sequence[int]) -> dict[int, int]:
    """The targets by which fragments go to the drive of the tier before their own, given the drives
    of all tiers; those of the first tier, or of no tier, stay."""
    return dict(zip(drives[1:], drives[:-1], strict=True))


def find_range_moves(
    root: Node, wanted: Range, held: Sequence[Held], move_count_max: int
) -> Descent:
    """Find the first moves of a range, and how much there is to move in all."""
    outside = [Held(0, wanted.first_offset), Held(wanted.next_offset, OFFSET_MAX + 1)]
    apart = [one for one in outside if one.first_offset < one.next_offset]
    search = MoveSearch(_ByDrive(wanted.targets), [*held, *apart], move_count_max)
    yield from search.look_at(root.entries, root.first_offset)
    waiting = Totals()
    for found in search.waiting.values():
        waiting = waiting.plus(found)
    return RangeMoves(tuple(search.moves), waiting)


class _ByDrive:
    """The rule by which the drive of an entry says where it goes."""

    def __init__(self, targets: Mapping[int, int]) -> None:
        self._targets = np.full(MIXED + 1, NOWHERE, dtype=np.int64)
        for number, target in targets.items():
            self._targets[number] = target
        # What lies on several drives is looked into, wherever it goes.
        self._targets[MIXED] = MIXED

    def __call__(self, entries: Entries, firsts: NDArray[np.uint64]) -> Verdict:
        return Verdict(self._targets[entries["drive"]], np.ones(len(firsts), dtype=np.bool_))
