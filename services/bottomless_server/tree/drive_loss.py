"""Have a manifest say that what lay on a drive is lost: a gap in the place of each fragment, but for those
of which the same bytes are on another drive, which are named there.

    descent = lose(root, number, new_uid, seal, elsewhere)
    entry = next(descent)          the group to load
    entry = descent.send(node)     … loaded; the next one
    StopIteration.value            the manifest with gaps, and what it displaces

The gap has the offsets and the times of the fragment, so that reads say what is missing, and retention
goes on as if it were there. One walk makes a bounded number of groups anew; `more` says that another one
has something to do.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.model.drive import DEFAULT_NUMBER, MIXED
from bottomless.model.manifest import Entries, EntryKind, Filters, GapReason, Node, taken
from bottomless.model.names import Uid, uid_from_bytes
from bottomless_server.tree.path_copy import PathCopy
from bottomless_server.tree.rebalance import SealedNode
from bottomless_server.tree.retention import SUMMED, Totals, totals

GROUP_COUNT_MAX: Final = 64
"""Groups that one walk makes anew at most, but for those on the way to the last one."""
_ZEROED: Final = (
    *SUMMED,
    "object_size",
    "object_crc",
    "index_size",
    "drive",
    "copy",
    "filter_blocks",
    "filter_presence",
    "filters_size",
)


class Elsewhere(NamedTuple):
    """Where the bytes of a fragment are beside the drive that its entry names."""

    drive: int
    copy: int
    """What its key has there after the uid; 0 for one that was never moved."""


_NOWHERE: Final[Mapping[Uid, Elsewhere]] = {}


class Lost(NamedTuple):
    """A manifest with gaps where fragments were."""

    root: Node
    """Uid, version and epoch stay for the publisher to set. It is the same root if nothing was lost."""
    groups: tuple[SealedNode, ...] = ()
    """Lower heights first: each must be durable before anything that names it."""
    displaced: tuple[np.void, ...] = ()
    """The entries, as they were, of the groups on the way: they are not named any more, which says
    nothing about what is below them."""
    fragments: tuple[np.void, ...] = ()
    """The entries, as they were, of the fragments that lay on the drive."""
    lost: Totals = Totals()
    kept: Totals = Totals()
    """What is named elsewhere now."""
    more: bool = False
    """Whether there is more on the drive than one walk changes."""


def lose(
    root: Node,
    number: int,
    new_uid: Callable[[], Uid],
    seal: Callable[[Node], SealedNode],
    elsewhere: Mapping[Uid, Elsewhere] = _NOWHERE,
    *,
    group_count_max: int = GROUP_COUNT_MAX,
) -> Generator[np.void, Node, Lost]:
    """The root that has gaps in the place of live fragments on the drive of this number, and names those
    that are `elsewhere` there."""
    assert DEFAULT_NUMBER < number < MIXED, "drive 0 is never lost"
    gaps = _Gaps(number, elsewhere)
    path = PathCopy(gaps, new_uid, seal, group_count_max)
    changed = yield from path.changed(root)
    if changed is None:
        return Lost(root, more=path.more)
    groups = tuple(one for one in path.displaced if one["kind"] == EntryKind.GROUP)
    fragments = tuple(one for one in path.displaced if one["kind"] == EntryKind.FRAGMENT)
    lost = path.changed_totals.minus(gaps.kept)
    return Lost(changed, tuple(path.groups), groups, fragments, lost, gaps.kept, path.more)


class _Gaps:
    """The change of a loss: a fragment on the drive becomes a gap, or is named elsewhere."""

    def __init__(self, number: int, elsewhere: Mapping[Uid, Elsewhere]) -> None:
        self._number = number
        self._elsewhere = elsewhere
        self.kept = Totals()
        """What was named elsewhere so far."""

    def fragments_of(self, entries: Entries, floor: int) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (
            (entries["kind"] == EntryKind.FRAGMENT)
            & (entries["drive"] == self._number)
            & (entries["next_offset"] > np.uint64(floor))
        )
        return found

    def groups_of(self, entries: Entries, floor: int) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (
            (entries["kind"] == EntryKind.GROUP)
            & ((entries["drive"] == self._number) | (entries["drive"] == MIXED))
            & (entries["next_offset"] > np.uint64(floor))
        )
        return found

    def made_of(
        self, entries: Entries, filters: Filters, which: NDArray[np.bool_]
    ) -> tuple[Entries, Filters]:
        made, gone = entries.copy(), which.copy()
        for at in np.flatnonzero(which).tolist():
            place = self._elsewhere.get(uid_from_bytes(entries["uid"][at].tobytes()))
            if place is not None:
                made["drive"][at], made["copy"][at] = place
                gone[at] = False
        self.kept = self.kept.plus(totals(entries[which & ~gone]))
        for name in _ZEROED:
            made[name][gone] = 0
        made["uid"][gone] = np.void(bytes(16))
        made["kind"][gone], made["reason"][gone] = EntryKind.GAP, GapReason.DAMAGED
        # The blocks of filters of those that are gaps now go.
        return taken(made, filters)
