"""Walk down a manifest to an offset, one request for each height below the root; or to many offsets at
once, one request for each node on the way to any of them."""

from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple, TypeVar

import numpy as np

from bottomless.drives.base import Drive
from bottomless.errors import StoreError
from bottomless.formats.keys import group_key
from bottomless.model.manifest import EntryKind, Node
from bottomless.model.names import Uid, uid_bytes, uid_from_bytes
from bottomless_server.runtime.base.side_by_side import side_by_side
from bottomless_server.stores.nodes import load_node
from bottomless_server.tree.search import at_offset

K = TypeVar("K", bound=Hashable)

_NODES_AT_ONCE: Final = 8


class Sought(NamedTuple):
    """An object that a manifest may name."""

    offset: int
    """Where it is looked for."""
    uid: Uid
    height: int
    """The height of a group, 0 for a fragment: nodes that are not higher cannot name it."""


Found = np.void | StoreError | None
"""The entry that names an object; None where there is none; what was raised where nobody can tell."""


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
        node = await load_node(drive, *_group(node, tenant, entry))


async def entries_of(
    drive: Drive, tenant: str, root: Node, sought: Mapping[K, Sought]
) -> dict[K, Found]:
    """The entries that name objects, of each what `entry_of` says.

    Each node is loaded once, and those of one height side by side, so that never more of them are held
    than there are objects.
    """
    found: dict[K, Found] = dict.fromkeys(sought)
    inside = {
        key: one
        for key, one in sought.items()
        if root.first_offset <= one.offset < root.next_offset
    }
    nodes: list[tuple[Node, dict[K, Sought]]] = [(root, inside)]
    while nodes:
        below: dict[_Group, dict[K, Sought]] = {}
        for node, mine in nodes:
            for key, one in mine.items():
                entry = node.entries[at_offset(node, one.offset)]
                if entry["uid"].tobytes() == uid_bytes(one.uid):
                    # A copy, since else all of its node would stay.
                    found[key] = entry.copy()
                elif entry["kind"] == EntryKind.GROUP and entry["height"] > one.height:
                    below.setdefault(_group(node, tenant, entry), {})[key] = one
        loaded = await side_by_side(below, lambda group: load_node(drive, *group), _NODES_AT_ONCE)
        nodes = []
        for group, node_or_error in loaded.items():
            if isinstance(node_or_error, StoreError):
                found |= dict.fromkeys(below[group], node_or_error)
            elif isinstance(node_or_error, Exception):
                raise node_or_error
            else:
                nodes.append((node_or_error, below[group]))
    return found


class _Group(NamedTuple):
    """What is needed to load a group."""

    object_key: str
    size: int
    crc: int


def _group(node: Node, tenant: str, entry: np.void) -> _Group:
    first, uid = int(entry["first_offset"]), uid_from_bytes(entry["uid"].tobytes())
    object_key = group_key(node.stream_id, first, uid, int(entry["height"]), tenant)
    return _Group(object_key, int(entry["object_size"]), int(entry["object_crc"]))


async def names(drive: Drive, tenant: str, root: Node, offset: int, uid: Uid) -> bool:
    """Whether the manifest names the object `uid` on the way to `offset`, on whatever drive."""
    return await entry_of(drive, tenant, root, offset, uid) is not None


async def entry_of(drive: Drive, tenant: str, root: Node, offset: int, uid: Uid) -> np.void | None:
    """The entry that names the object `uid` on the way to `offset`, if there is one."""
    path = await path_to(drive, tenant, root, offset)
    return next((entry for entry in path if entry["uid"].tobytes() == uid_bytes(uid)), None)
