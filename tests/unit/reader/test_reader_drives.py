"""Objects on several drives, read through one cache."""

import asyncio

import pytest
from support.drives import a_table
from unit.formats.examples import STREAM_ID, a_fragment

from bottomless.drives.base import DriveUnavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import fragment_key, fragment_place
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.reader.blocks import Blocks, NextObject, ReadsOn
from bottomless_server.reader.cache import SharedCache

COLD = 7
BLOCK = 1_000
RUN = 4 * BLOCK
HERE, THERE = bytes(5 * RUN), b"\x01" * (5 * RUN)


async def a_reader() -> Blocks:
    drive = MemoryDrive()
    await drive.put("a", [HERE], crc32c(HERE))
    table = await a_table(drive, COLD)
    await table.of(COLD).put("b", [THERE], crc32c(THERE))
    cache = SharedCache(40 * RUN)
    return Blocks(drive, cache, BLOCK, 16, ahead_size_max=RUN, drives=table)


async def test_an_object_is_read_from_the_drive_that_is_named() -> None:
    blocks = await a_reader()
    for size in (10, RUN + 10):
        assert await blocks.read("a", 0, size, len(HERE)) == HERE[:size]
        assert await blocks.read("b", 0, size, len(THERE), drive=COLD) == THERE[:size]
    assert await blocks.read("b", 5, 10, drive=COLD) == THERE[:10]
    assert await blocks.read_once("b", 7, 9, 10, reads_on=False, drive=COLD) == THERE[:9]
    assert await blocks.fetch("b", 0, 3, COLD) == THERE[:3]


async def test_who_reads_on_is_led_from_one_drive_to_another() -> None:
    blocks = await a_reader()
    on = ReadsOn(len(HERE), NextObject("b", len(THERE), COLD))
    for start in range(0, len(HERE), 2 * BLOCK):
        await blocks.read("a", start, 2 * BLOCK, len(HERE), reads_on=on)
        for _ in range(10):
            await asyncio.sleep(0)
    before = blocks.fetch_count
    assert await blocks.read("b", 0, BLOCK, len(THERE), drive=COLD) == THERE[:BLOCK]
    assert blocks.fetch_count == before, "its first run was here already"


async def test_a_drive_that_is_not_known_is_away_and_holds_nothing_missing() -> None:
    blocks = await a_reader()
    with pytest.raises(DriveUnavailable):
        await blocks.fetch("a", 0, 10, 3)


def test_the_place_of_a_fragment_is_what_its_entry_says() -> None:
    info = a_fragment().info
    first = fragment_key(STREAM_ID, info.first_offset, info.uid, "t")
    assert fragment_place(STREAM_ID, info, "t") == (0, first)
    moved = fragment_place(STREAM_ID, info._replace(drive=COLD, copy=0xFEED), "t")
    assert moved == (COLD, first.replace(".fragment", ".000000000000feed.fragment"))
