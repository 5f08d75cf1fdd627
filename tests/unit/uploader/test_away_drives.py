"""A drive that is away keeps its own fragments waiting, and no others."""

import pytest
from support.chunks import a_chunk
from support.drives import a_table
from support.uploader_harness import UploaderHarness
from support.uploading import STREAM_ID, FakeIngest
from support.waiting import eventually

from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import DRIVE_MARKER_KEY
from bottomless_server.drives.table import DriveTable
from bottomless_server.uploader import fragments

SHELF = 7
OTHER = STREAM_ID[:-1] + "2"


async def take_away(table: DriveTable) -> bytes:
    """Let the shelf be away, as a mount that is gone; what it takes to bring it back."""
    mount = table.marked(SHELF).unmarked
    marker = bytes(await mount.get(DRIVE_MARKER_KEY))
    assert await mount.delete([DRIVE_MARKER_KEY]) == {}
    return marker


async def bring_back(table: DriveTable, marker: bytes) -> None:
    await table.marked(SHELF).unmarked.put(DRIVE_MARKER_KEY, [marker], crc32c(marker))


async def test_a_first_tier_that_is_away_keeps_no_memory_from_streams_of_other_drives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fragments, "AWAY_SECONDS", 0.05)
    harness = UploaderHarness(FakeIngest(target_bytes=1))
    table = await a_table(harness.drive, SHELF)
    harness.table, harness.manifest.first_tier = table, SHELF
    other = harness.add_stream(OTHER)
    marker = await take_away(table)
    # Four of them are all the memory there is.
    for first in range(0, 80, 10):
        harness.ingest.append(a_chunk(first, value_size=30_000))
    async with harness.running():
        await eventually(lambda: harness.manifest.intents)
        for first in range(0, 40, 10):
            harness.ingest.append(a_chunk(first, value_size=30_000), stream_id=OTHER)
        await eventually(lambda: other.published_next == 40)
        assert harness.manifest.published_next == 0
        await bring_back(table, marker)
        await harness.published(80)
