"""Drives by their numbers: what settings, registry and markers have to agree in."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest

from bottomless.drives.base import Drive, DriveUnavailable, Location, ObjectMissing
from bottomless.errors import Code, Corrupt
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import (
    DRIVE_MARKER_KEY,
    drives_key,
    encode_drives,
    encode_marker,
)
from bottomless.model.drive import DriveMarker, DriveRegistry, RegisteredDrive
from bottomless.model.names import Uid
from bottomless_server.drives.configured import ConfiguredDrive, WrongDrives, parse_drives
from bottomless_server.drives.local import LocalDrive
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import (
    drives_to_use,
    load_registry,
    open_table,
    require_apart,
)

COLD_ID, SHELF_ID = Uid("5a" * 16), Uid("6b" * 16)
COLD = RegisteredDrive("cold", 2, COLD_ID, retired=False)
SHELF = RegisteredDrive("shelf", 1, SHELF_ID, retired=False)


def configured(name: str, number: int, url: str = "file:///mnt") -> ConfiguredDrive:
    return ConfiguredDrive(name, number, url)


async def put(drive: Drive, object_key: str, data: bytes) -> None:
    await drive.put(object_key, [data], crc32c(data))


async def put_registry(drive: Drive, version: int, *drives: RegisteredDrive) -> None:
    await put(drive, drives_key(version), encode_drives(DriveRegistry(version, drives)))


class Opened(LocalDrive):
    """A drive in a directory, that says whether it was closed."""

    is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True
        await super().aclose()


class Stores:
    """Drive 0 in memory, the others in directories."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.default = MemoryDrive()
        self.opened: list[Opened] = []

    def open(self, drive: ConfiguredDrive) -> Drive:
        self.opened.append(Opened(self.folder / drive.url))
        return self.opened[-1]

    async def mark(self, folder: str, number: int, drive_id: Uid) -> None:
        drive = LocalDrive(self.folder / folder)
        await put(drive, DRIVE_MARKER_KEY, encode_marker(DriveMarker(number, drive_id)))
        await drive.aclose()


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


async def test_without_a_registry_all_is_on_drive_0(stores: Stores) -> None:
    table = await open_table(stores.default, [configured("cold", 2, "cold")], stores.open)

    assert table.of(0) is stores.default
    assert table.numbers == (0, 2)
    assert list(await table.away()) == [2], "a drive that nobody registered is not used yet"
    await table.aclose()
    assert [each.is_closed for each in stores.opened] == [True]


UNREGISTERED: dict[str, Callable[[Drive], Awaitable[object]]] = {
    "get": lambda drive: drive.get("orders/1"),
    "head": lambda drive: drive.head("orders/1"),
    "put": lambda drive: put(drive, "orders/2", b"two"),
    "tidy": lambda drive: drive.tidy("orders/"),
}


@pytest.mark.parametrize("call", UNREGISTERED)
async def test_a_drive_is_used_as_soon_as_it_is_registered_without_a_new_start(
    stores: Stores, call: str
) -> None:
    await stores.mark("cold", 2, COLD_ID)
    table = await open_table(stores.default, [configured("cold", 2, "cold")], stores.open)
    cold = table.of(2)
    await put(stores.opened[0], "orders/1", b"one")

    with pytest.raises(DriveUnavailable, match="the drive is not registered"):
        await UNREGISTERED[call](cold)
    await put_registry(stores.default, 1, COLD)

    await UNREGISTERED[call](cold)
    assert await table.away() == {}
    await table.aclose()


@pytest.mark.parametrize(
    "registered",
    [
        COLD._replace(name="frost"),
        COLD._replace(number=3),
        COLD._replace(retired=True),
    ],
)
async def test_a_drive_that_is_registered_as_another_one_later_is_not_used(
    stores: Stores, registered: RegisteredDrive
) -> None:
    await stores.mark("cold", 2, COLD_ID)
    table = await open_table(stores.default, [configured("cold", 2, "cold")], stores.open)
    await put_registry(stores.default, 1, registered)

    with pytest.raises(DriveUnavailable, match="or mend BOTTOMLESS_DRIVES: drive=2"):
        await put(table.of(2), "orders/1", b"one")
    assert not (stores.folder / "cold/orders").exists()
    await table.aclose()


