"""What a drive in memory has beside its protocol: a look, a bit that rots, a backup."""

import pytest

from bottomless.formats.checks import crc32c
from bottomless_server.drives.memory import MemoryDrive


@pytest.fixture
async def drive() -> MemoryDrive:
    ticks = iter(range(1, 100))
    made = MemoryDrive(lambda: next(ticks))
    await made.put("b", [b"right"], crc32c(b"right"))
    await made.put("a", [b"old"], crc32c(b"old"))
    return made


async def test_damage_leaves_an_object_as_old_as_it_was(drive: MemoryDrive) -> None:
    before = await drive.head("b", checksum=True)
    drive.flip("b", -1)
    damaged = await drive.head("b", checksum=True)

    assert await drive.get("b") == drive.peek("b") == b"righu"
    assert damaged._replace(crc=before.crc) == before != damaged


async def test_what_is_put_back_is_all_that_is_there(drive: MemoryDrive) -> None:
    copy = drive.copy()
    await drive.put("c", [b"new"], crc32c(b"new"))
    drive.damage("a", b"other")
    await drive.delete(["b"])
    assert [*drive.object_keys] == ["a", "c"]
    drive.put_back(copy)

    assert [facts.object_key async for facts in drive.list()] == ["a", "b"]
    assert (drive.peek("a"), drive.peek("c"), drive.has("c")) == (b"old", None, False)
    assert drive.copy() == copy
