"""Have a manifest say that fragments lie elsewhere: a path copy of the groups that lead to them.

The bytes of a fragment that moved are the same, and so are its uid and its offsets; its entry gets
another drive, and the copy that its new key has. Nodes are immutable, so each group on the way is
made anew under a uid of its own, and at last the root.

    descent = relocate(root, relocation, new_uid, seal)
    entry = next(descent)          the group to load
    entry = descent.send(node)     … loaded; the next one
    StopIteration.value            what is to be put, and what nothing names any more

By offsets, and not by places in a node: between the moment at which a move was decided and this one
fragments may have come into a group, and a cut may have taken some away. What is below the floor, or
is not on the drive from which it was to go, stays as it is.

Who publishes the root puts the groups before it, and hands what it displaces to deletion in the EXEC
that names the root: each as one object, since what lay below a displaced group lies below its
successor.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.model.drive import MIXED
from bottomless.model.manifest import Entries, EntryKind, Filters, Node
from bottomless.model.names import Uid, uid_from_bytes
from bottomless_server.tree.path_copy import PathCopy
from bottomless_server.tree.rebalance import SealedNode
from bottomless_server.tree.retention import Totals


class Relocation(NamedTuple):
    """The fragments between two offsets that are on a drive, and where their copies are."""

    first_offset: int
    next_offset: int
    """Exclusive. A fragment that does not lie whole between the two is not meant."""
    from_drive: int
    to_drive: int
    copy: int
    """What the keys of the copies have after the uid; never 0, which is no copy."""
    only: frozenset[Uid] | None = None
    """The fragments that are meant, where not all of these are."""


class Relocated(NamedTuple):
    """A manifest that says where fragments lie now."""

    root: Node
    """Uid, version and epoch stay for the publisher to set. It is the same root if nothing moved."""
    groups: tuple[SealedNode, ...] = ()
    """Lower heights first: each must be durable before anything that names it."""
    displaced: tuple[np.void, ...] = ()
    """The entries, as they were, of the fragments that moved and of the groups on the way. Their
    objects are not named any more; of a group that says nothing about what is below it."""
    moved: Totals = Totals()


Descent = Generator[np.void, Node, Relocated]
"""Yields the entry of the group to load, wants the node, returns the manifest."""


def relocate(
    root: Node,
    relocation: Relocation,
    new_uid: Callable[[], Uid],
    seal: Callable[[Node], SealedNode],
) -> Descent:
    """The root that names the copies instead of what they were made from.

    Asked for is each group with live fragments between the two offsets, unless all that is below it
    is on another drive than the one from which they go.
    """
    assert relocation.copy > 0, "an object that was put first is no copy"
    assert max(relocation.from_drive, relocation.to_drive) < MIXED, "there is no such drive"
    path = PathCopy(_Placed(relocation), new_uid, seal)
    changed = yield from path.changed(root)
    if changed is None:
        return Relocated(root)
    return Relocated(changed, tuple(path.groups), tuple(path.displaced), path.changed_totals)


class _Placed:
    """The change of a relocation: the entry of a fragment says where it lies now."""

    def __init__(self, relocation: Relocation) -> None:
        self._relocation = relocation

    def made_of(
        self, entries: Entries, filters: Filters, which: NDArray[np.bool_]
    ) -> tuple[Entries, Filters]:
        made = entries.copy()
        made["drive"][which] = self._relocation.to_drive
        made["copy"][which] = self._relocation.copy
        return made, filters

    def fragments_of(self, entries: Entries, floor: int) -> NDArray[np.bool_]:
        first, end = (
            np.uint64(self._relocation.first_offset),
            np.uint64(self._relocation.next_offset),
        )
        found: NDArray[np.bool_] = (
            (entries["kind"] == EntryKind.FRAGMENT)
            & (entries["first_offset"] >= first)
            & (entries["next_offset"] <= end)
            & (entries["next_offset"] > np.uint64(floor))
            & (entries["drive"] == self._relocation.from_drive)
        )
        only = self._relocation.only
        if only is not None:
            for number in np.flatnonzero(found):
                found[number] = uid_from_bytes(entries["uid"][number].tobytes()) in only
        return found

    def groups_of(self, entries: Entries, floor: int) -> NDArray[np.bool_]:
        first = max(self._relocation.first_offset, floor)
        drives = entries["drive"]
        found: NDArray[np.bool_] = (
            (entries["kind"] == EntryKind.GROUP)
            & (entries["first_offset"] < np.uint64(self._relocation.next_offset))
            & (entries["next_offset"] > np.uint64(first))
            & ((drives == self._relocation.from_drive) | (drives == MIXED))
        )
        return found
