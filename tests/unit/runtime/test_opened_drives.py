"""The setting BOTTOMLESS_DRIVES at the start of a process: what is opened, and what refuses the start."""

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from bottomless.drives.base import Drive
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import (
    DRIVE_MARKER_KEY,
    drives_key,
    encode_drives,
    encode_marker,
)
from bottomless.model.drive import DriveMarker, DriveRegistry, RegisteredDrive
from bottomless.model.names import Uid
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.local import LocalDrive
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.observe.measured_ports import MeasuredDrives
from bottomless_server.runtime.observe.metrics import Metrics
from bottomless_server.runtime.process.parts import opened_drives

COLD = RegisteredDrive("cold", 2, Uid("5a" * 16), retired=False)


class Unasked(MemoryDrive):
    """A drive 0 that must not be asked anything."""

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        raise AssertionError(prefix, after)
        yield


def settings(folder: Path, **urls: str) -> CommonSettings:
    drives = {
        name: {"number": number, "url": url or (folder / name).as_uri()}
        for number, (name, url) in enumerate(urls.items(), start=2)
    }
    return CommonSettings(drives=orjson.dumps(drives).decode() if urls else None)


async def put(drive: Drive, object_key: str, data: bytes) -> None:
    await drive.put(object_key, [data], crc32c(data))


async def a_registry(marker: DriveMarker, folder: Path) -> MemoryDrive:
    default = MemoryDrive()
    await put(default, drives_key(1), encode_drives(DriveRegistry(1, (COLD,))))
    drive = LocalDrive(folder / "cold")
    await put(drive, DRIVE_MARKER_KEY, encode_marker(marker))
    await drive.aclose()
    return default


def unmeasured(drive: Drive) -> Drive:
    return drive


async def test_without_the_setting_drive_0_is_alone_and_is_asked_nothing(tmp_path: Path) -> None:
    default = Unasked()
    async with opened_drives(default, settings(tmp_path), unmeasured) as table:
        assert table.numbers == (0,)
        assert table.of(0) is default


async def test_a_drive_of_the_setting_is_opened_and_its_calls_are_counted_with_the_others(
    tmp_path: Path,
) -> None:
    marker = DriveMarker(2, COLD.drive_id)
    default = await a_registry(marker, tmp_path)
    metrics = Metrics()
    measured = MeasuredDrives(metrics).measured
    counted = measured(default)

    async with opened_drives(counted, settings(tmp_path, cold=""), measured) as table:
        await put(table.of(2), "orders/1", b"one")
        await put(table.of(0), "orders/2", b"two2")

    assert (tmp_path / "cold/orders/1").read_bytes() == b"one"
    written = metrics.registry.get_sample_value("bottomless_object_store_written_bytes_total")
    assert written == 7


@pytest.mark.parametrize(
    ("urls", "marker", "why"),
    [
        ({"frost": ""}, COLD, "says that drive 2 is frost, and the registry that drive 2 is cold"),
        ({"cold": ""}, COLD._replace(drive_id=Uid("6b" * 16)), "leads to another drive"),
        ({"cold": "ftp://secret"}, COLD, "the url of drive cold in BOTTOMLESS_DRIVES must look"),
        ({"cold": "s3://b?secret=1"}, COLD, "the url of drive cold in BOTTOMLESS_DRIVES may say"),
        ({"cold": "", "": ""}, COLD, "the name of a drive"),
    ],
)
async def test_what_contradicts_refuses_the_start_and_says_what_to_do(
    tmp_path: Path, urls: dict[str, str], marker: RegisteredDrive, why: str
) -> None:
    default = await a_registry(DriveMarker(marker.number, marker.drive_id), tmp_path)
    with pytest.raises(CannotStart, match=why) as raised:
        async with opened_drives(default, settings(tmp_path, **urls), unmeasured):
            pass
    assert "secret" not in str(raised.value)


async def test_a_damaged_registry_refuses_the_start(tmp_path: Path) -> None:
    default = MemoryDrive()
    await put(default, drives_key(1), b"{}")
    with pytest.raises(CannotStart, match="the registry or a marker of drives cannot be read"):
        async with opened_drives(default, settings(tmp_path, cold=""), unmeasured):
            pass
