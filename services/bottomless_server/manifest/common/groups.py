"""Groups as they were loaded last: trims and evaluations come back to the same oldest one.

A group never changes under its uid, so nothing here goes stale.
"""

from collections.abc import Generator
from typing import Final, TypeVar

import numpy as np
from cachetools import LRUCache

from bottomless.drives.base import Drive
from bottomless.formats.keys import group_key
from bottomless.model.manifest import Node
from bottomless.model.names import StreamId, Uid, uid_from_bytes
from bottomless_server.stores.nodes import load_node

_SIZE_MAX: Final = 16 * 1024 * 1024
"""Bytes kept: some hundred groups of the default fanout. A larger one is not kept."""
_OVERHEAD: Final = 512

Found = TypeVar("Found")


class Groups:
    def __init__(self, drive: Drive) -> None:
        self._drive = drive
        self._kept: LRUCache[Uid, Node] = LRUCache(_SIZE_MAX, getsizeof=_size_of)

    async def load(self, tenant: str, stream_id: StreamId, entry: np.void) -> Node:
        """The group that an entry points at.

        Raises:
            ObjectMissing, DriveUnavailable, DriveRefused, Corrupt
        """
        uid = uid_from_bytes(entry["uid"].tobytes())
        kept = self._kept.get(uid)
        if kept is not None:
            return kept
        node = await load_node(
            self._drive,
            group_key(stream_id, int(entry["first_offset"]), uid, int(entry["height"]), tenant),
            size=int(entry["object_size"]),
            crc=int(entry["object_crc"]),
        )
        size = _size_of(node)
        if size <= _SIZE_MAX:
            self._kept[uid] = node
        return node

    async def descend(
        self, tenant: str, root: Node, descent: Generator[np.void, Node, Found]
    ) -> Found:
        """Load what a descent from a root asks for until it ends, and return what it found.

        Raises:
            ObjectMissing, DriveUnavailable, DriveRefused, Corrupt: of a group on the way.
        """
        try:
            entry = next(descent)
            while True:
                entry = descent.send(await self.load(tenant, root.stream_id, entry))
        except StopIteration as ended:
            found: Found = ended.value
            return found


def _size_of(node: Node) -> int:
    return int(node.entries.nbytes + node.filters.nbytes) + _OVERHEAD
