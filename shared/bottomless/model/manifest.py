"""The manifest: all that object storage holds of a stream, as a tree of nodes.

The entries of a node are one numpy structured array, with the same bytes in memory as in the
object, so that a node is searched with `searchsorted` and never in a loop.
"""

from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bottomless.model.fragment import FragmentInfo, Presence
from bottomless.model.names import StreamId, Uid, uid_bytes, uid_from_bytes


class EntryKind(IntEnum):
    """What an entry of a node stands for: a fragment, a group of entries, or a gap."""

    FRAGMENT = 1
    GROUP = 2
    """An inner node; its height says how many levels lie below."""
    GAP = 3
    """Offsets that were given up: nothing is stored for them and nothing ever will be."""


class NodeFeatures(IntFlag):
    """What a node of version 2 has more than one of version 1."""

    FILTERS = 1
    """Entries say what filter values are below."""
    DRIVES = 2
    """Entries say on which drives what is below them lies, and which objects are copies."""
    FILTER_SIZES = 8
    """Entries of fragments say how large their filters are."""


class GapReason(IntEnum):
    """Why the offsets of a gap were given up; NONE for an entry that is no gap."""

    NONE = 0
    LOCAL_LOG_LOST = 1
    TAKEOVER = 2
    DAMAGED = 3


ENTRY_DTYPE: Final = np.dtype(
    [
        ("first_offset", "<u8"),
        ("next_offset", "<u8"),
        ("first_timestamp", "<i8"),
        ("last_timestamp", "<i8"),
        ("byte_size", "<u8"),  # live bytes of fragments in it; 0 for a gap
        ("record_count", "<u8"),  # live records; 0 for a gap
        ("fragment_count", "<u8"),  # live fragments; 1 for a fragment, 0 for a gap
        ("first_epoch", "<u8"),
        ("last_epoch", "<u8"),
        ("uid", "V16"),
        ("object_size", "<u8"),  # bytes of the object pointed at
        ("object_crc", "<u4"),  # CRC-32C of the object pointed at
        ("index_size", "<u4"),  # index and footer of a fragment; 0 otherwise
        ("kind", "u1"),
        ("height", "u1"),  # 0 for fragments and gaps, else that of the node pointed at
        ("drive", "u1"),  # where fragments lie, 255 for a group with several; 0 for a gap
        ("reason", "u1"),
        # What is known of filter values below; all zero in a node of version 1.
        ("filter_position", "<u4"),  # number of its first block in the filters of the node
        ("filter_blocks", "<u2"),
        ("filter_presence", "u1"),
        ("reserved_1", "V1"),
        ("filters_size", "<u4"),  # bytes of the filters of a fragment; 0 where it is not said
        ("copy", "<u8"),  # of a fragment that was moved, which copy; else 0
    ]
)
assert ENTRY_DTYPE.itemsize == 128  # docs/formats.md, "Manifest entry"

Entries = NDArray[np.void]
"""One-dimensional array of ENTRY_DTYPE, in offset order."""

Filters = NDArray[np.uint32]
"""Blocks of filters, one after the other: an array of blocks by 8 words."""


