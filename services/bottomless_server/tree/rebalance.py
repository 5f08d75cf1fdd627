"""Keep the root small: move its oldest entries into groups.

Within a root heights never rise from older to newer entries, since a group is
always made of the oldest of its height. So the entries of one height are one
slice, and a group at any height replaces a slice by one entry.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bottomless.model.manifest import ENTRY_DTYPE, Entries, EntryKind, Node, joined, taken
from bottomless.model.names import Uid, uid_bytes
from bottomless_server.tree.drives import drive_of
from bottomless_server.tree.filters import NOTHING_KNOWN, GroupFilter, group_filter


class SealedNode(NamedTuple):
    """A node that will not change any more: what its object is made of."""

    node: Node
    data: bytes
    crc: int
    """CRC-32C of `data`."""


class Rebalanced(NamedTuple):
    root: Node
    groups: tuple[SealedNode, ...]
    """Lower heights first: each must be durable before anything that names it."""


def rebalance(
    root: Node, fanout: int, new_uid: Callable[[], Uid], seal: Callable[[Node], SealedNode]
) -> Rebalanced:
    """Move oldest entries into groups until no height has twice `fanout` entries.

    A height is full at twice the fanout, not at the fanout: recent entries stay in the
    root, where a reader finds them without another request. The caller puts the groups,
    in the order given, before it publishes the root that names them.
    """
    assert fanout >= 2
    groups: list[SealedNode] = []
    height = 0
    while (full := _slice_of(root.entries, height)) is not None:
        start, stop = full
        while stop - start >= 2 * fanout:
            sealed = seal(_group(root, root.entries[start : start + fanout], height + 1, new_uid()))
            groups.append(sealed)
            filter_ = group_filter(sealed.node)
            entry = group_entry(sealed.node, len(sealed.data), sealed.crc, filter_)
            entries, filters = joined(
                (root.entries[:start], root.filters),
                (entry, filter_.blocks),
                (root.entries[start + fanout :], root.filters),
            )
            root = replace(root, entries=entries, filters=filters)
            start, stop = start + 1, stop + 1 - fanout
        height += 1
    return Rebalanced(root, tuple(groups))


def group_entry(node: Node, size: int, crc: int, filter_: GroupFilter = NOTHING_KNOWN) -> Entries:
    """The entry that points at a group whose object has this size and checksum.

    `filter_` is what is known of the values below it; its blocks stand for the entry in a node.
    """
    entries = node.entries
    entry = np.zeros(1, dtype=ENTRY_DTYPE)
    entry["first_offset"] = entries["first_offset"][0]
    entry["next_offset"] = entries["next_offset"][-1]
    entry["first_timestamp"] = entries["first_timestamp"][0]
    entry["last_timestamp"] = entries["last_timestamp"][-1]
    for summed in ("byte_size", "record_count", "fragment_count"):
        entry[summed] = entries[summed].sum()
    entry["first_epoch"] = entries["first_epoch"][0]
    entry["last_epoch"] = entries["last_epoch"][-1]
    entry["uid"] = np.void(uid_bytes(node.uid))
    entry["object_size"] = size
    entry["object_crc"] = crc
    entry["kind"] = EntryKind.GROUP
    entry["height"] = node.height
    entry["filter_presence"], entry["filter_blocks"] = filter_.presence, len(filter_.blocks)
    entry["drive"] = drive_of(entries)
    return entry


def _slice_of(entries: Entries, height: int) -> tuple[int, int] | None:
    """Where the entries of one height lie; None above the highest."""
    heights = entries["height"]
    assert bool(np.all(heights[1:] <= heights[:-1])), "heights rise towards newer entries"
    if len(heights) == 0 or height > int(heights[0]):
        return None
    # searchsorted wants rising values, so both sides are negated.
    falling = -heights.astype(np.int16)
    start = int(np.searchsorted(falling, -height, side="left"))
    return start, int(np.searchsorted(falling, -height, side="right"))


def _group(root: Node, entries: Entries, height: int, uid: Uid) -> Node:
    entries, filters = taken(entries, root.filters)
    return Node(
        stream_id=root.stream_id,
        uid=uid,
        height=height,
        first_offset=int(entries["first_offset"][0]),
        next_offset=int(entries["next_offset"][-1]),
        epoch=root.epoch,
        version=0,
        generation=root.generation,
        last_timestamp=int(entries["last_timestamp"][-1]),
        entries=entries,
        filters=filters,
    )
