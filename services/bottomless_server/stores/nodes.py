"""Manifest nodes on a drive: roots and groups, loaded with every check.

manifest/tree/publish_attempts.py stores them, and says what lies there after a crash.
"""

from bottomless.drives.base import Drive
from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c
from bottomless.formats.manifest import decode_node
from bottomless.guards import guard
from bottomless.model.manifest import Node


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
        data = bytes(await drive.get(object_key, 0, size + 1))
        if is_what_was_stored(data, size, crc):
            return decode_node(data)
    raise Corrupt("a manifest node is not what was stored", facts={"size": size})


@guard("the checksum of a manifest node")
def is_what_was_stored(data: bytes, size: int, crc: int) -> bool:
    """Whether these are the bytes of which size and checksum were noted."""
    return len(data) == size and crc32c(data) == crc
