"""Have a manifest say that what lay on a drive is lost: a gap in the place of each fragment.

    descent = lose(root, number, new_uid, seal)
    entry = next(descent)          the group to load
    entry = descent.send(node)     … loaded; the next one
    StopIteration.value            the manifest with gaps, and what it displaces

The gap has the offsets and the times of the fragment, so that reads say what is missing, and retention
goes on as if it were there. One walk makes a bounded number of groups anew; `more` says that another one
has something to do.
"""

from collections.abc import Callable, Generator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.model.drive import DEFAULT_NUMBER, MIXED
from bottomless.model.manifest import Entries, EntryKind, Filters, GapReason, Node, taken
from bottomless.model.names import Uid
from bottomless_server.tree.path_copy import PathCopy
from bottomless_server.tree.rebalance import SealedNode
from bottomless_server.tree.retention import SUMMED, Totals

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


class Lost(NamedTuple):
    """A manifest with gaps where fragments were."""

    root: Node
    """Uid, version and epoch stay for the publisher to set. It is the same root if nothing was lost."""
    groups: tuple[SealedNode, ...] = ()
    """Lower heights first: each must be durable before anything that names it."""
    displaced: tuple[np.void, ...] = ()
    """The entries, as they were, of the groups on the way: they are not named any more, which says
    nothing about what is below them."""
    lost: Totals = Totals()
    more: bool = False
    """Whether there is more on the drive than one walk changes."""


def lose(
    root: Node,
    number: int,
    new_uid: Callable[[], Uid],
    seal: Callable[[Node], SealedNode],
    *,
    group_count_max: int = GROUP_COUNT_MAX,
) -> Generator[np.void, Node, Lost]:
    """The root that has gaps in the place of live fragments on the drive of this number."""
    assert DEFAULT_NUMBER < number < MIXED, "drive 0 is never lost"
    path = PathCopy(_Gaps(number), new_uid, seal, group_count_max)
    changed = yield from path.changed(root)
    if changed is None:
        return Lost(root, more=path.more)
    groups = tuple(one for one in path.displaced if one["kind"] == EntryKind.GROUP)
    return Lost(changed, tuple(path.groups), groups, path.changed_totals, path.more)


class _Gaps:
    """The change of a loss: a fragment on the drive becomes a gap."""

    def __init__(self, number: int) -> None:
        self._number = number

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
        made = entries.copy()
        for name in _ZEROED:
            made[name][which] = 0
        made["uid"][which] = np.void(bytes(16))
        made["kind"][which], made["reason"][which] = EntryKind.GAP, GapReason.DAMAGED
        # The blocks of filters of those that are gaps now go.
        return taken(made, filters)
