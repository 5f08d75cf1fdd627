"""Drives by their numbers, as settings, the registry and the drives themselves say in agreement.

Drive 0 holds all metadata, with the registry of the others among it. A drive counts once it is in
the registry. One that the settings name before that is opened and not used: what is first asked of
it looks into the registry, so that a process that was running when the drive was registered needs no
new start.

Whoever wants the object of a fragment asks a table for the drive that the fragment's entry names.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import permutations

from bottomless.drives.base import Drive, DriveRefused, DriveUnavailable, Location
from bottomless.errors import Corrupt, StoreError
from bottomless.formats.drive_objects import (
    DRIVES_PREFIX,
    decode_drives,
    drives_key,
    parse_drives_key,
)
from bottomless.model.drive import (
    DEFAULT_NAME,
    DEFAULT_NUMBER,
    DriveMarker,
    DriveRegistry,
    RegisteredDrive,
)
from bottomless_server.drives.configured import ConfiguredDrive, WrongDrives
from bottomless_server.drives.marked import (
    FindMarker,
    MarkedDrive,
    marked_drive,
    read_marker,
)


class DriveTable:
    """The drives that a process may use. Drive 0 is another's to close; the others are its own."""

    def __init__(
        self,
        default: Drive,
        others: Mapping[int, MarkedDrive],
        configured: Sequence[ConfiguredDrive] = (),
    ) -> None:
        assert DEFAULT_NUMBER not in others, "drive 0 has no marker"
        self._default = default
        self._others = dict(others)
        self.configured = tuple(configured)
        """What the settings say of the others, by rising number."""

    @classmethod
    def of_one(cls, default: Drive) -> "DriveTable":
        """The table of a deployment whose fragments all lie on drive 0."""
        return cls(default, {})

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of all drives that this process knows, rising; some may not be registered."""
        return (DEFAULT_NUMBER, *sorted(self._others))

    def of(self, number: int) -> Drive:
        """The drive of a number, as an entry of a manifest names it.

        Raises:
            DriveUnavailable: this process does not know it. Another one may: whatever lies on it is
                there, and nobody may take it for missing.
        """
        if number == DEFAULT_NUMBER:
            return self._default
        return self.marked(number)

    def marked(self, number: int) -> MarkedDrive:
        """A drive beside drive 0, by its number; raises what `of` does."""
        if number not in self._others:
            raise DriveUnavailable(
                "the drive is not among those that this process started with; "
                "name it in BOTTOMLESS_DRIVES and start the process anew",
                facts={"drive": number},
            )
        return self._others[number]

    async def away(self) -> dict[int, StoreError]:
        """Why drives cannot be used at present, by number; none of those that can."""
        found: dict[int, StoreError] = {}
        for number, drive in sorted(self._others.items()):
            try:
                await drive.look()
            except StoreError as error:
                found[number] = error
        return found

    async def aclose(self) -> None:
        """Close all drives but drive 0."""
        async with AsyncExitStack() as closing:
            for drive in self._others.values():
                closing.push_async_callback(drive.aclose)


async def open_table(
    default: Drive,
    configured: Sequence[ConfiguredDrive],
    open_drive: Callable[[ConfiguredDrive], Drive],
) -> DriveTable:
    """Open every drive that the settings name.

    One that does not answer, or shows no marker, is away and no reason not to start: what lies on
    it is 503 until it is back, and all else is served.

    Raises:
        WrongDrives: settings, registry or markers contradict each other.
        Corrupt: the registry or a marker is damaged, or of a later version.
        DriveUnavailable, DriveRefused: drive 0 did not give the registry.
    """
    require_no_marker(await read_marker(default))
    used = {
        setting.number: marker
        for setting, marker in drives_to_use(configured, await load_registry(default))
    }
    async with AsyncExitStack() as closing:
        others: dict[int, MarkedDrive] = {}
        locations = {DEFAULT_NAME: default.location}
        for setting in configured:
            drive = open_drive(setting)
            closing.push_async_callback(drive.aclose)
            locations[setting.name] = drive.location
            marker = used.get(setting.number)
            others[setting.number] = marked_drive(
                drive, marker or _finder(default, setting), setting.name
            )
            if marker is not None:
                await _require_no_other(setting, drive, marker)
        require_apart(locations)
        closing.pop_all()
    return DriveTable(default, others, configured)


def require_no_marker(found: DriveMarker | None) -> None:
    """Refuse to take for drive 0 what was registered as another drive, of this deployment or not.

    Raises:
        WrongDrives: it shows a marker.
    """
    if found is not None:
        raise WrongDrives(
            "the url in BOTTOMLESS_STORE_URL leads to a store that is registered as another drive, "
            f"with the number {found.number}"
        )


def _finder(default: Drive, setting: ConfiguredDrive) -> FindMarker:
    """What finds the marker of a drive that the registry did not have, or had as a retired one."""

    async def find() -> DriveMarker:
        for drive in (await load_registry(default)).drives:
            if (drive.name, drive.number) == setting[:2] and not drive.is_gone:
                return DriveMarker(drive.number, drive.drive_id)
        raise DriveUnavailable(
            "the drive is not registered under the name and number that the settings of this "
            "process say; register it, or mend BOTTOMLESS_DRIVES",
            facts={"drive": setting.number},
        )

    return find


async def load_registry(default: Drive) -> DriveRegistry:
    """Read the newest registry from drive 0; where there is none there are no other drives.

    Raises:
        Corrupt: it is damaged, of a later version, or another one than its key says.
        ObjectMissing: it was deleted meanwhile, as nobody may.
        DriveUnavailable, DriveRefused: the store did not give it.
    """
    newest = 0
    async for facts in default.list(DRIVES_PREFIX):
        newest = max(newest, parse_drives_key(facts.object_key) or 0)
    if not newest:
        return DriveRegistry(0, ())
    registry = decode_drives(bytes(await default.get(drives_key(newest))))
    if registry.version != newest:
        raise Corrupt("the registry of drives is another version than its key says")
    return registry


def drives_to_use(
    configured: Sequence[ConfiguredDrive], registry: DriveRegistry
) -> list[tuple[ConfiguredDrive, DriveMarker]]:
    """The settings of each drive that is registered, not retired and not lost, with the marker it has
    to show.

    Raises:
        WrongDrives: a name or a number is registered as another one, or a drive that may hold
            fragments is not in the settings.
    """
    settings = {drive.name: drive for drive in configured}
    by_name = {drive.name: drive for drive in registry.drives}
    by_number = {drive.number: drive for drive in registry.drives}
    for setting in configured:
        _require_same(setting, by_name.get(setting.name) or by_number.get(setting.number))
    used = []
    for drive in registry.drives:
        if drive.is_gone:
            continue
        if drive.name not in settings:
            raise WrongDrives(
                f"drive {drive.name} may hold fragments and is not in BOTTOMLESS_DRIVES; "
                f"name it there with its number, {drive.number}, or retire it"
            )
        used.append((settings[drive.name], DriveMarker(drive.number, drive.drive_id)))
    return used


def _require_same(setting: ConfiguredDrive, registered: RegisteredDrive | None) -> None:
    if registered is None or (registered.name, registered.number) == setting[:2]:
        return
    raise WrongDrives(
        f"BOTTOMLESS_DRIVES says that drive {setting.number} is {setting.name}, and the registry "
        f"that drive {registered.number} is {registered.name}; a number never means another drive"
    )


def require_apart(locations: Mapping[str, Location]) -> None:
    """Refuse drives of which one lies in another: objects of the one would be strays of the other.

    Raises:
        WrongDrives: two of them have one root, or the root of one is below that of another.
    """
    for (outer, one), (inner, other) in permutations(locations.items(), 2):
        same_store = (one.kind, one.endpoint) == (other.kind, other.endpoint)
        below = _as_folder(other.root).startswith(_as_folder(one.root))
        if same_store and below:
            raise WrongDrives(f"the root of drive {inner} lies in that of drive {outer}")


def _as_folder(root: str) -> str:
    return root.rstrip("/") + "/"


async def _require_no_other(setting: ConfiguredDrive, drive: Drive, marker: DriveMarker) -> None:
    try:
        found = await read_marker(drive)
    except (DriveUnavailable, DriveRefused):
        return
    if found is not None and found != marker:
        raise WrongDrives(
            f"the url of drive {setting.name} in BOTTOMLESS_DRIVES leads to another drive, "
            f"with the number {found.number} or another id"
        )
