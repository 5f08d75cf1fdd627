"""A stream of which some fragments have moved to another drive, as readers see it."""

from collections.abc import AsyncIterator

import pytest
from support.drives import a_table, register
from unit.reader.harness import ReaderHarness, WatchedDrive, shown
from unit.reader.protocol import STREAM_ID

from bottomless.drives.base import Drive
from bottomless.errors import Code
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import DRIVE_MARKER_KEY, drives_key, encode_drives
from bottomless.formats.keys import fragment_place
from bottomless.model.drive import DriveRegistry, RegisteredDrive
from bottomless.model.manifest import EntryKind, fragment_info
from bottomless.model.names import TENANT_DEFAULT, Uid
from bottomless_server.drives.table import DriveTable
from bottomless_server.tree.rebalance import SealedNode
from bottomless_server.tree.relocate import Relocation, relocate
from bottomless_server.tree.retention import Below, Cut, cut_front, find_cut

COLD, COPY = 7, 0xFEED


class Moved:
    """Four fragments of ten records; those from 10 to 30 are on another drive, and nowhere else."""

    def __init__(self, harness: ReaderHarness, cold: Drive, unmarked: Drive) -> None:
        self.harness = harness
        self.cold = cold
        self.unmarked = unmarked

    async def prepare(self) -> None:
        harness = self.harness
        harness.fill(40)
        for _ in range(4):
            await harness.upload(1, free=True)
        before = harness.node
        descent = relocate(before, Relocation(10, 30, 0, COLD, COPY), harness.new_uid, no_group)
        with pytest.raises(StopIteration) as ended:
            next(descent)
        await harness.publish(ended.value.value.root)
        for old, new in zip(before.entries, harness.node.entries, strict=True):
            assert old["kind"] == EntryKind.FRAGMENT
            source = fragment_place(STREAM_ID, fragment_info(old), TENANT_DEFAULT)
            target = fragment_place(STREAM_ID, fragment_info(new), TENANT_DEFAULT)
            if source != target:
                data = bytes(await harness.drive.get(source.object_key))
                await self.cold.put(target.object_key, [data], crc32c(data))
                await harness.drive.delete([source.object_key])


class OnTwoDrives(ReaderHarness):
    """A reader that knows another drive beside the first."""

    def __init__(self, drive: WatchedDrive, table: DriveTable) -> None:
        self._table = table
        super().__init__(drive=drive, reader_store_retry_seconds=0)

    def given_table(self) -> DriveTable:
        return self._table


def no_group(_: object) -> SealedNode:
    raise AssertionError("a root of four fragments has no group")


@pytest.fixture
async def moved() -> AsyncIterator[Moved]:
    drive = WatchedDrive()
    table = await a_table(drive, COLD)
    await register(drive, COLD)
    harness = OnTwoDrives(drive, table)
    one = Moved(harness, table.of(COLD), table.marked(COLD).unmarked)
    await one.prepare()
    yield one
    await harness.aclose()


async def test_records_are_read_from_the_drives_they_lie_on(moved: Moved) -> None:
    harness = moved.harness
    assert shown(await harness.read(0, limit=40)) == harness.texts(0, 40)
    assert shown(await harness.read(15, limit=3)) == harness.texts(15, 18)


async def test_the_list_says_of_each_fragment_where_it_lies(moved: Moved) -> None:
    answer = await moved.harness.get("/fragments?locations=true")
    items = answer.json()["fragments"]
    ends = [item["object_key"].rpartition("/")[2].split(".", 2)[2] for item in items]
    copy = "000000000000feed.fragment"
    assert ends == ["fragment", copy, copy, "fragment"]
    for item in items:
        assert item["store"]["kind"] == "memory"


async def test_a_fragment_that_moved_is_downloaded_under_the_id_that_it_had(moved: Moved) -> None:
    info = moved.harness.fragments[1]
    answer = await moved.harness.get(f"/fragments/{info.fragment_id}")
    assert answer.status_code == 200
    assert crc32c(answer.content) == info.crc
    assert answer.headers["ETag"] == f'"{info.uid}"'


