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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.model.drive import MIXED
from bottomless.model.limits import MOVE_COUNT_MAX, TIER_COUNT_MAX
from bottomless.model.manifest import Entries, Node
from bottomless_server.manifest.tree.core.move_search import (
    NOWHERE,
    Held,
    Move,
    MoveSearch,
    Verdict,
)
from bottomless_server.tree.retention import (
    MoreThan,
    OlderThan,
    Totals,
    find_cut,
    larger,
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
    search = MoveSearch(_Policy(tiers, starts), held, move_count_max)
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


class _Policy:
    """The rule that takes what lies on the drive of an earlier tier than its own to that one's."""

    def __init__(self, tiers: Sequence[Tier], starts: tuple[int, ...]) -> None:
        self._rising_starts = np.array(starts[-2::-1], dtype=np.uint64)
        self._drives = np.array([tier.drive for tier in tiers], dtype=np.int64)
        # A drive that no tier names counts as one before all tiers, and so does a mix of several.
        self._tier_of_drive = np.full(MIXED + 1, -1, dtype=np.int64)
        self._tier_of_drive[self._drives] = np.arange(len(tiers))

    def __call__(self, entries: Entries, firsts: NDArray[np.uint64]) -> Verdict:
        deepest = self._tiers_at(firsts)
        newest = self._tiers_at(entries["next_offset"] - np.uint64(1))
        early = self._tier_of_drive[entries["drive"]] < deepest
        return Verdict(np.where(early, self._drives[deepest], NOWHERE), deepest == newest)

    def _tiers_at(self, offsets: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many tiers begin only after each of the offsets."""
        before = np.searchsorted(self._rising_starts, offsets, side="right")
        return len(self._rising_starts) - before
