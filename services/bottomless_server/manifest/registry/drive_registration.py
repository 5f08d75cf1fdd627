"""Enter a drive of the settings into the registry of drives, so that fragments may lie on it.

Steps, in this order:

1. The drive is tried (drives/probe.py), is not drive 0 of any deployment, and shows no marker, or
   that of this registration.
2. A new version of the registry has the drive, with its number and a random id, as a retired one: so
   its number is taken for ever, and nobody uses it.
3. The marker with this number and id is put on the drive, if none is there.
4. A new version of the registry has it as one that is used.

After a crash in 1 nothing is there but an object of the probe. After 2 and 3 the registry has a
retired drive, whose id says that a marker is ours: the same request goes on from there. So does one
for a drive that was retired: nothing lies on it, and its number still means the same store. One that is
about to be retired is used again at once, and whoever looks whether it can be retired finds that.
docs/decisions/0155 and 0146.
"""

import asyncio
from typing import Any

from bottomless.drives.base import Drive
from bottomless.errors import Code, Corrupt, Exists, InvalidRequest, StoreError
from bottomless.formats.drive_objects import (
    DRIVE_MARKER_KEY,
    DRIVES_PREFIX,
    encode_marker,
)
from bottomless.formats.keys import GENERATION_PREFIX
from bottomless.guards import guard
from bottomless.model.drive import (
    DEFAULT_NAME,
    DEFAULT_NUMBER,
    DriveMarker,
    DriveRegistry,
    RegisteredDrive,
)
from bottomless_server.drives.configured import ConfiguredDrive
from bottomless_server.drives.marked import read_marker
from bottomless_server.drives.probe import probe
from bottomless_server.drives.table import load_registry
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.registry.drive_versions import change_registry, put_on
from bottomless_server.runtime.base.fault_points import reach


