"""The objects that a committed manifest leads to, for one range of keys and never for all of it.

A listing is in the order of first offsets, and so is the tree: for one page of keys only the
groups that overlap it are loaded, however large the stream. Uids stay in numpy arrays.

A group whose front was cut is reached through its entry although it begins below the floor;
what lies below the floor in it is not reached.
"""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.drives.base import Drive
from bottomless.formats.keys import group_key
from bottomless.model.manifest import Entries, EntryKind, Node
from bottomless.model.names import Uid, uid_bytes, uid_from_bytes
from bottomless_server.stores.nodes import load_node

Uids = NDArray[np.bytes_]
Places = NDArray[np.bytes_]
"""Uid, drive and copy of a fragment each."""


class Place(NamedTuple):
    """The object of a fragment: a fragment that was moved has had several."""

    uid: Uid
    drive: int
    copy: int


_UID: Final = "S16"
"""All are 16 bytes long, so that the padding which numpy ignores at the end tells none apart."""
_PLACE: Final = np.dtype([("uid", _UID), ("drive", "u1"), ("copy", ">u8")])
"""In bytes of one size too, for the same reason."""
_LEAF_HEIGHT: Final = 1


async def reached_fragments(
    drive: Drive, tenant: str, root: Node, first_offset: int, last_offset: int
) -> Places:
    """Places of the fragments that the root leads to and that begin between two offsets.

    Raises:
        ObjectMissing, DriveUnavailable, DriveRefused, Corrupt: of a group on the way.
    """
    walk = _walk(drive, tenant, root, (first_offset, last_offset), _LEAF_HEIGHT - 1)
    found = [_places(entries[entries["kind"] == EntryKind.FRAGMENT]) async for entries in walk]
    return np.concatenate([_NOWHERE, *found])


async def reached_groups(
    drive: Drive, tenant: str, root: Node, first_offset: int, last_offset: int
) -> Uids:
    """Uids of the groups that the root leads to and that begin between two offsets.

    Groups of the lowest height need not be loaded for it.

    Raises:
        ObjectMissing, DriveUnavailable, DriveRefused, Corrupt: of a group on the way.
    """
    walk = _walk(drive, tenant, root, (first_offset, last_offset), _LEAF_HEIGHT)
    found = [_uids(entries[entries["kind"] == EntryKind.GROUP]) async for entries in walk]
    return np.concatenate([_NONE, *found])


def among(uids: list[Uid], reached: Uids) -> NDArray[np.bool_]:
    """Whether each group is among those that were reached, by its uid."""
    return np.isin(np.array([uid_bytes(uid) for uid in uids], dtype=_UID), reached)


def among_places(places: list[Place], reached: Places) -> NDArray[np.bool_]:
    """Whether each fragment is among those that were reached, and lies where it is named."""
    rows = np.array([(uid_bytes(one.uid), one.drive, one.copy) for one in places], dtype=_PLACE)
    return np.isin(_as_bytes(rows), reached)


async def load_group(drive: Drive, tenant: str, parent: Node, entry: np.void) -> Node:
    """The group that an entry points at.

    Raises:
        ObjectMissing, DriveUnavailable, DriveRefused, Corrupt
    """
    object_key = group_key(
        parent.stream_id,
        int(entry["first_offset"]),
        uid_from_bytes(entry["uid"].tobytes()),
        int(entry["height"]),
        tenant,
    )
    size, crc = int(entry["object_size"]), int(entry["object_crc"])
    return await load_node(drive, object_key, size=size, crc=crc)


async def _walk(
    drive: Drive, tenant: str, root: Node, between: tuple[int, int], height: int
) -> AsyncIterator[Entries]:
    """Entries that overlap a range of offsets; groups above `height` are gone into."""
    first_offset, last_offset = between
    start = np.uint64(max(first_offset, root.first_offset))
    pending = [root]
    while pending:
        node = pending.pop()
        entries = node.entries
        touched = entries[
            (entries["next_offset"] > start) & (entries["first_offset"] <= np.uint64(last_offset))
        ]
        yield touched
        deeper = touched[(touched["kind"] == EntryKind.GROUP) & (touched["height"] > height)]
        pending += [await load_group(drive, tenant, node, entry) for entry in deeper]


def _uids(entries: Entries) -> Uids:
    return np.ascontiguousarray(entries["uid"]).view(_UID)


def _places(entries: Entries) -> Places:
    rows = np.empty(len(entries), dtype=_PLACE)
    rows["uid"] = _uids(entries)
    rows["drive"], rows["copy"] = entries["drive"], entries["copy"]
    return _as_bytes(rows)


def _as_bytes(rows: NDArray[np.void]) -> Places:
    return rows.view(f"S{_PLACE.itemsize}")


_NOWHERE: Final[Places] = np.empty(0, dtype=f"S{_PLACE.itemsize}")
_NONE: Final[Uids] = np.empty(0, dtype=_UID)
