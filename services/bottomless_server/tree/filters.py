"""What the nodes of a tree know of filter values: which entries may lead to what is asked for.

An entry is known where somebody looked at all records below it. Of what is not known anything may
be there: fragments of version 1, and groups with such a fragment below. What is known may say too
much (false positives of its filter, a group that was cut in part) and never too little.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.formats.filter import AskedHashes, Blocks, grow, is_full, no_blocks, union
from bottomless.formats.fragment_filters import may_be_there
from bottomless.model.fragment import Presence
from bottomless.model.manifest import Entries, EntryKind, Node


class GroupFilter(NamedTuple):
    """What is known of all values below one entry."""

    presence: Presence
    blocks: Blocks


NOTHING_KNOWN: Final = GroupFilter(Presence(0), no_blocks())


def group_filter(node: Node) -> GroupFilter:
    """What is known of the values below a group: all that its children know, together.

    It is nothing where a child knows nothing, and without blocks where a child has values and none,
    or where too many bits would be set.
    """
    presence = known_of(node.entries)
    if not bool(np.all(presence & Presence.KNOWN)):
        return NOTHING_KNOWN
    whole = Presence(int(np.bitwise_or.reduce(presence)))
    counts = node.entries["filter_blocks"]
    bare = (presence & Presence.SOME != 0) & (counts == 0)
    if Presence.SOME not in whole or bool(np.any(bare)):
        return GroupFilter(whole, no_blocks())
    # Children with filters of one size are joined at once: there are six sizes at most.
    parts: list[Blocks] = []
    for size in np.unique(counts[counts > 0]):
        firsts = node.entries["filter_position"][counts == size].astype(np.intp)
        blocks = node.filters[firsts[:, np.newaxis] + np.arange(int(size))]
        parts.append(np.bitwise_or.reduce(blocks, axis=0))
    blocks = union(parts)
    return GroupFilter(whole, no_blocks() if is_full(blocks) else blocks)


def says_enough(said: GroupFilter, node: Node) -> bool:
    """Whether an entry that says this of a group says no less than the group's own entries do."""
    if Presence.KNOWN not in said.presence:
        return True
    found = group_filter(node)
    if Presence.KNOWN not in found.presence or found.presence & ~said.presence:
        return False
    if not len(said.blocks) or Presence.SOME not in found.presence:
        return True
    if not len(found.blocks):
        # More values are below than any filter holds, and this one leaves some out.
        return False
    size = max(len(said.blocks), len(found.blocks))
    wanted = grow(found.blocks, size)
    return bool(np.all(grow(said.blocks, size) & wanted == wanted))


def filter_of(entry: np.void, filters: Blocks) -> GroupFilter:
    """What an entry of a node with these filters says."""
    first, count = int(entry["filter_position"]), int(entry["filter_blocks"])
    return GroupFilter(Presence(int(entry["filter_presence"])), filters[first : first + count])


def known_of(entries: Entries) -> NDArray[np.uint8]:
    """The presence of each entry; of a gap everybody knows that nothing is there."""
    gaps = entries["kind"] == EntryKind.GAP
    known: NDArray[np.uint8] = np.where(gaps, np.uint8(Presence.KNOWN), entries["filter_presence"])
    return known


def entries_to_read(node: Node, asked: AskedHashes) -> NDArray[np.bool_]:
    """Tell of each entry of a node whether a record that is asked for may be below it.

    Keys have no filters here, so a question by key alone leaves out gaps and nothing else.
    """
    entries = node.entries
    if asked.values is None:
        fragments: NDArray[np.bool_] = entries["kind"] != EntryKind.GAP
        return fragments
    return may_be_there(
        known_of(entries),
        entries["filter_position"].astype(np.uint64),
        entries["filter_blocks"].astype(np.uint64),
        node.filters,
        asked.values,
        or_none=asked.match_unfiltered,
    )
