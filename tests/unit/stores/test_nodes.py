"""Nodes come back as they were stored, or not at all."""

import dataclasses

import numpy as np
import pytest

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c
from bottomless.formats.manifest import encode_node
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import Node, fragment_entry
from bottomless.model.names import StreamId, Uid
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.stores.nodes import load_node

STREAM_ID = StreamId("01890a5d-ac96-774b-bcce-b302099a8057")


def a_root() -> Node:
    info = FragmentInfo(
        uid=Uid("1" * 32),
        first_offset=0,
        next_offset=10,
        first_timestamp=5,
        last_timestamp=6,
        epoch=1,
        record_count=10,
        size=1000,
        index_size=100,
        crc=7,
    )
    return Node(
        stream_id=STREAM_ID,
        uid=Uid("2" * 32),
        height=0,
        first_offset=0,
        next_offset=10,
        epoch=1,
        version=3,
        generation=0,
        last_timestamp=6,
        entries=fragment_entry(info),
    )


class DamagingDrive(MemoryDrive):
    """Damages the next `count` reads on their way."""

    count = 0
    reads = 0

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        data = await super().get(object_key, start, size)
        self.reads += 1
        self.count -= 1
        return data[:-1] + b"?" if self.count >= 0 else data


def header(node: Node) -> dict[str, object]:
    """All of a node but its entries and filters, which do not compare as one value."""
    arrays = ("entries", "filters")
    names = [field.name for field in dataclasses.fields(node) if field.name not in arrays]
    return {name: getattr(node, name) for name in names}


async def store(drive: MemoryDrive, node: Node) -> tuple[int, int]:
    """Put a node under "key"; its size and checksum, as an entry or a record would name them."""
    data = encode_node(node)
    crc = crc32c(data)
    await drive.put("key", [data], crc)
    return len(data), crc


async def test_a_node_comes_back_as_it_was_stored() -> None:
    drive, root = MemoryDrive(), a_root()
    stored = await store(drive, root)
    loaded = await load_node(drive, "key", *stored)

    assert np.array_equal(loaded.entries, root.entries)
    assert np.array_equal(loaded.filters, root.filters)
    assert header(loaded) == header(root)


async def test_bytes_damaged_on_their_way_are_fetched_once_more() -> None:
    drive = DamagingDrive()
    stored = await store(drive, a_root())
    drive.count = 1

    assert (await load_node(drive, "key", *stored)).next_offset == 10
    assert drive.reads == 2


async def test_bytes_that_stay_damaged_are_never_a_node() -> None:
    drive = DamagingDrive()
    stored = await store(drive, a_root())
    drive.count = 99

    with pytest.raises(Corrupt):
        await load_node(drive, "key", *stored)
    assert drive.reads == 2


@pytest.mark.parametrize(("longer", "other_crc"), [(-1, 0), (1, 0), (0, 1)])
async def test_another_size_or_checksum_than_was_noted_is_damage(
    longer: int, other_crc: int
) -> None:
    drive = MemoryDrive()
    size, crc = await store(drive, a_root())

    with pytest.raises(Corrupt):
        await load_node(drive, "key", size + longer, crc ^ other_crc)


async def test_a_missing_node_is_missing() -> None:
    with pytest.raises(ObjectMissing):
        await load_node(MemoryDrive(), "key", 128, 0)
