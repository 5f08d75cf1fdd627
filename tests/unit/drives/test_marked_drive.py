"""A drive whose mount goes, comes back, or is another one."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.guards import remove

from bottomless.drives.base import (
    Body,
    Drive,
    DriveAmbiguous,
    DriveUnavailable,
    Location,
    ObjectExists,
    ObjectMissing,
    Presigning,
)
from bottomless.errors import Code, Corrupt, StoreError
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import DRIVE_MARKER_KEY, encode_marker
from bottomless.model.drive import DriveMarker
from bottomless.model.names import Uid
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.local import LocalDrive
from bottomless_server.drives.marked import MarkedDrive, marked_drive, read_marker
from bottomless_server.drives.memory import MemoryDrive

MARKER = DriveMarker(2, Uid("5a" * 16))
OTHER = DriveMarker(3, Uid("6b" * 16))


async def put(drive: Drive, object_key: str, data: bytes) -> None:
    await drive.put(object_key, [data], crc32c(data))


class Mount:
    """A drive in a directory that can be taken away, as a mount can."""

    def __init__(self, folder: Path, inner: Callable[[Path], Drive] = LocalDrive) -> None:
        self.root = folder / "mount"
        self._aside = folder / "aside"
        self.is_back = False
        """Whether it went and came back."""
        self.drive = marked_drive(inner(self.root), MARKER)

    async def prepare(self) -> MarkedDrive:
        drive = LocalDrive(self.root)
        await put(drive, DRIVE_MARKER_KEY, encode_marker(MARKER))
        await put(drive, "orders/1", b"one")
        await drive.aclose()
        return self.drive

    def go(self) -> None:
        """What is left is the directory that was mounted on."""
        self.root.rename(self._aside)
        self.root.mkdir()

    def come_back(self) -> None:
        self.root.rmdir()
        self._aside.rename(self.root)


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    return Mount(tmp_path)


async def listed(drive: Drive, prefix: str = "") -> list[str]:
    return [facts.object_key async for facts in drive.list(prefix)]


CALLS: dict[str, Callable[[Drive], Awaitable[object]]] = {
    "look": lambda drive: drive.look() if isinstance(drive, MarkedDrive) else drive.clock(),
    "get": lambda drive: drive.get("orders/1"),
    "head": lambda drive: drive.head("orders/1", checksum=True),
    "list": listed,
    "put": lambda drive: put(drive, "orders/2", b"two"),
    "tidy": lambda drive: drive.tidy("orders/"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_mount_that_is_gone_is_unavailable_and_nothing_on_it_is_missing(
    mount: Mount, call: str
) -> None:
    drive = await mount.prepare()
    mount.go()

    with pytest.raises(DriveUnavailable, match="its mount may be gone: drive=2") as raised:
        await CALLS[call](drive)

    assert (raised.value.code, raised.value.retryable) == (Code.OBJECT_STORE_UNAVAILABLE, True)
    assert list(mount.root.iterdir()) == [], "nothing was put below the mount"
    mount.come_back()
    await CALLS[call](drive)
    await drive.aclose()


async def test_a_deletion_on_a_mount_that_is_gone_is_not_done(mount: Mount) -> None:
    drive = await mount.prepare()
    mount.go()

    failures = await drive.delete(["orders/1", "orders/2"])

    assert {key: type(error) for key, error in failures.items()} == {
        "orders/1": DriveUnavailable,
        "orders/2": DriveUnavailable,
    }
    mount.come_back()
    assert await drive.delete(["orders/1", "orders/2"]) == {}
    with pytest.raises(ObjectMissing):
        await drive.get("orders/1")
    await drive.aclose()


async def test_what_is_missing_on_a_drive_with_its_marker_is_missing(mount: Mount) -> None:
    drive = await mount.prepare()

    with pytest.raises(ObjectMissing):
        await drive.get("orders/3")
    with pytest.raises(ObjectMissing):
        await drive.head("orders/3")
    with pytest.raises(ObjectExists):
        await put(drive, "orders/1", b"another")
    assert await listed(drive, "orders/") == ["orders/1"]
    assert bytes(await drive.get("orders/1", 1, 1)) == b"n"
    assert (await drive.head("orders/1")).size == 3
    assert drive.location == Location("file", str(mount.root))
    await drive.aclose()


async def test_the_marker_of_another_drive_is_as_bad_as_none(tmp_path: Path) -> None:
    inner = LocalDrive(tmp_path)
    await put(inner, DRIVE_MARKER_KEY, encode_marker(OTHER))
    drive = marked_drive(inner, MARKER)

    with pytest.raises(DriveUnavailable, match="another's marker"):
        await put(drive, "orders/1", b"one")
    with pytest.raises(DriveUnavailable, match="another's marker"):
        await drive.get("orders/1")
    assert await read_marker(inner) == OTHER
    await drive.aclose()


async def test_a_damaged_marker_is_damage_and_no_answer(tmp_path: Path) -> None:
    inner = LocalDrive(tmp_path)
    await put(inner, DRIVE_MARKER_KEY, encode_marker(MARKER)[:-1])
    drive = marked_drive(inner, MARKER)

    with pytest.raises(Corrupt):
        await drive.get("orders/1")
    assert {type(error) for error in (await drive.delete(["orders/1"])).values()} == {Corrupt}
    await drive.aclose()


class Going(LocalDrive):
    """A drive that goes as soon as it has done what was asked, or before it does it."""

    mount: Mount

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        await super().put(object_key, body, crc)
        self.mount.go()

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        self.mount.go()
        return await super().delete(object_keys)


async def test_a_deletion_during_which_the_mount_goes_is_not_done(tmp_path: Path) -> None:
    inner = Going(tmp_path / "mount")
    inner.mount = mount = Mount(tmp_path, lambda _: inner)
    drive = await mount.prepare()

    assert list(await drive.delete(["orders/1"])) == ["orders/1"]

    mount.come_back()
    assert bytes(await drive.get("orders/1")) == b"one"
    await drive.aclose()


async def test_a_listing_during_which_the_mount_goes_has_no_end(mount: Mount) -> None:
    drive = await mount.prepare()
    listing = drive.list("orders/")
    assert (await anext(listing)).object_key == "orders/1"
    mount.go()

    with pytest.raises(DriveUnavailable):
        await anext(listing)
    await drive.aclose()


async def test_a_put_during_which_the_mount_goes_has_an_unknown_outcome(tmp_path: Path) -> None:
    inner = Going(tmp_path / "mount")
    inner.mount = mount = Mount(tmp_path, lambda _: inner)
    drive = await mount.prepare()

    with pytest.raises(DriveAmbiguous, match="went while an object was put"):
        await put(drive, "orders/2", b"two")

    mount.come_back()
    assert bytes(await drive.get("orders/2")) == b"two"
    await drive.aclose()


class Coming(LocalDrive):
    """A drive that is back when it has done what was asked, of the directory below its mount."""

    mount: Mount

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        failures = await super().delete(object_keys)
        self.mount.come_back()
        return failures

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        async for facts in super().list(prefix, after):
            yield facts
        self.mount.come_back()


async def test_what_was_asked_before_a_mount_came_back_is_not_believed(tmp_path: Path) -> None:
    inner = Coming(tmp_path / "mount")
    inner.mount = mount = Mount(tmp_path, lambda _: inner)
    drive = await mount.prepare()
    mount.go()

    assert list(await drive.delete(["orders/1"])) == ["orders/1"]
    with pytest.raises(DriveUnavailable):
        await listed(drive)

    mount.come_back()
    await drive.aclose()


class Flapping(LocalDrive):
    """A drive that is gone for just as long as one call takes."""

    mount: Mount

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        with self._away():
            await super().put(object_key, body, crc)

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        with self._away(only=object_key != DRIVE_MARKER_KEY):
            return bytes(await super().get(object_key, start, size))

    @contextmanager
    def _away(self, *, only: bool = True) -> Iterator[None]:
        if not only or self.mount.is_back:
            yield
            return
        self.mount.is_back = True
        self.mount.go()
        try:
            yield
        finally:
            shutil.rmtree(self.mount.root)
            self.mount.root.mkdir()
            self.mount.come_back()


@pytest.fixture
async def flapping(tmp_path: Path) -> AsyncIterator[Mount]:
    """It goes once."""
    inner = Flapping(tmp_path / "mount")
    inner.mount = mount = Mount(tmp_path, lambda _: inner)
    await mount.prepare()
    yield mount
    await mount.drive.aclose()


async def test_a_put_around_which_the_mount_goes_and_comes_back_has_an_unknown_outcome(
    flapping: Mount,
) -> None:
    """A simulated seed found it: a fragment was named, and lay below the mount."""
    with pytest.raises(DriveAmbiguous, match="went while an object was put"):
        await put(flapping.drive, "orders/2", b"two")

    await put(flapping.drive, "orders/2", b"two")
    assert bytes(await flapping.drive.get("orders/2")) == b"two"


async def test_without_a_look_for_it_what_was_put_below_a_mount_counts(
    flapping: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def believe(_: Drive, __: str) -> None:
        pass

    remove(monkeypatch, "what was put, looked for on its mount", believe)
    await put(flapping.drive, "orders/2", b"two")
    with pytest.raises(ObjectMissing):
        await flapping.drive.get("orders/2")


async def test_what_was_missing_while_a_mount_went_and_came_back_is_there(flapping: Mount) -> None:
    assert bytes(await flapping.drive.get("orders/1")) == b"one"


class Bucket(MemoryDrive):
    """A drive that says that it is a bucket, and what was read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    @property
    def location(self) -> Location:
        return Location("s3", "bucket")

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        self.read.append(object_key)
        return await super().get(object_key, start, size)


