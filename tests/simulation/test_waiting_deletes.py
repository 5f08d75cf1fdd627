"""What the check at the end of a run takes for waiting, and what it does not."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from support.manifest import STREAM, a_fragment
from support.object_keys import fragment_key, group_key

from bottomless.formats.checks import crc32c
from bottomless.formats.manifest import encode_node
from bottomless.model.manifest import Entries, Node, fragment_entry, no_entries
from bottomless.model.names import Uid
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.tree.rebalance import group_entry
from simulation.waiting_deletes import objects_named, objects_waiting

UIDS = (Uid(f"{number:032x}") for number in itertools.count(1))


class Put(NamedTuple):
    object_key: str
    entry: Entries


def a_piece(first: int, end: int) -> Put:
    uid = next(UIDS)
    return Put(fragment_key(STREAM, first, uid), fragment_entry(a_fragment(first, end, uid=uid)))


async def put_group(drive: MemoryDrive, height: int, *below: Put) -> Put:
    run = np.concatenate([no_entries(), *(put.entry for put in below)])
    first, end = int(run["first_offset"][0]), int(run["next_offset"][-1])
    node = Node(STREAM, next(UIDS), height, first, end, 0, 0, 0, 0, run)
    data = encode_node(node)
    object_key = group_key(STREAM, first, node.uid, height)
    await drive.put(object_key, (data,), crc32c(data))
    return Put(object_key, group_entry(node, len(data), crc32c(data)))


def part(put: Put, first: int, end: int) -> bytes:
    return f"{put.object_key}?from={first}&below={end}".encode()


async def test_a_group_waits_with_the_larger_one_that_it_came_to_lie_in() -> None:
    """Its front was trimmed and settled before it did: seed 15, where nothing else named it."""
    drive = MemoryDrive()
    front, middle, last = a_piece(0, 10), a_piece(10, 20), a_piece(20, 30)
    small, other = await put_group(drive, 1, front, middle), await put_group(drive, 1, last)
    large = await put_group(drive, 2, small, other)

    waiting = await objects_waiting(drive, [part(large, 10, 30)])

    puts = (large, small, other, front, middle, last)
    assert waiting == {put.object_key for put in puts}, (
        "what is left of the front goes with the last part"
    )
    assert objects_named([part(small, 0, 10)]) <= waiting


async def test_what_lies_before_a_part_that_is_not_the_last_has_to_be_gone() -> None:
    drive = MemoryDrive()
    front, middle, last = a_piece(0, 10), a_piece(10, 20), a_piece(20, 30)
    group = await put_group(drive, 1, front, middle, last)

    waiting = await objects_waiting(drive, [part(group, 10, 20)])

    assert waiting == {group.object_key, middle.object_key}


async def test_what_lies_past_the_end_of_a_part_does_not_wait() -> None:
    """A deleter that settles a member and deletes nothing has to be seen beside what waits."""
    drive = MemoryDrive()
    small = await put_group(drive, 1, a_piece(0, 10), a_piece(10, 20))
    other = await put_group(drive, 1, a_piece(20, 30))
    large = await put_group(drive, 2, small, other)

    waiting = await objects_waiting(drive, [part(large, 0, 20)])

    assert small.object_key in waiting
    assert other.object_key not in waiting


@pytest.mark.parametrize("height", [0, 1])
async def test_an_object_that_is_gone_stands_for_itself(height: int) -> None:
    gone = a_piece(0, 10) if height == 0 else await put_group(MemoryDrive(), 1, a_piece(0, 10))

    assert await objects_waiting(MemoryDrive(), [part(gone, 0, 10)]) == {gone.object_key}
