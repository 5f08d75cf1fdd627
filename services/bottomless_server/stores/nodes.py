"""Manifest nodes on a drive: roots and groups, stored once, loaded with every check.

A stored node that no record names yet is garbage after a crash, found by the
manifest's sweep; a node is named only after `store_node` returned.
"""

from typing import Final, NamedTuple

from bottomless.drives.base import Drive
from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c
from bottomless.formats.manifest import decode_node, encode_node
from bottomless.model.manifest import Node
from bottomless.model.names import StreamId
from bottomless_server.stores.objects import put_object

STORE_SECONDS: Final = 60.0
"""A node has at most some megabytes; a store that takes longer is down."""


class StoredNode(NamedTuple):
    """What an entry or a record says of the node it points at."""

    size: int
    crc: int


async def load_node(drive: Drive, object_key: str, size: int, crc: int) -> Node:
    """Load a root or a group that an entry or a record points at.

    Bytes that do not match are fetched once more, since they may have been damaged on the
    way only. Concurrent loads of one node are the caller's to join.

    Raises:
        ObjectMissing: it is gone; for a root, read the record again before raising an alarm.
        Corrupt: its bytes are not those that were stored.
        DriveUnavailable, DriveRefused: the store does not answer.
    """
    for _ in range(2):
        # One byte more than it should have, so that a longer object shows.
        data = await drive.get(object_key, 0, size + 1)
        if len(data) == size and crc32c(data) == crc:
            return decode_node(data)
    raise Corrupt("a manifest node is not what was stored", facts={"size": size})


async def store_node(
    drive: Drive,
    stream_id: StreamId,
    node: Node,
    object_key: str,
    *,
    deadline_seconds: float = STORE_SECONDS,
) -> StoredNode:
    """Put a node, and return what whoever points at it has to keep.

    Raises:
        As `put_object`.
    """
    assert node.stream_id == stream_id
    data = encode_node(node)
    stored = StoredNode(len(data), crc32c(data))
    await put_object(drive, object_key, [data], stored.crc, deadline_seconds=deadline_seconds)
    return stored
