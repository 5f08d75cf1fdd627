"""Find what of a stream lies on a drive that is too good for it: policy and totals to moves.

Which tier a record belongs to follows from its place in the stream, by the rules of retention, and
not from where it lies now (docs/decisions/0130): the newest bytes within the limits of the first tier
belong there, what is older to the next, and so on. So moves under way change nothing of it. What
lies on the drive of an earlier tier than its own moves there at once, and so does what lies on a
drive that no tier names; nothing moves back up.

    descent = find_tiering(root, tiers, now)
    entry = next(descent)          the group whose node is wanted
    entry = descent.send(node)     … loaded; the next one
    StopIteration.value            the tiering

A preview is this function, and what happens is its `moves`.
"""

from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.model.drive import MIXED
from bottomless.model.limits import MOVE_COUNT_MAX, MOVED_COUNT_MAX, TIER_COUNT_MAX
from bottomless.model.manifest import Entries, EntryKind, Node
from bottomless_server.tree.retention import (
    MoreThan,
    OlderThan,
    Totals,
    find_cut,
    larger,
    live_entries,
    totals,
)


class Tier(NamedTuple):
    """A drive, and what of the newest records belongs on it; the last tier has no limit."""

    drive: int
    max_age_ms: int | None = None
    max_bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.max_age_ms is not None or self.max_bytes is not None


class Held(NamedTuple):
    """Offsets that are left alone: a move is under way there, or somebody asked for it."""

    first_offset: int
    next_offset: int


class Move(NamedTuple):
    """Neighbours in one node, all on one drive, that belong on another one."""

    first_offset: int
    next_offset: int
    from_drive: int
    to_drive: int
    moved: Totals


class Tiering(NamedTuple):
    """Where the tiers of a stream begin, and what has to be moved for that."""

    starts: tuple[int, ...]
    """The first offset that belongs to each tier; they never rise."""
    moves: tuple[Move, ...]
    """The oldest ones first, as many as were asked for."""
    waiting: dict[tuple[int, int], Totals]
    """All that has to be moved and is not held, by the drives from and to; so what `moves` names too."""


Descent = Generator[np.void, Node, Tiering]
"""Yields the entry of the group to load, wants the node, returns the tiering."""


def find_tiering(
    root: Node,
    tiers: Sequence[Tier],
    now: int,
    held: Sequence[Held] = (),
    move_count_max: int = MOVE_COUNT_MAX,
) -> Descent:
    """What the policy asks for at the time `now`, in ms since 1970, and the first moves to it.

    Asked for are, beside the groups on the way to each start, those that say neither yes nor no by
    themselves: they lie on several drives, across a start or across what is held. Those that go
    whole are opened only for as long as moves are wanted.
    """
    require_policy(tiers)
    starts = yield from _find_starts(root, tiers, now)
    search = _Search(tiers, starts, held, move_count_max)
    yield from search.look_at(root.entries, root.first_offset)
    return Tiering(starts, tuple(search.moves), search.waiting)


def require_policy(tiers: Sequence[Tier]) -> None:
    """Tiers that mean something: each drive once, an end to each but the last.

    Raises:
        ValueError: they are something else; the message says what is wrong.
    """
    if not 1 <= len(tiers) <= TIER_COUNT_MAX:
        raise ValueError(f"there must be 1 to {TIER_COUNT_MAX} tiers")
    if any(not 0 <= tier.drive < MIXED for tier in tiers):
        raise ValueError(f"the number of a drive is less than {MIXED}")
    if len({tier.drive for tier in tiers}) < len(tiers):
        raise ValueError("each drive may be in one tier")
    if tiers[-1].is_limited or not all(tier.is_limited for tier in tiers[:-1]):
        raise ValueError("each tier but the last must have a limit, and the last must have none")
    if any((tier.max_age_ms or 0) < 0 or (tier.max_bytes or 0) < 0 for tier in tiers):
        raise ValueError("no limit may be negative")


