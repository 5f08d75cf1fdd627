"""The manifest: all that object storage holds of a stream, as a tree of nodes.

The entries of a node are one numpy structured array, with the same bytes in memory as in the
object, so that a node is searched with `searchsorted` and never in a loop.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import StreamId, Uid, uid_bytes, uid_from_bytes


class EntryKind(IntEnum):
    """What an entry of a node stands for: a fragment, a group of entries, or a gap."""

    FRAGMENT = 1
    GROUP = 2
    """An inner node; its height says how many levels lie below."""
    GAP = 3
    """Offsets that were given up: nothing is stored for them and nothing ever will be."""


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
        ("drive", "u1"),
        ("reason", "u1"),
        ("reserved", "V20"),
    ]
)
assert ENTRY_DTYPE.itemsize == 128  # docs/formats.md, "Manifest entry"

Entries = NDArray[np.void]
"""One-dimensional array of ENTRY_DTYPE, in offset order."""


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


def no_entries() -> Entries:
    """Make the entries of an empty node: an array of length 0."""
    return np.empty(0, dtype=ENTRY_DTYPE)


def fragment_entry(info: FragmentInfo) -> Entries:
    """Make the entry of one fragment, as an array of length 1."""
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
    return entry


def fragment_info(entry: np.void) -> FragmentInfo:
    """Read the fragment that an entry of kind FRAGMENT points at; any other kind is a bug."""
    assert entry["kind"] == EntryKind.FRAGMENT
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
    )