async def test_what_is_on_a_drive_that_is_away_is_unavailable_and_not_missing(
    moved: Moved,
) -> None:
    harness = moved.harness
    # As of a mount that is gone: what is left of it shows nothing of what was there.
    left = [facts.object_key async for facts in moved.cold.list()]
    await moved.cold.delete([key for key in left if key != DRIVE_MARKER_KEY])
    await moved.cold.delete([DRIVE_MARKER_KEY])

    answer = await harness.get("/records?offset=10&limit=5")

    assert answer.status_code == 503, answer.text
    assert answer.json()["code"] == Code.OBJECT_STORE_UNAVAILABLE.value
    assert shown(await harness.read(0, limit=10)) == harness.texts(0, 10)


async def test_a_fragment_that_moved_is_downloaded_after_the_manifest_has_left_it(
    moved: Moved,
) -> None:
    harness = moved.harness
    harness.node = cut_front(harness.node, find_all_below(harness, 20)).root
    await harness.publish(harness.node)
    info = harness.fragments[1]

    answer = await harness.get(f"/fragments/{info.fragment_id}")
    assert answer.status_code == 200, answer.text
    assert crc32c(answer.content) == info.crc

    cold = moved.unmarked
    assert await cold.delete([facts.object_key async for facts in cold.list()]) == {}
    answer = await harness.get(f"/fragments/{info.fragment_id}")
    assert answer.status_code == 503, answer.text


async def test_a_fragment_that_is_nowhere_is_not_found_once_all_drives_have_said_so(
    moved: Moved,
) -> None:
    harness = moved.harness
    harness.node = cut_front(harness.node, find_all_below(harness, 20)).root
    await harness.publish(harness.node)
    info = harness.fragments[1]
    await moved.cold.delete(
        [fragment_place(STREAM_ID, info._replace(drive=COLD, copy=COPY), TENANT_DEFAULT).object_key]
    )
    answer = await harness.get(f"/fragments/{info.fragment_id}")
    assert answer.status_code == 404, answer.text


async def test_a_fragment_that_was_on_a_lost_drive_is_not_found_though_the_drive_is_away(
    moved: Moved,
) -> None:
    harness = moved.harness
    harness.node = cut_front(harness.node, find_all_below(harness, 20)).root
    await harness.publish(harness.node)
    await moved.unmarked.delete([DRIVE_MARKER_KEY])
    path = f"/fragments/{harness.fragments[1].fragment_id}"
    assert (await harness.get(path)).status_code == 503

    await enter(harness.drive, RegisteredDrive(f"d{COLD}", COLD, Uid("07" * 16), False, lost=True))

    assert (await harness.get(path)).status_code == 404


async def test_a_fragment_that_may_be_on_a_drive_that_this_reader_does_not_know_is_unavailable(
    moved: Moved,
) -> None:
    harness = moved.harness
    harness.node = cut_front(harness.node, find_all_below(harness, 10)).root
    await harness.publish(harness.node)
    info = harness.fragments[0]
    key = fragment_place(STREAM_ID, info, TENANT_DEFAULT).object_key
    await harness.drive.delete([key])
    path = f"/fragments/{info.fragment_id}"
    assert (await harness.get(path)).status_code == 404

    await enter(harness.drive, RegisteredDrive("later", COLD + 1, Uid("08" * 16), False))

    assert (await harness.get(path)).status_code == 503


async def enter(default: Drive, drive: RegisteredDrive) -> None:
    """Put the next version of the registry, which has this drive anew."""
    data = encode_drives(DriveRegistry(2, (drive,)))
    await default.put(drives_key(2), [data], crc32c(data))


def find_all_below(harness: ReaderHarness, offset: int) -> Cut:
    """The cut that a trim below an offset makes of a root without groups."""
    with pytest.raises(StopIteration) as ended:
        next(find_cut(harness.node, Below(offset)))
    cut: Cut = ended.value.value
    return cut
