"""Go through all drives on which anything of a stream can lie, as the registry of drives names them.

Drive 0 comes first. One that was retired has nothing any more.
"""

from bottomless_server.drives.table import load_registry
from bottomless_server.manifest.common.context import Context


async def next_drive(context: Context, number: int) -> int | None:
    """The number of the drive after one, by rising number; None where there is none.

    Raises:
        Corrupt, DriveUnavailable, DriveRefused: the registry cannot be read.
    """
    registry = await load_registry(context.drive)
    numbers = [drive.number for drive in registry.drives if not drive.retired]
    return min((one for one in numbers if one > number), default=None)