async def test_a_bucket_is_asked_for_its_marker_only_where_something_is_missing() -> None:
    bucket = Bucket()
    drive = marked_drive(bucket, MARKER)
    await put(drive, "orders/1", b"one")
    await drive.get("orders/1")
    assert await drive.delete(["orders/1"]) == {}
    assert bucket.read == ["orders/1"]
    with pytest.raises(DriveUnavailable):
        await drive.get("orders/1")
    assert bucket.read[1:] == ["orders/1", DRIVE_MARKER_KEY]


class Signing(Bucket):
    async def presigned_get(self, object_key: str, *, valid_seconds: int) -> str:
        return f"{object_key} for {valid_seconds} s"


async def test_it_presigns_if_the_drive_does() -> None:
    assert not isinstance(marked_drive(Bucket(), MARKER), Presigning)
    drive = marked_drive(Signing(), MARKER)
    assert isinstance(drive, Presigning)
    assert await drive.presigned_get("orders/1", valid_seconds=5) == "orders/1 for 5 s"


async def test_without_the_marker_a_mount_that_is_gone_is_an_empty_drive(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: nobody looks whether it is the drive."""
    drive = await mount.prepare()
    mount.go()
    remove(monkeypatch, "the marker of a mount", lambda *_: None)

    with pytest.raises(ObjectMissing):
        await drive.get("orders/1")
    assert await listed(drive) == []
    assert await drive.delete(["orders/1"]) == {}, "and it is still there"
    mount.come_back()
    assert bytes(await drive.get("orders/1")) == b"one"
    await drive.aclose()


class Unreachable(MemoryDrive):
    """A bucket whose server is gone."""

    reachable = True

    @property
    def location(self) -> Location:
        return Location("s3", "bucket")

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        if not self.reachable:
            raise DriveUnavailable("the object store cannot be reached")
        return await super().get(object_key, start, size)


async def test_a_bucket_that_is_away_is_503_by_its_name_too() -> None:
    bucket = Unreachable()
    await put(bucket, DRIVE_MARKER_KEY, encode_marker(MARKER))
    await put(bucket, "orders/1", b"one")
    drive = marked_drive(bucket, MARKER, "cold")
    bucket.reachable = False
    for ask in (drive.get("orders/1"), drive.look()):
        with pytest.raises(DriveUnavailable) as told:
            await ask
        assert str(told.value) == "the drive cold: the object store cannot be reached: drive=2"
        assert told.value.retryable