def _find_starts(
    root: Node, tiers: Sequence[Tier], now: int
) -> Generator[np.void, Node, tuple[int, ...]]:
    total = totals(root.entries).byte_size
    starts: list[int] = []
    end, newer_bytes = root.next_offset, 0
    for tier in tiers[:-1]:
        cuts = []
        if tier.max_age_ms is not None:
            cuts.append((yield from find_cut(root, OlderThan(now - tier.max_age_ms))))
        if tier.max_bytes is not None:
            cuts.append((yield from find_cut(root, MoreThan(newer_bytes + tier.max_bytes))))
        cut = larger(tuple(cuts), root.first_offset)
        # Where a later tier asks for less than those before it, nothing belongs to it.
        if cut.floor < end:
            end, newer_bytes = cut.floor, total - cut.gone.byte_size
        starts.append(end)
    return (*starts, root.first_offset)


class _Search:
    """One walk from the oldest entry to the newest, and what it has found."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        starts: tuple[int, ...],
        held: Sequence[Held],
        move_count_max: int,
    ) -> None:
        self.moves: list[Move] = []
        self.waiting: dict[tuple[int, int], Totals] = {}
        self._held = held
        self._move_count_max = move_count_max
        self._rising_starts = np.array(starts[-2::-1], dtype=np.uint64)
        self._drives = np.array([tier.drive for tier in tiers], dtype=np.uint8)
        # A drive that no tier names counts as one before all tiers.
        self._tier_of_drive = np.full(MIXED + 1, -1, dtype=np.int64)
        self._tier_of_drive[self._drives] = np.arange(len(tiers))

    def look_at(self, entries: Entries, floor: int) -> Generator[np.void, Node, None]:
        """Find what has to be moved of a node's live entries, and of what lies below them."""
        kinds = entries["kind"]
        firsts = np.maximum(entries["first_offset"], np.uint64(floor))
        deepest = self._tiers_at(firsts)
        newest = self._tiers_at(entries["next_offset"] - np.uint64(1))
        apart, within = self._held_among(entries, firsts)
        early = self._tier_of_drive[entries["drive"]] < deepest
        wanted = early & (kinds != EntryKind.GAP) & ~within
        opened = (entries["drive"] == MIXED) | (deepest != newest) | ~apart
        for first, end in _runs(wanted, kinds, entries["drive"], deepest):
            if kinds[first] == EntryKind.FRAGMENT:
                self._take_fragments(entries[first:end], int(deepest[first]))
            elif opened[first] or self._wants_moves:
                node = yield entries[first]
                below = live_entries(node, floor, totals(entries[first : first + 1]))
                yield from self.look_at(below, floor)
            else:
                self._count(entries[first:end], int(deepest[first]))

    @property
    def _wants_moves(self) -> bool:
        return len(self.moves) < self._move_count_max

    def _tiers_at(self, offsets: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many tiers begin only after each of the offsets."""
        before = np.searchsorted(self._rising_starts, offsets, side="right")
        return len(self._rising_starts) - before

    def _held_among(
        self, entries: Entries, firsts: NDArray[np.uint64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Tell which entries have nothing that is held, and which are held whole.

        A fragment is held whole if any part of it is.
        """
        ends, is_group = entries["next_offset"], entries["kind"] == EntryKind.GROUP
        apart = np.ones(len(entries), dtype=np.bool_)
        within = np.zeros(len(entries), dtype=np.bool_)
        for first, end in self._held:
            touched = (firsts < np.uint64(end)) & (ends > np.uint64(first))
            covered = (firsts >= np.uint64(first)) & (ends <= np.uint64(end))
            apart &= ~touched
            within |= touched & (covered | ~is_group)
        return apart, within

    def _take_fragments(self, run: Entries, tier: int) -> None:
        self._count(run, tier)
        for start in range(0, len(run), MOVED_COUNT_MAX):
            if not self._wants_moves:
                return
            part = run[start : start + MOVED_COUNT_MAX]
            self.moves.append(
                Move(
                    first_offset=int(part["first_offset"][0]),
                    next_offset=int(part["next_offset"][-1]),
                    from_drive=int(part["drive"][0]),
                    to_drive=int(self._drives[tier]),
                    moved=totals(part),
                )
            )

    def _count(self, run: Entries, tier: int) -> None:
        drives = int(run["drive"][0]), int(self._drives[tier])
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
