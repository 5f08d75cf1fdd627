"""Drives beside drive 0: stores that are away for a while, and mounts that are gone.

Each program reaches them over ways of its own, and believes them as long as they show their markers. A
mount that is gone shows an empty directory in its place, and what is put there meanwhile lies below it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from support.fault_drive import FaultDrive
from support.mounts import Mount
from support.wire import Mishap, Passage, Wire

from bottomless.drives.base import Drive
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import (
    DRIVE_MARKER_KEY,
    drives_key,
    encode_drives,
    encode_marker,
)
from bottomless.formats.keys import FragmentPlace
from bottomless.model.drive import DEFAULT_NUMBER, DriveMarker, DriveRegistry, RegisteredDrive
from bottomless.model.names import Uid
from bottomless_server.drives.configured import ConfiguredDrive
from bottomless_server.drives.marked import marked_drive
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable
from simulation.weather import Weather

_AWAY_SECONDS: Final = 0.05


@dataclass(frozen=True)
class _OwnWays:
    """The weather on the ways to one drive, which may be away alone."""

    weather: Weather
    number: int
    gone: AbstractSet[int]

    def passage(self, route: str) -> Passage:
        if self.number in self.gone or away_name(self.number) in self.weather.away:
            self.weather.lost_count += 1
            return Passage(Mishap.LOSE_REQUEST, silence_seconds=_AWAY_SECONDS)
        return self.weather.passage(route)


class OtherDrives:
    """The drives of a deployment beside drive 0, registered and marked."""

    def __init__(self, weather: Weather, clock: Callable[[], int], count: int) -> None:
        self._weather = weather
        self.mounts: Mapping[int, Mount] = {
            number: Mount(clock, number) for number in range(1, count + 1)
        }
        self.gone: set[int] = set()
        """Drives that nobody reaches until they are back, if ever."""
        self.lost: set[int] = set()
        """Drives of which an operator may have said that they are lost for good."""

    async def register(self, default: Drive) -> None:
        """Put the registry on drive 0, and a marker on each other one."""
        drives = tuple(
            RegisteredDrive(drive_name(one.number), *one, retired=False) for one in self._markers()
        )
        await _put(default, drives_key(1), encode_drives(DriveRegistry(1, drives)))
        for marker in self._markers():
            mounted = self.mounts[marker.number].mounted
            await _put(mounted, DRIVE_MARKER_KEY, encode_marker(marker))

    def table(self, default: Drive) -> DriveTable:
        """The table of one life of a program."""
        configured = [
            ConfiguredDrive(drive_name(number), number, mount.location.root)
            for number, mount in self.mounts.items()
        ]
        others = {
            marker.number: marked_drive(
                FaultDrive(
                    self.mounts[marker.number],
                    Wire(_OwnWays(self._weather, marker.number, self.gone)),
                ),
                marker,
            )
            for marker in self._markers()
        }
        return DriveTable(default, others, configured)

    def _markers(self) -> list[DriveMarker]:
        return [DriveMarker(number, Uid(f"{number:032x}")) for number in self.mounts]


class AllDrives:
    """What lies on all drives, by names that say which drive it is on; on drive 0 a key is its own name.

    What a drive that is lost has is nobody's concern any more: it is neither missed nor listed."""

    def __init__(self, default: MemoryDrive, others: OtherDrives) -> None:
        self._drives: dict[int, MemoryDrive] = {DEFAULT_NUMBER: default}
        self._drives |= {number: mount.mounted for number, mount in others.mounts.items()}
        self.lost = others.lost

    def has(self, name: str) -> bool:
        drive, key = self._find(name)
        return self._is_lost(name) or drive.has(key)

    def peek(self, name: str) -> bytes | None:
        """The bytes of an object; None where there is none, or nobody can read it any more."""
        drive, key = self._find(name)
        return None if self._is_lost(name) else drive.peek(key)

    def whole(self, uid: str, size: int) -> list[str]:
        """Where objects with a uid lie that have so many bytes."""
        return [
            name
            for name in self._names()
            if uid in name and (data := self.peek(name)) is not None and len(data) == size
        ]

    def _is_lost(self, name: str) -> bool:
        number, colon, _ = name.partition(":")
        return bool(colon) and int(number) in self.lost

    @property
    def object_keys(self) -> list[str]:
        return list(self._names())

    def _names(self) -> Iterator[str]:
        for number, drive in self._drives.items():
            if number in self.lost:
                continue
            yield from (place_name(FragmentPlace(number, key)) for key in drive.object_keys)

    def _find(self, name: str) -> tuple[MemoryDrive, str]:
        number, colon, key = name.partition(":")
        return (self._drives[int(number)], key) if colon else (self._drives[DEFAULT_NUMBER], name)


def place_name(place: FragmentPlace) -> str:
    """How `AllDrives` names an object."""
    return (
        place.object_key if place.drive == DEFAULT_NUMBER else f"{place.drive}:{place.object_key}"
    )


def drive_name(number: int) -> str:
    """The name of a drive, as policies say it."""
    return f"d{number}"


def away_name(number: int) -> str:
    """Under which the weather knows that a drive is away."""
    return f"drive {number}"


def of_streams(names: Iterable[str]) -> list[str]:
    """Of the names of objects those of streams."""
    return [name for name in names if not name.partition(":")[2].startswith("_system/")]


async def _put(drive: Drive, object_key: str, data: bytes) -> None:
    await drive.put(object_key, [data], crc32c(data))
