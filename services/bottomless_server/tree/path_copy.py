"""Change fragments anywhere in a manifest: a path copy of the groups that lead to them.

Nodes are immutable, so each group on the way to a changed fragment is made anew under a uid of its own,
and at last the root. Which fragments change, and into what, says a `Change`; offsets stay as they are.

    descent = path.changed(root)
    entry = next(descent)          the group to load
    entry = descent.send(node)     … loaded; the next one
    StopIteration.value            the root, or None if nothing has changed
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bottomless.model.manifest import Entries, EntryKind, Filters, Node
from bottomless.model.names import Uid, uid_bytes
from bottomless_server.tree.drives import drive_of
from bottomless_server.tree.rebalance import SealedNode
from bottomless_server.tree.retention import SUMMED, Totals, totals


class Change(Protocol):
    """Says which entries of a node change, and what becomes of them. `floor` is that of the root."""

    def fragments_of(self, entries: Entries, floor: int) -> NDArray[np.bool_]:
        """Pick the fragments that change."""

    def groups_of(self, entries: Entries, floor: int) -> NDArray[np.bool_]:
        """Pick the groups below which such fragments may be."""

    def made_of(
        self, entries: Entries, filters: Filters, which: NDArray[np.bool_]
    ) -> tuple[Entries, Filters]:
        """Make the entries of a node in which `which` have changed, and their filters. It never views
        the given ones."""


class _Changed(NamedTuple):
    entries: Entries
    filters: Filters
    gone: Totals
    """What is not live any more."""


class PathCopy:
    """One walk from the oldest entry to the newest, and what it has made and displaced."""

    def __init__(
        self,
        change: Change,
        new_uid: Callable[[], Uid],
        seal: Callable[[Node], SealedNode],
        group_count_max: int | None = None,
    ) -> None:
        self.groups: list[SealedNode] = []
        """Lower heights first."""
        self.displaced: list[np.void] = []
        """The entries, as they were, of the fragments that have changed, and of the groups on the way."""
        self.changed_totals = Totals()
        self.more = False
        """Whether groups were left out since there were so many: the same again goes on."""
        self._change = change
        self._new_uid = new_uid
        self._seal = seal
        self._group_count_max = group_count_max

    def changed(self, root: Node) -> Generator[np.void, Node, Node | None]:
        """Walk once through the manifest; uid, version and epoch of the root stay."""
        made = yield from self._changed(root, root.first_offset)
        return None if made is None else replace(root, entries=made.entries, filters=made.filters)

    def _changed(self, node: Node, floor: int) -> Generator[np.void, Node, _Changed | None]:
        which = self._change.fragments_of(node.entries, floor)
        entries, filters = self._change.made_of(node.entries, node.filters, which)
        self.changed_totals = self.changed_totals.plus(totals(node.entries[which]))
        self.displaced += list(node.entries[which])
        gone = totals(node.entries).minus(totals(entries))
        any_changed = bool(np.any(which))
        for number in np.flatnonzero(self._change.groups_of(node.entries, floor)).tolist():
            if self._group_count_max is not None and len(self.groups) >= self._group_count_max:
                self.more = True
                break
            below = yield node.entries[number]
            made = yield from self._changed(below, floor)
            if made is not None:
                group = replace(below, entries=made.entries, filters=made.filters)
                self._replace(entries, number, group, made.gone)
                self.displaced.append(node.entries[number])
                gone = gone.plus(made.gone)
                any_changed = True
        return _Changed(entries, filters, gone) if any_changed else None

    def _replace(self, entries: Entries, number: int, group: Node, gone: Totals) -> None:
        """Let an entry name a group that is made anew. What it says of time, values, and of what is
        live below it after cuts, which the group itself does not know, stays."""
        assert entries["kind"][number] == EntryKind.GROUP
        sealed = self._seal(replace(group, uid=self._new_uid()))
        self.groups.append(sealed)
        entries["uid"][number] = np.void(uid_bytes(sealed.node.uid))
        entries["object_size"][number] = len(sealed.data)
        entries["object_crc"][number] = sealed.crc
        entries["drive"][number] = drive_of(group.entries)
        for name, value in zip(SUMMED, gone, strict=True):
            entries[name][number] -= np.uint64(value)
