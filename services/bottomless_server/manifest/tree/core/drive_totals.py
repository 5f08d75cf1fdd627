"""Count what of a stream lies on which drive, at a bounded cost. Pure.

A group says the drive of all that is below it, so a stream of a million fragments is counted from
the entries of its root; what lies on several drives is opened, up to a number of groups. What is
not opened then is counted as lying on several drives.

    descent = find_drive_totals(root)
    entry = next(descent)          the group whose node is wanted
    entry = descent.send(node)     … loaded; the next one
    StopIteration.value            the totals
"""

from collections.abc import Generator
from typing import Final, NamedTuple

import numpy as np

from bottomless.model.drive import MIXED
from bottomless.model.manifest import Entries, EntryKind, Node
from bottomless_server.tree.retention import UNKNOWN_TIME, Totals, live_entries, totals

GROUP_COUNT_MAX: Final = 64
"""Groups that one count opens: a policy leaves a few for each tier that lie on two drives, and only
moves by hand make more."""


class OnDrive(NamedTuple):
    """What lies on one drive."""

    totals: Totals = Totals()
    first_timestamp: int | None = None
    """The time of the oldest record, in ms since 1970, as far as it is known; where retention has cut a group
    in part, that of a record that is gone."""
    last_timestamp: int | None = None
    """The time of the newest record, in ms since 1970, as far as it is known."""

    def plus(self, entries: Entries) -> "OnDrive":
        """Add fragments and groups more."""
        firsts, lasts = (
            entries[name][entries[name] != UNKNOWN_TIME].tolist()
            for name in ("first_timestamp", "last_timestamp")
        )
        first, last = ([] if one is None else [one] for one in self[1:])
        return OnDrive(
            self.totals.plus(totals(entries)),
            min(firsts + first, default=None),
            max(lasts + last, default=None),
        )


DriveTotals = dict[int, OnDrive]
"""Totals by the number of the drive; under MIXED what lies on several, and was not looked into."""
Descent = Generator[np.void, Node, DriveTotals]
"""Yields the entry of the group to load, wants the node, returns the totals."""


def find_drive_totals(root: Node, group_count_max: int = GROUP_COUNT_MAX) -> Descent:
    """Count everything that is live, opening no more than so many groups, the oldest ones first."""
    found: DriveTotals = {}
    waiting = [root.entries]
    opened = 0
    while waiting:
        entries = waiting.pop()
        groups = np.flatnonzero(entries["drive"] == MIXED)[: group_count_max - opened]
        opened += len(groups)
        rest = np.delete(entries, groups)
        for drive in np.unique(rest["drive"]).tolist():
            of_drive = rest[(rest["drive"] == drive) & (rest["kind"] != EntryKind.GAP)]
            if len(of_drive):
                found[drive] = found.get(drive, OnDrive()).plus(of_drive)
        for at in groups.tolist():
            node = yield entries[at]
            waiting.append(live_entries(node, root.first_offset, totals(entries[at : at + 1])))
    return found
