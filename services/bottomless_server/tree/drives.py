"""What the nodes of a tree know of drives: on which one lies all that is below an entry.

Only fragments lie on a drive of their own; groups and roots are on drive 0, as all metadata is. The
entry of a group says where the fragments below it are, so that who looks for what has to be moved
opens no group that has nothing of it.
"""

import numpy as np

from bottomless.model.drive import DEFAULT_NUMBER, MIXED
from bottomless.model.manifest import Entries, EntryKind


def drive_of(entries: Entries) -> int:
    """The drive on which everything below these entries of a group lies; MIXED if it is on several.

    A gap lies nowhere; where there is nothing else it is drive 0.
    """
    drives = np.unique(entries["drive"][entries["kind"] != EntryKind.GAP])
    if len(drives) > 1:
        return MIXED
    return int(drives[0]) if len(drives) else DEFAULT_NUMBER