async def test_a_url_that_leads_elsewhere_is_found_out_when_a_late_drive_is_first_used(
    stores: Stores,
) -> None:
    table = await open_table(stores.default, [configured("cold", 2, "cold")], stores.open)
    await put_registry(stores.default, 1, COLD)
    await stores.mark("cold", 2, SHELF_ID)

    with pytest.raises(DriveUnavailable, match="shows another's marker"):
        await put(table.of(2), "orders/1", b"one")
    assert not (stores.folder / "cold/orders").exists()
    await table.aclose()


async def test_a_registered_drive_is_found_by_its_number(stores: Stores) -> None:
    await stores.mark("cold", 2, COLD_ID)
    await put_registry(stores.default, 1, COLD)
    table = await open_table(stores.default, [configured("cold", 2, "cold")], stores.open)

    assert table.numbers == (0, 2)
    await put(table.of(2), "orders/1", b"one")
    assert (stores.folder / "cold/orders/1").read_bytes() == b"one"
    with pytest.raises(ObjectMissing):
        await table.of(2).get("orders/2")
    assert await table.away() == {}
    await table.aclose()
    assert [each.is_closed for each in stores.opened] == [True]


async def test_an_entry_of_an_unknown_drive_is_unavailable_and_not_missing(stores: Stores) -> None:
    table = await open_table(stores.default, [], stores.open)

    with pytest.raises(DriveUnavailable, match="start the process anew: drive=7") as raised:
        table.of(7)
    assert raised.value.code is Code.OBJECT_STORE_UNAVAILABLE


async def test_a_drive_whose_mount_is_gone_is_away_and_the_others_go_on(stores: Stores) -> None:
    await stores.mark("shelf", 1, SHELF_ID)
    await put_registry(stores.default, 1, SHELF, COLD)
    settings = [configured("shelf", 1, "shelf"), configured("cold", 2, "cold")]
    table = await open_table(stores.default, settings, stores.open)

    assert list(await table.away()) == [2]
    await put(table.of(1), "orders/1", b"one")
    with pytest.raises(DriveUnavailable):
        await put(table.of(2), "orders/1", b"one")
    await stores.mark("cold", 2, COLD_ID)
    assert await table.away() == {}
    await put(table.of(2), "orders/1", b"one")
    await table.aclose()


@pytest.mark.parametrize("marker", [(1, COLD_ID), (2, SHELF_ID)])
async def test_a_url_that_leads_to_another_drive_refuses_the_start(
    stores: Stores, marker: tuple[int, Uid]
) -> None:
    await stores.mark("cold", *marker)
    await put_registry(stores.default, 1, COLD)

    with pytest.raises(WrongDrives, match="drive cold in BOTTOMLESS_DRIVES leads to another drive"):
        await open_table(stores.default, [configured("cold", 2, "cold")], stores.open)
    assert [each.is_closed for each in stores.opened] == [True]


async def test_a_store_with_a_marker_is_not_taken_for_drive_0(stores: Stores) -> None:
    await put(stores.default, DRIVE_MARKER_KEY, encode_marker(DriveMarker(2, COLD_ID)))
    with pytest.raises(WrongDrives, match="BOTTOMLESS_STORE_URL leads to a store that is"):
        await open_table(stores.default, [configured("cold", 2, "cold")], stores.open)


async def test_a_root_in_another_refuses_the_start_and_all_are_closed(stores: Stores) -> None:
    await put_registry(stores.default, 1, SHELF, COLD)
    settings = [configured("shelf", 1, "mnt"), configured("cold", 2, "mnt/cold")]

    with pytest.raises(WrongDrives, match="the root of drive cold lies in that of drive shelf"):
        await open_table(stores.default, settings, stores.open)
    assert [each.is_closed for each in stores.opened] == [True, True]


async def test_the_highest_version_of_the_registry_counts() -> None:
    drive = MemoryDrive()
    assert await load_registry(drive) == DriveRegistry(0, ())
    await put_registry(drive, 9, COLD)
    await put_registry(drive, 10, SHELF, COLD)
    await put(drive, "_system/drives.note", b"of nobody")
    assert await load_registry(drive) == DriveRegistry(10, (SHELF, COLD))