class DriveRegistration:
    """Registers drives, and tells of them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def describe(self) -> list[dict[str, Any]]:
        """Tell of drive 0, of all that are registered, and of those that only the settings name.

        Raises:
            Unavailable, Corrupt: drive 0 did not give the registry.
        """
        context = self._context
        states = {drive.number: (drive.name, "unregistered") for drive in context.drives.configured}
        registry = await load_registry(context.drive)
        found = await asyncio.gather(*(self._state(drive) for drive in registry.drives))
        for drive, state in zip(registry.drives, found, strict=True):
            states[drive.number] = drive.name, state
        states[DEFAULT_NUMBER] = DEFAULT_NAME, "used"
        return [
            {"name": name, "number": number, "state": state}
            for number, (name, state) in sorted(states.items())
        ]

    async def _state(self, drive: RegisteredDrive) -> str:
        if drive.lost:
            return "lost"
        if drive.retired:
            return "retired"
        if drive.retiring is not None:
            return "retiring"
        try:
            await self._context.drives.marked(drive.number).look()
        except StoreError:
            return "away"
        return "used"

    async def register(self, name: str) -> RegisteredDrive:
        """Register the drive that the settings of this process name so; again changes nothing.

        Raises:
            InvalidRequest: the settings name none, or the registry has another one in its place.
            Exists: the store is drive 0, or the drive of another number, or of another deployment.
            Unavailable: drive 0 or the drive does not answer, or does not do what a drive promises.
            Corrupt: the registry or the marker cannot be read.
        """
        setting = self._setting(name)
        require_not_lost(_find(await load_registry(self._context.drive), setting))
        drive = self._context.drives.marked(setting.number)
        known = _find(await load_registry(self._context.drive), setting)
        if known is not None and not known.retired:
            # Without its marker it is away; to put that anew could mark the directory below a mount.
            await drive.look()
            return (
                known
                if known.is_open
                else await self._enter(setting, known._replace(retiring=None))
            )
        await probe(drive.unmarked)
        await require_no_first_drive(drive.unmarked)
        found = await read_marker(drive.unmarked)
        # Not before the marker was read: somebody else may have registered the drive meanwhile.
        known = _find(await load_registry(self._context.drive), setting)
        require_unmarked(known, found)
        new = RegisteredDrive(name, setting.number, self._context.new_uid(), retired=True)
        taken = known or await self._enter(setting, new)
        if not taken.retired:
            # Somebody else was faster, and its mount may be gone already.
            await drive.look()
            return taken
        await reach("manifest.drives.after-number")
        await self._put_marker(drive.unmarked, taken)
        await reach("manifest.drives.after-marker")
        used = await self._enter(setting, taken._replace(retired=False))
        await reach("manifest.drives.after-use")
        return used

    def _setting(self, name: str) -> ConfiguredDrive:
        for setting in self._context.drives.configured:
            if setting.name == name:
                return setting
        raise InvalidRequest(
            "BOTTOMLESS_DRIVES of the manifest service names no such drive",
            code=Code.DRIVE_UNKNOWN,
        )

    async def _enter(self, setting: ConfiguredDrive, row: RegisteredDrive) -> RegisteredDrive:
        """Make the registry have this row; returns what it has if somebody was faster."""
        known: list[RegisteredDrive] = []

        def decide(registry: DriveRegistry) -> RegisteredDrive | None:
            found = _find(registry, setting)
            # Since it was looked at somebody may have said that it is lost.
            require_not_lost(found)
            known[:] = [found or row]
            if found is not None and (found.drive_id != row.drive_id or found == row):
                return None
            known[:] = [row]
            return row

        await change_registry(self._context, decide)
        return known[0]

    async def _put_marker(self, drive: Drive, row: RegisteredDrive) -> None:
        marker = DriveMarker(row.number, row.drive_id)
        try:
            await put_on(self._context, drive, DRIVE_MARKER_KEY, encode_marker(marker))
        except Corrupt as error:
            raise _of_another() from error


@guard("drive 0 is no other drive")
async def require_no_first_drive(drive: Drive) -> None:
    """Refuse a store that is the drive 0 of a deployment, of ours under another name or of another.

    Drive 0 has no marker, and one store may have two names: by a link, or two addresses of a server.
    As another drive, all fragments on it would be found there where no manifest names them.

    Raises:
        Exists: it has what every deployment puts on its drive 0.
        DriveUnavailable, DriveRefused
    """
    for prefix in (GENERATION_PREFIX, DRIVES_PREFIX):
        async for _ in drive.list(prefix):
            raise Exists(
                "the store is the first drive of a deployment, perhaps of this one under another "
                "name. Take another directory or prefix",
                code=Code.DRIVE_IN_USE,
            )


@guard("a drive is lost for ever")
def require_not_lost(known: RegisteredDrive | None) -> None:
    """Refuse to use a drive again of which an operator has said that it is lost.

    Raises:
        Exists
    """
    if known is not None and known.lost:
        raise Exists(
            "the drive was said to be lost, for ever: take another name and number for another store",
            code=Code.DRIVE_IN_USE,
        )


@guard("a drive belongs to one deployment")
def require_unmarked(known: RegisteredDrive | None, found: DriveMarker | None) -> None:
    """Refuse a store that is a drive already, unless an earlier try of ours made it that one.

    Raises:
        Exists: its marker is not that of the drive which is registered.
    """
    ours = None if known is None else DriveMarker(known.number, known.drive_id)
    if found is not None and found != ours:
        raise _of_another()


def _of_another() -> Exists:
    return Exists(
        "the store has the marker of another drive: of another number, or of another deployment. "
        "Take another directory or prefix",
        code=Code.DRIVE_IN_USE,
    )


def _find(registry: DriveRegistry, setting: ConfiguredDrive) -> RegisteredDrive | None:
    for drive in registry.drives:
        if (drive.name, drive.number) == setting[:2]:
            return drive
        if drive.name == setting.name or drive.number == setting.number:
            raise InvalidRequest(
                "the registry has another drive with this name or number, for ever: "
                "take another one in BOTTOMLESS_DRIVES",
                code=Code.DRIVE_UNKNOWN,
            )
    return None
