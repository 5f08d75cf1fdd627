"""Put the next version of the registry of drives, of whatever others put at the same time.

Each version is put if absent and has all drives of the one before: of two that are made at once one is
made again. After a crash the version is there, whole, or it is not.
"""

from collections.abc import Callable
from typing import Final

from bottomless.drives.base import Drive
from bottomless.errors import Corrupt, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import drives_key, encode_drives
from bottomless.model.drive import DriveRegistry, RegisteredDrive
from bottomless_server.drives.table import load_registry
from bottomless_server.manifest.common.context import Context
from bottomless_server.stores.put_retries import put_object

_ATTEMPT_COUNT: Final = 8

Decide = Callable[[DriveRegistry], RegisteredDrive | None]
"""Says, from the newest registry, what a drive is to be in the next one; None to leave all as it is."""


async def change_registry(context: Context, decide: Decide) -> DriveRegistry:
    """Have the registry say of one drive what `decide` wants; returns the registry that says it.

    `decide` is asked again where others were faster, and raises to leave the registry as it is.

    Raises:
        Unavailable: others change it all the time; or drive 0 did not take or give it.
        Corrupt: it is damaged, or of a later version.
    """
    for _ in range(_ATTEMPT_COUNT):
        registry = await load_registry(context.drive)
        row = decide(registry)
        if row is None:
            return registry
        others = [drive for drive in registry.drives if drive.number != row.number]
        drives = tuple(sorted([*others, row], key=lambda drive: drive.number))
        following = DriveRegistry(registry.version + 1, drives)
        if await _put_version(context, following):
            return following
    raise Unavailable("others change the registry of drives all the time")


async def _put_version(context: Context, registry: DriveRegistry) -> bool:
    """Whether this is that version; False where another one was put."""
    try:
        await put_on(context, context.drive, drives_key(registry.version), encode_drives(registry))
    except Corrupt:
        return False
    return True


async def put_on(context: Context, drive: Drive, object_key: str, data: bytes) -> None:
    """Put a small object on a drive, if absent.

    Raises:
        Corrupt: another object has its key.
        DriveUnavailable, DriveRefused, DriveAmbiguous
    """
    await put_object(
        drive,
        object_key,
        [data],
        crc32c(data),
        deadline_seconds=context.settings.manifest_put_seconds,
    )
