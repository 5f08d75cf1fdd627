"""Go from drive to drive: through all that there are, or through those where a stream has something.

Drive 0 comes first. One that was retired has nothing any more, and on one that is lost nothing is found.
"""

from collections.abc import Iterable

from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.stream import StreamRecord
from bottomless_server.drives.table import load_registry
from bottomless_server.manifest.common.context import Context


async def next_drive(context: Context, number: int) -> int | None:
    """The number of the drive after one in the registry, by rising number; None where there is none.

    Raises:
        Corrupt, DriveUnavailable, DriveRefused: the registry cannot be read.
    """
    registry = await load_registry(context.drive)
    numbers = [drive.number for drive in registry.drives if not drive.is_gone]
    return _after(number, numbers)


async def next_drive_of(context: Context, record: StreamRecord, number: int) -> int | None:
    """The number of the drive after one on which a fragment of a stream may lie; None where there is none.

    So a drive that a stream never had anything on is not asked, and may be away.

    Raises:
        Corrupt, DriveUnavailable, DriveRefused: the registry cannot be read.
    """
    if _after(number, record.drives) is None:
        return None
    registry = await load_registry(context.drive)
    gone = {drive.number for drive in registry.drives if drive.is_gone}
    return _after(number, set(record.drives) - gone)


async def drives_of(context: Context, record: StreamRecord) -> list[int]:
    """The numbers of all drives on which a fragment of a stream may lie, drive 0 first.

    Raises:
        Corrupt, DriveUnavailable, DriveRefused: the registry cannot be read.
    """
    numbers = [DEFAULT_NUMBER]
    while (number := await next_drive_of(context, record, numbers[-1])) is not None:
        numbers.append(number)
    return numbers


async def lost_drives_of(context: Context, record: StreamRecord) -> set[int]:
    """The numbers of the drives of a stream that are lost.

    Raises:
        Corrupt, DriveUnavailable, DriveRefused: the registry cannot be read.
    """
    registry = await load_registry(context.drive)
    return {drive.number for drive in registry.drives if drive.lost} & set(record.drives)


def _after(number: int, numbers: Iterable[int]) -> int | None:
    return min((one for one in numbers if one > number), default=None)
