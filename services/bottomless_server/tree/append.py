"""Add a run of entries to the end of a root.

Every change of the tree is an edit of this form: some entries out, some in, the
rest as it was; so that merging small fragments can later be one more edit.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import (
    Entries,
    Filters,
    Node,
    filters_of,
    fragment_entry,
    joined,
    no_entries,
    no_filters,
)


def append_fragments(root: Node, run: Sequence[FragmentInfo]) -> Node:
    """The root with fragments at its end, which follow each other: `append_entries` of theirs."""
    parts = [(fragment_entry(info), filters_of(info)) for info in run]
    entries, filters = joined(*parts) if parts else (no_entries(), no_filters())
    return append_entries(root, entries, filters)


def append_entries(root: Node, run: Entries, filters: Filters | None = None) -> Node:
    """The root with `run` at its end; uid, version and epoch stay for the publisher to set.

    `filters` are those of the node that the run comes from; a run of gaps has none.

    The run must start where the root ends and have no hole: offsets that are missing
    for good are an entry of kind GAP, so a hole here is a bug and not a state.
    """
    if len(run) == 0:
        return root
    check_run(run)
    assert int(run["first_offset"][0]) == root.next_offset, "the run does not start at the end"
    entries, blocks = joined(
        (root.entries, root.filters), (run, no_filters() if filters is None else filters)
    )
    return replace(
        root,
        next_offset=int(run["next_offset"][-1]),
        last_timestamp=max(root.last_timestamp, int(run["last_timestamp"][-1])),
        entries=entries,
        filters=blocks,
    )


def check_run(entries: Entries) -> None:
    """Assert that entries are not empty, follow each other and do not go back in time."""
    firsts, nexts = entries["first_offset"], entries["next_offset"]
    assert bool(np.all(firsts < nexts)), "an entry is empty"
    assert bool(np.all(firsts[1:] == nexts[:-1])), "the entries are not one run"
    stamps = entries["last_timestamp"]
    assert bool(np.all(stamps[1:] >= stamps[:-1])), "the entries go back in time"
