"""Find out whether anything of a stream lies on a drive, as its manifest says.

    descent = lies_on(root, number)
    entry = next(descent)          the group whose node is wanted
    entry = descent.send(node)     … loaded; the next one
    StopIteration.value            whether anything does

Only groups of which the fragments lie on several drives are opened, and no more than are needed.
"""

from collections.abc import Generator

import numpy as np

from bottomless.model.drive import MIXED
from bottomless.model.manifest import Entries, EntryKind, Node
from bottomless_server.tree.retention import live_entries, totals


def lies_on(root: Node, number: int) -> Generator[np.void, Node, bool]:
    """Whether a live fragment of a manifest lies on the drive of this number."""
    return (yield from _below(root.entries, root.first_offset, number))


def _below(entries: Entries, floor: int, number: int) -> Generator[np.void, Node, bool]:
    is_gap = entries["kind"] == EntryKind.GAP
    if bool(((entries["drive"] == number) & ~is_gap).any()):
        return True
    for place in np.flatnonzero((entries["drive"] == MIXED) & ~is_gap).tolist():
        node = yield entries[place]
        below = live_entries(node, floor, totals(entries[place : place + 1]))
        if (yield from _below(below, floor, number)):
            return True
    return False
