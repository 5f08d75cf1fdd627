"""Know which drives take new fragments, as the registry of drives says at this moment.

A drive that is about to be retired, is retired, or is lost takes none. Who wants to put something on a drive
first writes that down in the stream's record, and then asks here; who retires a drive first has the
registry say that it is about to be retired, and then looks at all records. So of the two at least one
sees the other, in whatever order they come (docs/decisions/0146).

A version of the registry is put if absent and never changes, and each is made from the one before it. So
a question is one look for the next version, which there is seldom.
"""

from collections.abc import Collection

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Code, Exists
from bottomless.formats.drive_objects import decode_drives, drives_key
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER, DriveRegistry
from bottomless_server.drives.table import load_registry


class DriveStates:
    """The newest registry of drives, which is asked for anew at each question."""

    def __init__(self, drive: Drive) -> None:
        self._drive = drive
        self._registry: DriveRegistry | None = None

    async def registry(self) -> DriveRegistry:
        """The registry of drives as it is now.

        Raises:
            Corrupt: it is damaged, or of a later version.
            DriveUnavailable, DriveRefused: drive 0 did not give it.
        """
        registry = self._registry or await load_registry(self._drive)
        while True:
            self._registry = registry
            try:
                data = await self._drive.get(drives_key(registry.version + 1))
            except ObjectMissing:
                return registry
            registry = decode_drives(bytes(data))

    async def is_closed(self, number: int) -> bool:
        """Whether the registry has a drive that takes nothing new; raises what `registry` does."""
        if number == DEFAULT_NUMBER:
            return False
        await self.registry()
        return self.was_closed(number)

    async def lost(self, numbers: Collection[int]) -> frozenset[int]:
        """Pick those of some drives that an operator has said to be lost; raises what `registry` does."""
        if not set(numbers) - {DEFAULT_NUMBER}:
            return frozenset()
        drives = (await self.registry()).drives
        return frozenset(drive.number for drive in drives if drive.lost) & frozenset(numbers)

    def was_closed(self, number: int) -> bool:
        """Whether the last question found that the registry has such a drive; False before the first."""
        drives = () if self._registry is None else self._registry.drives
        return any(drive.number == number and not drive.is_open for drive in drives)


@guard("a drive that is retired takes nothing new")
async def require_open(states: DriveStates, number: int) -> None:
    """Refuse to have fragments put on a drive that is retired, or about to be.

    Raises:
        Exists: `drive-in-use`: it takes nothing new.
        Corrupt, DriveUnavailable, DriveRefused: nobody can tell now.
    """
    if await states.is_closed(number):
        raise Exists(
            "the drive is retired, or about to be: nothing new is put on it. Register it again, or "
            "name another one",
            code=Code.DRIVE_IN_USE,
            facts={"drive": number},
        )