async def test_a_damaged_registry_and_one_under_another_key_are_refused() -> None:
    drive = MemoryDrive()
    await put(drive, drives_key(1), encode_drives(DriveRegistry(2, (COLD,))))
    with pytest.raises(Corrupt, match="another version than its key"):
        await load_registry(drive)
    await put(drive, drives_key(3), encode_drives(DriveRegistry(3, (COLD,)))[:-1])
    with pytest.raises(Corrupt):
        await load_registry(drive)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ([configured("cold", 3)], "drive 3 is cold, and the registry that drive 2 is cold"),
        ([configured("frost", 2)], "drive 2 is frost, and the registry that drive 2 is cold"),
        ([], "drive cold may hold fragments and is not in BOTTOMLESS_DRIVES"),
        ([configured("shelf", 4), configured("cold", 2)], "the registry that drive 1 is shelf"),
    ],
)
def test_settings_that_say_otherwise_refuse_the_start(
    settings: list[ConfiguredDrive], why: str
) -> None:
    registry = DriveRegistry(2, (SHELF._replace(retired=True), COLD))
    with pytest.raises(WrongDrives, match=why):
        drives_to_use(settings, registry)


def test_a_retired_drive_is_not_used_whether_the_settings_name_it_or_not() -> None:
    registry = DriveRegistry(2, (SHELF._replace(retired=True), COLD))
    cold, shelf = configured("cold", 2), configured("shelf", 1)
    for settings in ([cold], [shelf, cold], [cold, configured("new", 3)]):
        assert drives_to_use(settings, registry) == [(cold, DriveMarker(2, COLD_ID))]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Location("file", "/mnt/a"), Location("file", "/mnt/a")),
        (Location("file", "/mnt/a"), Location("file", "/mnt/a/b")),
        (Location("file", "/"), Location("file", "/mnt")),
        (Location("s3", "bucket"), Location("s3", "bucket/cold")),
        (Location("s3", "bucket/", "http://here"), Location("s3", "bucket", "http://here", "eu")),
    ],
)
def test_roots_in_each_other_are_refused_in_any_order(one: Location, other: Location) -> None:
    for named in ({"cold": one, "shelf": other}, {"shelf": other, "cold": one}):
        with pytest.raises(WrongDrives, match="lies in that of"):
            require_apart(named)


def test_roots_beside_each_other_are_fine() -> None:
    require_apart(
        {
            "default": Location("file", "/mnt/a"),
            "cold": Location("file", "/mnt/ab"),
            "shelf": Location("s3", "mnt/a"),
            "far": Location("s3", "mnt/a", "http://there"),
            "near": Location("s3", "mnt/a2", "http://there"),
        }
    )


def test_the_setting_is_read_by_rising_number() -> None:
    said = {
        "cold": {"number": 2, "url": "s3://bucket/cold?storage_class=STANDARD_IA"},
        "shelf": {"number": 1, "url": "file:///mnt/shelf"},
    }
    assert parse_drives(None) == parse_drives("{}") == ()
    assert parse_drives(orjson.dumps(said).decode()) == (
        ConfiguredDrive("shelf", 1, "file:///mnt/shelf"),
        ConfiguredDrive("cold", 2, "s3://bucket/cold?storage_class=STANDARD_IA"),
    )


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("secret", "is not JSON"),
        ("[]", "must be an object"),
        ('{"default": {"number": 1, "url": "file:///secret"}}', "drive 0"),
        ('{"Cold": {"number": 1, "url": "file:///secret"}}', "the name of a drive"),
        ('{"cold": "secret"}', "must have a number and a url"),
        ('{"cold": {"number": 1}}', "must have a number and a url"),
        ('{"cold": {"number": 1, "url": "secret", "more": 1}}', "must have a number and a url"),
        ('{"cold": {"number": 0, "url": "secret"}}', "from 1 to 254"),
        ('{"cold": {"number": 255, "url": "secret"}}', "from 1 to 254"),
        ('{"cold": {"number": true, "url": "secret"}}', "from 1 to 254"),
        ('{"cold": {"number": 1, "url": ""}}', "must be a text"),
        ('{"cold": {"number": 1, "url": "s3://[secret"}}', "cannot be read"),
        ('{"cold": {"number": 1, "url": "s3://b/secret?storage_class=glacier"}}', "restored"),
        ('{"cold": {"number": 1, "url": "s3://b?storage_class=DEEP_ARCHIVE"}}', "restored"),
        (
            '{"a": {"number": 1, "url": "secret"}, "b": {"number": 1, "url": "other"}}',
            "one number to two drives",
        ),
    ],
)
def test_a_setting_that_is_wrong_is_refused_and_not_repeated(setting: str, why: str) -> None:
    with pytest.raises(WrongDrives, match=why) as raised:
        parse_drives(setting)
    assert "secret" not in str(raised.value)
