"""Add a run of entries to the end of a root.

Every change of the tree is an edit of this form: some entries out, some in, the
rest as it was; so that merging small fragments can later be one more edit.
"""

from dataclasses import replace

import numpy as np

from bottomless.model.manifest import Entries, Node


def append_entries(root: Node, run: Entries) -> Node:
    """The root with `run` at its end; uid, version and epoch stay for the publisher to set.

    The run must start where the root ends and have no hole: offsets that are missing
    for good are an entry of kind GAP, so a hole here is a bug and not a state.
    """
    if len(run) == 0:
        return root
    check_run(run)
    assert int(run["first_offset"][0]) == root.next_offset, "the run does not start at the end"
    return replace(
        root,
        next_offset=int(run["next_offset"][-1]),
        last_timestamp=max(root.last_timestamp, int(run["last_timestamp"][-1])),
        entries=np.concatenate((root.entries, run)),
    )


def check_run(entries: Entries) -> None:
    """Assert that entries are not empty, follow each other and do not go back in time."""
    firsts, nexts = entries["first_offset"], entries["next_offset"]
    assert bool(np.all(firsts < nexts)), "an entry is empty"
    assert bool(np.all(firsts[1:] == nexts[:-1])), "the entries are not one run"
    stamps = entries["last_timestamp"]
    assert bool(np.all(stamps[1:] >= stamps[:-1])), "the entries go back in time"
