"""A table of drives in memory, each of which shows its marker."""

from collections.abc import Callable

from bottomless.drives.base import Drive
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import (
    DRIVE_MARKER_KEY,
    drives_key,
    encode_drives,
    encode_marker,
)
from bottomless.model.drive import DriveMarker, DriveRegistry, RegisteredDrive
from bottomless.model.names import Uid
from bottomless_server.drives.configured import ConfiguredDrive
from bottomless_server.drives.marked import MarkedDrive, marked_drive
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable


def in_memory(number: int) -> Drive:
    """A drive that is nothing but what is on it."""
    del number
    return MemoryDrive()


async def a_table(
    default: Drive, *numbers: int, open_drive: Callable[[int], Drive] = in_memory
) -> DriveTable:
    """Drive 0, and one for each of the numbers, in memory where nothing else is opened."""
    others: dict[int, MarkedDrive] = {}
    for number in numbers:
        marker = DriveMarker(number, Uid(f"{number:032x}"))
        drive = open_drive(number)
        data = encode_marker(marker)
        await drive.put(DRIVE_MARKER_KEY, [data], crc32c(data))
        others[number] = marked_drive(drive, marker)
    configured = [ConfiguredDrive(f"d{one}", one, f"file:///d{one}") for one in sorted(numbers)]
    return DriveTable(default, others, configured)


async def register(default: Drive, *numbers: int) -> None:
    """Enter drives of `a_table` into the registry on drive 0."""
    drives = [RegisteredDrive(f"d{one}", one, Uid(f"{one:032x}"), False) for one in sorted(numbers)]
    data = encode_drives(DriveRegistry(1, tuple(drives)))
    await default.put(drives_key(1), [data], crc32c(data))


async def take_away(table: DriveTable, number: int) -> None:
    """Let a drive of `a_table` look like a directory whose mount is gone."""
    assert await table.marked(number).unmarked.delete([DRIVE_MARKER_KEY]) == {}


async def bring_back(table: DriveTable, number: int) -> None:
    """Mount it again."""
    data = encode_marker(DriveMarker(number, Uid(f"{number:032x}")))
    await table.marked(number).unmarked.put(DRIVE_MARKER_KEY, [data], crc32c(data))
