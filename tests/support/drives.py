"""A table of drives in memory, each of which shows its marker."""

from bottomless.drives.base import Drive
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import DRIVE_MARKER_KEY, encode_marker
from bottomless.model.drive import DriveMarker
from bottomless.model.names import Uid
from bottomless_server.drives.marked import MarkedDrive, marked_drive
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable


async def a_table(default: Drive, *numbers: int) -> DriveTable:
    """Drive 0, and one in memory for each of the numbers."""
    others: dict[int, MarkedDrive] = {}
    for number in numbers:
        marker = DriveMarker(number, Uid(f"{number:032x}"))
        drive = MemoryDrive()
        data = encode_marker(marker)
        await drive.put(DRIVE_MARKER_KEY, [data], crc32c(data))
        others[number] = marked_drive(drive, marker)
    return DriveTable(default, others)
