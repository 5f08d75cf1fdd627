"""Find fragments that a rule wants on another drive, and put neighbours together to moves. Pure.

A rule says of entries to which drive each goes. It cannot always say so of a group: one that lies on
several drives, or of which only a part is meant, is asked for and looked into.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.model.drive import MIXED
from bottomless.model.limits import MOVED_COUNT_MAX
from bottomless.model.manifest import Entries, EntryKind, Node
from bottomless_server.tree.retention import Totals, live_entries, totals

NOWHERE: Final = -1
"""The target of what stays where it is."""


class Held(NamedTuple):
    """Offsets that are left alone: a move is under way there, or somebody asked for it."""

    first_offset: int
    next_offset: int


class HeldRanges:
    """All offsets that are left alone, so that those among the entries of a node are found without a look
    at each range: there may be thousands."""

    def __init__(self, held: Iterable[Held]) -> None:
        merged: list[list[int]] = []
        for first, end in sorted(held):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([first, end])
        self._firsts = np.array([first for first, _ in merged], dtype=np.uint64)
        self._ends = np.array([end for _, end in merged], dtype=np.uint64)

    def among(
        self, firsts: NDArray[np.uint64], ends: NDArray[np.uint64], is_group: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Tell which entries have nothing that is held, and which are held whole.

        A fragment is held whole if any part of it is. `ends` are exclusive.
        """
        if not len(self._ends):
            return np.ones(len(firsts), dtype=np.bool_), np.zeros(len(firsts), dtype=np.bool_)
        # The first range that ends in an entry or after it.
        found = np.searchsorted(self._ends, firsts, side="right")
        is_one, place = found < len(self._ends), np.minimum(found, len(self._ends) - 1)
        touched = is_one & (self._firsts[place] < ends)
        covered = touched & (self._firsts[place] <= firsts) & (self._ends[place] >= ends)
        return ~touched, touched & (covered | ~is_group)


class Move(NamedTuple):
    """Neighbours in one node, all on one drive, that belong on another one."""

    first_offset: int
    next_offset: int
    from_drive: int
    to_drive: int
    moved: Totals


class Verdict(NamedTuple):
    """What a rule says of entries, in their order."""

    targets: NDArray[np.int64]
    """The number of the drive to which each goes, or NOWHERE. Of a group that has to be opened some
    number: what is below it is asked about again."""
    sure: NDArray[np.bool_]
    """Whether the same is true of everything below an entry that lies on one drive."""


Rule = Callable[[Entries, NDArray[np.uint64]], Verdict]
"""Takes entries, and the first live offset of each."""
Descent = Generator[np.void, Node, None]
"""Yields the entry of the group to load, wants the node."""


class MoveSearch:
    """One walk from the oldest entry to the newest, and what it has found."""

    def __init__(self, rule: Rule, held: Sequence[Held], move_count_max: int) -> None:
        self.moves: list[Move] = []
        """The oldest ones first, as many as were asked for."""
        self.waiting: dict[tuple[int, int], Totals] = {}
        """All that the rule wants moved and that is not held, by the drives from and to."""
        self._rule = rule
        self._held = HeldRanges(held)
        self._move_count_max = move_count_max

    def look_at(self, entries: Entries, floor: int) -> Descent:
        """Find what has to be moved of a node's live entries, and of what lies below them.

        Asked for are the groups that say neither yes nor no by themselves; those that go whole are
        opened only for as long as moves are wanted.
        """
        kinds = entries["kind"]
        firsts = np.maximum(entries["first_offset"], np.uint64(floor))
        verdict = self._rule(entries, firsts)
        is_group = kinds == EntryKind.GROUP
        apart, within = self._held.among(firsts, entries["next_offset"], is_group)
        wanted = (verdict.targets != NOWHERE) & (kinds != EntryKind.GAP) & ~within
        opened = (entries["drive"] == MIXED) | ~verdict.sure | ~apart
        for first, end in _runs(wanted, kinds, entries["drive"], verdict.targets):
            target = int(verdict.targets[first])
            if kinds[first] == EntryKind.FRAGMENT:
                self._take_fragments(entries[first:end], target)
            elif opened[first] or self._wants_moves:
                node = yield entries[first]
                below = live_entries(node, floor, totals(entries[first : first + 1]))
                yield from self.look_at(below, floor)
            else:
                self._count(entries[first:end], target)

    @property
    def _wants_moves(self) -> bool:
        return len(self.moves) < self._move_count_max

    def _take_fragments(self, run: Entries, target: int) -> None:
        self._count(run, target)
        for start in range(0, len(run), MOVED_COUNT_MAX):
            if not self._wants_moves:
                return
            part = run[start : start + MOVED_COUNT_MAX]
            self.moves.append(
                Move(
                    first_offset=int(part["first_offset"][0]),
                    next_offset=int(part["next_offset"][-1]),
                    from_drive=int(part["drive"][0]),
                    to_drive=target,
                    moved=totals(part),
                )
            )

    def _count(self, run: Entries, target: int) -> None:
        drives = int(run["drive"][0]), target
        self.waiting[drives] = self.waiting.get(drives, Totals()).plus(totals(run))


def _runs(
    wanted: NDArray[np.bool_], kinds: NDArray[np.uint8], *same: NDArray[np.generic]
) -> Generator[tuple[int, int], None, None]:
    """First and end of each run of wanted neighbours that agree in everything else; each group is
    a run of its own."""
    together = wanted[1:] & wanted[:-1] & (kinds[1:] != EntryKind.GROUP)
    for values in (kinds, *same):
        together &= values[1:] == values[:-1]
    bounds = [0, *(np.flatnonzero(~together) + 1).tolist(), len(wanted)]
    for first, end in pairwise(bounds):
        if first < end and wanted[first]:
            yield first, end
