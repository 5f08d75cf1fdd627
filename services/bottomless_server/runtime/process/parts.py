"""Turn urls of the settings into the concrete parts that implement the ports.

Imports stand inside the functions: a service loads the libraries of the parts it uses.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bottomless.drives.base import Drive
from bottomless.errors import Code, Corrupt, Unavailable
from bottomless_server.coordination.base import Coordination
from bottomless_server.drives.configured import ConfiguredDrive, WrongDrives, parse_drives
from bottomless_server.drives.table import DriveTable, open_table
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.settings import CommonSettings


def open_drive(
    url: str, settings: CommonSettings, said_by: str = "the url in BOTTOMLESS_STORE_URL"
) -> Drive:
    """The object store at a url: `file:///directory` or `s3://bucket/prefix?endpoint=…`.

    Nothing is asked of it yet. `said_by` is where the url was found, for people.

    Raises:
        CannotStart: the url names no store that is known.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        from bottomless_server.drives.local import LocalDrive  # noqa: PLC0415

        return LocalDrive(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        from bottomless_server.drives.s3 import S3Drive  # noqa: PLC0415
        from bottomless_server.runtime.process.store_url import parse_s3_url  # noqa: PLC0415

        try:
            return S3Drive(parse_s3_url(url, settings))
        except ValueError as error:
            raise CannotStart(f"{said_by} {error}") from error
    raise CannotStart(
        f"{said_by} must look like file:///directory or s3://bucket/prefix?endpoint=…"
    )


@asynccontextmanager
async def opened_drives(
    default: Drive, settings: CommonSettings, measured: Callable[[Drive], Drive]
) -> AsyncIterator[DriveTable]:
    """The drives of fragments, for as long as the context lasts: drive 0, and what `drives` names.

    Without that setting drive 0 is asked nothing, and is the only one. Each of the others is what
    `measured` makes of it.

    Raises:
        CannotStart: setting, registry and drives contradict each other, or cannot be read.
        DriveUnavailable, DriveRefused: drive 0 did not give the registry.
    """

    def open_one(drive: ConfiguredDrive) -> Drive:
        said_by = f"the url of drive {drive.name} in BOTTOMLESS_DRIVES"
        return measured(open_drive(drive.url, settings, said_by))

    if settings.drives is None:
        yield DriveTable.of_one(default)
        return
    try:
        table = await open_table(default, parse_drives(settings.drives), open_one)
    except WrongDrives as error:
        raise CannotStart(str(error)) from error
    except Corrupt as error:
        raise CannotStart(f"the registry or a marker of drives cannot be read: {error}") from error
    try:
        yield table
    finally:
        await table.aclose()


def open_coordination(url: str) -> Coordination:
    """The coordination store at a url: `redis://host:port/0` or `unix:///path`.

    Raises:
        CannotStart: the url names no store that is known.
    """
    from bottomless_server.coordination.redis import RedisCoordination  # noqa: PLC0415

    try:
        if urlsplit(url).scheme in ("redis", "rediss", "unix"):
            return RedisCoordination.connect(url)
    except ValueError:
        # Its sentence may hold the beginning of a password, so neither it nor its cause is told.
        raise CannotStart(
            "BOTTOMLESS_COORDINATION_URL cannot be read; a password with / # ? or @ in it has to be"
            " percent-encoded"
        ) from None
    raise CannotStart(
        "BOTTOMLESS_COORDINATION_URL must look like redis://host:port/0 or unix:///path"
    )


@contextmanager
def stores_told(settings: CommonSettings) -> Iterator[None]:
    """Put around a start: where a store fails it, the sentence says which one was tried.

    Raises:
        CannotStart: a store that the settings name cannot be used.
    """
    named = {
        Code.OBJECT_STORE_UNAVAILABLE: ("STORE_URL", settings.store_url),
        Code.COORDINATION_UNAVAILABLE: ("COORDINATION_URL", settings.coordination_url),
    }
    try:
        yield
    except Unavailable as error:
        setting, url = named.get(error.code, ("", None))
        if url is None:
            raise
        raise CannotStart(
            f"{error}; see that it runs and can be reached at {_without_password(url)}, which is "
            f"what BOTTOMLESS_{setting} names"
        ) from error


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
