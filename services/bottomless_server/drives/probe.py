"""Whether a store keeps what a drive promises: tried once, before a process starts on it.

A store that overwrites what was put only if absent would let two writers undo each
other without a sound. It is found out here, on an object of our own, and refused.

After a crash at any step: one small object below `_system/probe/`, which nothing reads.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bottomless.drives.base import Drive, DriveRefused, ObjectExists, ObjectMissing
from bottomless.formats.checks import crc32c

PROBE_PREFIX = "_system/probe/"

_FIRST = b"0123456789 first"
_SECOND = b"0123456789 second"


async def probe(drive: Drive) -> None:
    """Try put-if-absent, ranged read, listing and deletion on an object of our own.

    Raises:
        DriveRefused: the store does not do one of them; the message says which.
        DriveUnavailable, DriveFull, DriveAmbiguous, Corrupt: it could not be tried.
    """
    object_key = PROBE_PREFIX + secrets.token_hex(16)
    await drive.put(object_key, [_FIRST], crc32c(_FIRST))
    async with _deleted(drive, object_key):
        await _try_put_if_absent(drive, object_key)
        if await drive.get(object_key, 3, 5) != _FIRST[3:8]:
            raise DriveRefused("the object store does not serve ranges of an object")
        listed = [facts.object_key async for facts in drive.list(object_key[:-1])]
        if object_key not in listed:
            raise DriveRefused("the object store does not list an object that was just put")
    try:
        await drive.head(object_key)
    except ObjectMissing:
        return
    raise DriveRefused("the object store still has an object that was deleted")


async def _try_put_if_absent(drive: Drive, object_key: str) -> None:
    refused = False
    try:
        await drive.put(object_key, [_SECOND], crc32c(_SECOND))
    except ObjectExists:
        refused = True
    if not refused or await drive.get(object_key) != _FIRST:
        raise DriveRefused(
            "the object store ignores If-None-Match: it overwrites an object that was to be put "
            "only if absent, so streams would not be safe on it"
        )


@asynccontextmanager
async def _deleted(drive: Drive, object_key: str) -> AsyncIterator[None]:
    """Delete it in the end; that it could not be is raised where nothing else is."""
    try:
        yield
    except BaseException:
        await drive.delete([object_key])
        raise
    for error in (await drive.delete([object_key])).values():
        raise error
