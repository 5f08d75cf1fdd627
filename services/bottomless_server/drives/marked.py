"""A drive that is believed for as long as it shows its marker.

A directory whose mount is gone looks like a drive on which nothing is: what is asked of it would be
missing, a listing empty, a deletion done, and a put would lie on the disk below the mount. So
nothing of the kind is believed before a look at the marker, which lies on the drive itself. A mount
that goes while a call is under way is noticed by the look after the call; one that goes and comes back
before that look is noticed since what was put is not there, and what was missing is there.

After a crash of a put at any step: what the drive itself leaves, and nothing else. Where the mount
went between the look and the put, an object lies on the disk below it that nothing names: the look
after the put says that its outcome is unknown, and the caller goes on with that.

Which marker a drive has to show is known when a process starts, or found out when the drive is first
used, for one that is registered meanwhile.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from bottomless.drives.base import (
    Body,
    Drive,
    DriveAmbiguous,
    DriveFull,
    DriveRefused,
    DriveUnavailable,
    Location,
    ObjectMissing,
    Presigning,
)
from bottomless.errors import StoreError
from bottomless.formats.drive_objects import DRIVE_MARKER_KEY, decode_marker
from bottomless.guards import guard
from bottomless.model.drive import DriveMarker
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.answering import answering

FindMarker: TypeAlias = Callable[[], Awaitable[DriveMarker]]
"""Finds out which marker a drive has to show; raises DriveUnavailable while it has to show none."""


async def read_marker(drive: Drive) -> DriveMarker | None:
    """What a drive says of itself; None if it says nothing.

    Raises:
        Corrupt: its marker is damaged, or of a later version.
        DriveUnavailable, DriveRefused: the store did not say.
    """
    try:
        data = await drive.get(DRIVE_MARKER_KEY)
    except ObjectMissing:
        return None
    return decode_marker(bytes(data))


@guard("the marker of a mount")
def require_marker(wanted: DriveMarker, found: DriveMarker | None, name: str = "") -> None:
    """Refuse to believe a store that does not show the marker of its drive, which has this name.

    Raises:
        DriveUnavailable: it shows none, as a directory does whose mount is gone, or another one.
    """
    if found == wanted:
        return
    why = "shows no marker: its mount may be gone" if found is None else "shows another's marker"
    said = f"the drive {name}".rstrip()
    raise DriveUnavailable(f"{said} {why}", facts={"drive": wanted.number})


@guard("what was put, looked for on its mount")
async def require_there(drive: Drive, object_key: str) -> None:
    """Look for an object that was put, after the marker was seen: where the mount went and came back
    around the put, it lies in the directory below.

    Raises:
        ObjectMissing: it is not there.
        DriveUnavailable, DriveRefused: the store did not say.
    """
    await drive.head(object_key)


class MarkedDrive:
    """A drive with all that it promises, and 503 instead of an answer from what is not that drive."""

    def __init__(self, drive: Drive, marker: DriveMarker | FindMarker, name: str = "") -> None:
        """Nothing is asked of the drive before its marker was found, where it has to be, and seen.

        `name` is what the settings call it, and what is said where it is away.
        """
        self._name = name
        self._drive = answering(drive)
        self._marker = marker if isinstance(marker, DriveMarker) else None
        self._find = None if isinstance(marker, DriveMarker) else marker
        # A bucket is there or says that it is not: only what is missing in it asks for a look.
        self._may_vanish = drive.location.kind != "s3"

    async def look(self) -> None:
        """Look at the marker.

        Raises:
            DriveUnavailable: it is not there, or is another's, or the drive is not registered.
            DriveRefused: the store refuses for good.
            Corrupt: it is damaged.
        """
        await self._wanted(anew=True)

    @property
    def unmarked(self) -> Drive:
        """The drive itself, whatever it shows: for whoever puts the marker."""
        return self._drive

    @property
    def location(self) -> Location:
        return self._drive.location

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        marker = await self._look_at_mount()
        with self._named():
            await self._drive.put(object_key, body, crc)
        try:
            await self._look_at_mount()
            if self._may_vanish:
                await require_there(self._drive, object_key)
        except StoreError as error:
            raise DriveAmbiguous(
                "the drive went while an object was put", facts={"drive": marker.number}
            ) from error

    async def get(
        self, object_key: str, start: int = 0, size: int | None = None
    ) -> bytes | memoryview:
        await self._wanted()
        with self._named():
            try:
                return await self._drive.get(object_key, start, size)
            except ObjectMissing:
                await self.look()
                return await self._drive.get(object_key, start, size)

    async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
        await self._wanted()
        with self._named():
            try:
                return await self._drive.head(object_key, checksum=checksum)
            except ObjectMissing:
                await self.look()
                return await self._drive.head(object_key, checksum=checksum)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        await self.look()
        async for facts in self._drive.list(prefix, after):
            yield facts
        await self.look()

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        try:
            await self._look_at_mount()
            failures = await self._drive.delete(object_keys)
            await self._look_at_mount()
        except StoreError as error:
            return dict.fromkeys(object_keys, error)
        return failures

    async def tidy(self, prefix: str) -> None:
        await self._look_at_mount()
        await self._drive.tidy(prefix)

    @property
    def has_own_clock(self) -> bool:
        return self._drive.has_own_clock

    async def clock(self) -> int:
        return await self._drive.clock()

    async def aclose(self) -> None:
        await self._drive.aclose()

    async def _look_at_mount(self) -> DriveMarker:
        return await self._wanted(anew=self._may_vanish)

    async def _wanted(self, *, anew: bool = False) -> DriveMarker:
        """The marker that the drive has to show; looked at if it was not known yet, or `anew`."""
        marker = self._marker
        if marker is None:
            assert self._find is not None
            marker = await self._find()
            anew = True
        if anew:
            with self._named():
                found = await read_marker(self._drive)
            require_marker(marker, found, self._name)
        self._marker = marker
        return marker

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Have an error that the store itself is to blame for say which drive it is."""
        try:
            yield
        except (DriveUnavailable, DriveRefused, DriveFull, DriveAmbiguous) as error:
            if self._name and "drive" not in error.facts and self._marker is not None:
                error.message = f"the drive {self._name}: {error.message}"
                error.facts["drive"] = self._marker.number
            raise


class _PresigningDrive(MarkedDrive):
    def __init__(
        self,
        drive: Drive,
        marker: DriveMarker | FindMarker,
        name: str,
        presigning: Presigning,
    ) -> None:
        super().__init__(drive, marker, name)
        self._presigning = presigning

    async def presigned_get(self, object_key: str, *, valid_seconds: int) -> str:
        await self._wanted()
        return await self._presigning.presigned_get(object_key, valid_seconds=valid_seconds)


def marked_drive(drive: Drive, marker: DriveMarker | FindMarker, name: str = "") -> MarkedDrive:
    """The drive of this marker, or of the one that is found, by the name that the settings give it; it
    presigns if the given one does."""
    if isinstance(drive, Presigning):
        return _PresigningDrive(drive, marker, name, drive)
    return MarkedDrive(drive, marker, name)
