"""Walk down a manifest to an offset: one request for each height below the root."""

import numpy as np

from bottomless.drives.base import Drive
from bottomless.formats.keys import group_key
from bottomless.model.manifest import EntryKind, Node
from bottomless.model.names import Uid, uid_bytes, uid_from_bytes
from bottomless_server.stores.nodes import load_node
from bottomless_server.tree.search import at_offset


async def path_to(drive: Drive, tenant: str, root: Node, offset: int) -> list[np.void]:
    """The entries that lead to `offset`, the last one a fragment or a gap; none if it is outside.

    Raises:
        ObjectMissing, DriveUnavailable, DriveRefused, Corrupt: of a group on the way.
    """
    if not root.first_offset <= offset < root.next_offset:
        return []
    node, path = root, []
    while True:
        entry = node.entries[at_offset(node, offset)]
        path.append(entry)
        if entry["kind"] != EntryKind.GROUP:
            return path
        object_key = group_key(
            node.stream_id,
            int(entry["first_offset"]),
            uid_from_bytes(entry["uid"].tobytes()),
            int(entry["height"]),
            tenant,
        )
        node = await load_node(
            drive, object_key, size=int(entry["object_size"]), crc=int(entry["object_crc"])
        )


async def names(drive: Drive, tenant: str, root: Node, offset: int, uid: Uid) -> bool:
    """Whether the manifest names the object `uid` on the way to `offset`, on whatever drive."""
    return await entry_of(drive, tenant, root, offset, uid) is not None


async def entry_of(drive: Drive, tenant: str, root: Node, offset: int, uid: Uid) -> np.void | None:
    """The entry that names the object `uid` on the way to `offset`, if there is one."""
    path = await path_to(drive, tenant, root, offset)
    return next((entry for entry in path if entry["uid"].tobytes() == uid_bytes(uid)), None)