def no_filters() -> Filters:
    """Make the filters of a node that has none: an array of no block."""
    return np.empty((0, 8), dtype=np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A root or a group. `height` is that of the node itself: 1 for a group of fragments.

    A root has height 0 on disk, whatever its entries point at, since no entry points at a root.
    """

    stream_id: StreamId
    uid: Uid
    height: int
    first_offset: int
    """In a root the floor: nothing below it is readable."""
    next_offset: int
    """The offset after the last one that the node covers (exclusive end)."""
    epoch: int
    version: int
    """Manifest version of a root; 0 in a group."""
    generation: int
    last_timestamp: int
    """The last timestamp of the newest entry there ever was, in ms since 1970: a root that
    retention emptied keeps it.
    """
    entries: Entries
    filters: Filters = field(default_factory=no_filters)
    """Blocks of the filters of the entries, in their order and without a hole."""


def no_entries() -> Entries:
    """Make the entries of an empty node: an array of length 0."""
    return np.empty(0, dtype=ENTRY_DTYPE)


def fragment_entry(info: FragmentInfo) -> Entries:
    """Make the entry of one fragment, as an array of length 1; its filter is `filters_of` it."""
    entry = np.zeros(1, dtype=ENTRY_DTYPE)
    entry["first_offset"] = info.first_offset
    entry["next_offset"] = info.next_offset
    entry["first_timestamp"] = info.first_timestamp
    entry["last_timestamp"] = info.last_timestamp
    entry["byte_size"] = info.size
    entry["record_count"] = info.record_count
    entry["fragment_count"] = 1
    entry["first_epoch"] = entry["last_epoch"] = info.epoch
    entry["uid"] = np.void(uid_bytes(info.uid))
    entry["object_size"] = info.size
    entry["object_crc"] = info.crc
    entry["index_size"] = info.index_size
    entry["kind"] = EntryKind.FRAGMENT
    entry["filter_blocks"] = len(filters_of(info))
    entry["filter_presence"] = info.filter_presence
    entry["filters_size"] = info.filters_size
    entry["drive"], entry["copy"] = info.drive, info.copy
    return entry


def filters_of(info: FragmentInfo) -> Filters:
    """View the filter of one fragment as blocks, which is what stands for its entry in a node."""
    return np.frombuffer(info.filter_blocks, dtype="<u4").reshape(-1, 8)


def fragment_info(entry: np.void, filters: Filters | None = None) -> FragmentInfo:
    """Read the fragment that an entry of kind FRAGMENT points at; any other kind is a bug.

    `filters` are those of the entry's node; without them the filter is left out.
    """
    assert entry["kind"] == EntryKind.FRAGMENT
    blocks = b""
    if filters is not None:
        first = int(entry["filter_position"])
        blocks = filters[first : first + int(entry["filter_blocks"])].tobytes()
    return FragmentInfo(
        uid=uid_from_bytes(entry["uid"].tobytes()),
        first_offset=int(entry["first_offset"]),
        next_offset=int(entry["next_offset"]),
        first_timestamp=int(entry["first_timestamp"]),
        last_timestamp=int(entry["last_timestamp"]),
        epoch=int(entry["first_epoch"]),
        record_count=int(entry["record_count"]),
        size=int(entry["object_size"]),
        index_size=int(entry["index_size"]),
        crc=int(entry["object_crc"]),
        filter_presence=Presence(int(entry["filter_presence"])),
        filter_blocks=blocks,
        filters_size=int(entry["filters_size"]),
        drive=int(entry["drive"]),
        copy=int(entry["copy"]),
    )


def taken(entries: Entries, filters: Filters) -> tuple[Entries, Filters]:
    """Copy entries of a node whose filters are `filters`, with the blocks of these entries alone.

    What comes back is again entries and filters of a node: the blocks follow each other.
    """
    return joined((entries, filters))


def joined(*parts: tuple[Entries, Filters]) -> tuple[Entries, Filters]:
    """Put entries after each other that come from several nodes, each part with its node's filters."""
    blocks = []
    for entries, filters in parts:
        counts = entries["filter_blocks"].astype(np.int64)
        firsts = entries["filter_position"].astype(np.int64)
        assert bool(np.all(firsts + counts <= len(filters))), "filters are those of another node"
        # Of each block of each entry the number among the filters that it came from.
        before = np.cumsum(counts) - counts
        places = np.repeat(firsts - before, counts) + np.arange(int(counts.sum()))
        blocks.append(filters[places])
    whole: Entries = np.concatenate([entries for entries, _ in parts])
    counts = whole["filter_blocks"].astype(np.int64)
    whole["filter_position"] = np.where(counts > 0, np.cumsum(counts) - counts, 0)
    return whole, np.concatenate(blocks)
