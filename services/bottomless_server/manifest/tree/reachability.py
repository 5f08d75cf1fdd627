"""The objects that a committed manifest leads to, for one range of keys and never for all of it.

A listing is in the order of first offsets, and so is the tree: for one page of keys only the
groups that overlap it are loaded, however large the stream. Uids stay in numpy arrays.

A group whose front was cut is reached through its entry although it begins below the floor;
what lies below the floor in it is not reached.
"""

from collections.abc import AsyncIterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bottomless.drives.base import Drive
from bottomless.formats.keys import group_key
from bottomless.model.manifest import Entries, EntryKind, Node
from bottomless.model.names import Uid, uid_bytes, uid_from_bytes
from bottomless_server.stores.nodes import load_node

Uids = NDArray[np.bytes_]

_UID: Final = "S16"
"""All are 16 bytes long, so that the padding which numpy ignores at the end tells none apart."""
_LEAF_HEIGHT: Final = 1


async def reached_fragments(
    drive: Drive, tenant: str, root: Node, first_offset: int, last_offset: int
) -> Uids:
    """Uids of the fragments that the root leads to and that begin between two offsets.

    Raises:
        ObjectMissing, DriveUnavailable, DriveRefused, Corrupt: of a group on the way.
    """
    walk = _walk(drive, tenant, root, (first_offset, last_offset), _LEAF_HEIGHT - 1)
    return await _collect(walk, EntryKind.FRAGMENT)


async def reached_groups(
    drive: Drive, tenant: str, root: Node, first_offset: int, last_offset: int
) -> Uids:
    """Uids of the groups that the root leads to and that begin between two offsets.

    Groups of the lowest height need not be loaded for it.

    Raises:
        ObjectMissing, DriveUnavailable, DriveRefused, Corrupt: of a group on the way.
    """
    walk = _walk(drive, tenant, root, (first_offset, last_offset), _LEAF_HEIGHT)
    return await _collect(walk, EntryKind.GROUP)


def among(uids: list[Uid], reached: Uids) -> NDArray[np.bool_]:
    """Whether each uid is among those that were reached."""
    return np.isin(np.array([uid_bytes(uid) for uid in uids], dtype=_UID), reached)


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


async def _collect(walk: AsyncIterator[Entries], kind: EntryKind) -> Uids:
    found = [_uids(entries[entries["kind"] == kind]) async for entries in walk]
    return np.concatenate([_NONE, *found])


def _uids(entries: Entries) -> Uids:
    return np.ascontiguousarray(entries["uid"]).view(_UID)


_NONE: Final[Uids] = np.empty(0, dtype=_UID)
