"""Whether the bucket has anything of the partitions of a super stream.

The registry objects of partitions are put before the super object that names them, and deleted before
it. So a super object of which no partition has any object is that of a super stream that was deleted:
it was put by a process that stood still meanwhile.
"""

from bottomless.drives.base import Drive
from bottomless.formats.keys import stream_prefix
from bottomless.model.super_stream import SuperRecord


async def has_partitions(drive: Drive, record: SuperRecord) -> bool:
    """Look for an object of any partition; of a super stream that is there, one question does.

    Raises:
        DriveUnavailable, DriveRefused
    """
    for place in record.partitions:
        async for _ in drive.list(stream_prefix(place.stream_id, record.tenant)):
            return True
    return False
