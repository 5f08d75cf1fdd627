"""What the manifest does to fragments on several drives."""

from dataclasses import replace

from support.drives import a_table
from support.manifest import STREAM, ManifestHarness, a_fragment, from_the_first_start
from unit.tree.test_tree import an_empty_root

from bottomless.drives.base import ObjectMissing
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import FragmentPlace, fragment_place, group_key
from bottomless.formats.manifest import encode_node
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Due
from bottomless_server.drives.table import DriveTable
from bottomless_server.manifest.common.failing_deletes import queue_later
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget, OffsetRange
from bottomless_server.stores.streams import DELETES_KEY, deletes_key
from bottomless_server.tree.append import append_fragments

COLD, FORGOTTEN = 7, 9
TENANT = "default"


def moved(info: FragmentInfo, drive: int) -> FragmentInfo:
    return info._replace(drive=drive, copy=0xFEED)


class Doomed:
    """A group of a deleted stream that is due, with fragments on drive 0 and on another one."""

    def __init__(self, table: DriveTable, harness: ManifestHarness) -> None:
        self.table = table
        self.harness = harness
        self.places: list[FragmentPlace] = []
        self.group = ""

    async def prepare(self, *, elsewhere: int) -> None:
        run = [a_fragment(0, 5), moved(a_fragment(5, 9), elsewhere), a_fragment(9, 12)]
        node = append_fragments(an_empty_root(), run)
        node = replace(node, height=1, uid=Uid("c" * 32))
        self.group = group_key(STREAM, 0, node.uid, 1, TENANT)
        await self._put(0, self.group, encode_node(node))
        self.places = [fragment_place(STREAM, info, TENANT) for info in run]
        for place in self.places:
            await self._put(place.drive if place.drive != FORGOTTEN else 0, place.object_key, b"f")
        target = DeleteTarget(self.group, STREAM, node.uid, 0, 1, range=OffsetRange(0, 12))
        await queue_later(self.harness.coordination, [Due(DELETES_KEY, target.member, 0)])

    async def _put(self, drive: int, object_key: str, data: bytes) -> None:
        await self.table.of(drive).put(object_key, [data], crc32c(data))

    async def is_there(self, drive: int, object_key: str) -> bool:
        try:
            await self.table.of(drive).head(object_key)
        except ObjectMissing:
            return False
        return True


async def a_doomed_group(*, elsewhere: int) -> Doomed:
    harness = ManifestHarness()
    table = await a_table(harness.drive, COLD)
    harness.context = from_the_first_start(replace(harness.context, table=table))
    doomed = Doomed(table, harness)
    await doomed.prepare(elsewhere=elsewhere)
    return doomed


async def test_fragments_go_from_the_drives_they_lie_on_and_the_group_after_them() -> None:
    doomed = await a_doomed_group(elsewhere=COLD)
    assert await doomed.is_there(COLD, doomed.places[1].object_key)

    await Deleter(doomed.harness.context).make_pass()

    assert [place.drive for place in doomed.places] == [0, COLD, 0]
    assert not any([await doomed.is_there(*place) for place in doomed.places])
    assert not await doomed.is_there(0, doomed.group)
    assert await doomed.harness.coordination.member_count(DELETES_KEY) == 0


async def test_a_fragment_waits_for_its_drive_and_holds_up_no_group() -> None:
    doomed = await a_doomed_group(elsewhere=FORGOTTEN)

    await Deleter(doomed.harness.context).make_pass()

    assert await doomed.is_there(0, doomed.places[1].object_key), "nobody looked on drive 0 for it"
    assert not await doomed.is_there(*doomed.places[0])
    assert not await doomed.is_there(0, doomed.group)
    assert await doomed.harness.coordination.member_count(DELETES_KEY) == 0
    (due,) = await doomed.harness.coordination.due(deletes_key(FORGOTTEN), 2**52, 9)
    assert due.member.decode() == f"{doomed.places[1].object_key}?from=5&below=9"
