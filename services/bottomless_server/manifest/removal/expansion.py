"""Find the objects that one member of the delete queue stands for, one level of a subtree at a time.

A group that is gone was expanded as a whole before, whichever of its parts came last, since it is the last
of its subtree to go; so a missing one is no error here. Groups below are not descended into but queued: a subtree may
have millions of fragments, and a step of the deleter stays as small as one node. Fragments on other
drives than the first go into the queue of their drive: one that is away holds up nothing else.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.formats.keys import fragment_place, group_key
from bottomless.formats.manifest import decode_node
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.manifest import EntryKind, Node, fragment_info
from bottomless.model.names import uid_from_bytes
from bottomless_server.manifest.tree.core.delete_queue import (
    DeleteTarget,
    OffsetRange,
    parse_delete_target,
)


class Expansion(NamedTuple):
    queued: tuple[DeleteTarget, ...] = ()
    """Groups and fragments of other drives below: durable in their queues before anything is
    deleted."""
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    """After all of `first` are gone."""


async def expand(drive: Drive, target: DeleteTarget) -> Expansion:
    """The objects to delete for one member; `drive` is that on which it lies.

    Raises:
        Corrupt: a group is damaged; its children stay until somebody looks.
        DriveUnavailable, DriveRefused
    """
    if target.is_of_copies and target.range is not None:
        return Expansion(await _copies(drive, target, target.range))
    if target.range is None or target.height == 0:
        return Expansion(last=(target.object_key,))
    try:
        node = decode_node(await drive.get(target.object_key))
    except ObjectMissing:
        return Expansion()
    return _below(node, target, target.range)


def _below(node: Node, target: DeleteTarget, range_: OffsetRange) -> Expansion:
    tenant = target.object_key.partition("/")[0]
    entries = node.entries
    range_ = with_front(node, range_)
    touched = (entries["next_offset"] > np.uint64(range_.first_offset)) & (
        entries["first_offset"] < np.uint64(range_.next_offset)
    )
    queued: list[DeleteTarget] = []
    here: list[str] = []
    for entry in entries[touched]:
        first, end = int(entry["first_offset"]), int(entry["next_offset"])
        uid, height = uid_from_bytes(entry["uid"].tobytes()), int(entry["height"])
        part = OffsetRange(max(first, range_.first_offset), min(end, range_.next_offset))
        if entry["kind"] == EntryKind.GROUP:
            object_key = group_key(node.stream_id, first, uid, height, tenant)
            queued.append(DeleteTarget(object_key, node.stream_id, uid, first, height, range=part))
        elif entry["kind"] == EntryKind.FRAGMENT and end <= range_.next_offset:
            info = fragment_info(entry)
            number, object_key = fragment_place(node.stream_id, info, tenant)
            if number == DEFAULT_NUMBER:
                here.append(object_key)
                continue
            below = DeleteTarget(object_key, node.stream_id, uid, first, range=part)
            queued.append(replace(below, copy=info.copy, drive=number))
    whole = node.next_offset <= range_.next_offset
    return Expansion(tuple(queued), tuple(here), (target.object_key,) if whole else ())


@guard("the front of a group with its end")
def with_front(node: Node, range_: OffsetRange) -> OffsetRange:
    """The offsets of a part of a group; of its last part all of them, since the group goes with it and nothing
    else tells what is below. Parts are due in the order in which they were cut, but for one that the store did
    not let go, or whose time a clock said that was ahead."""
    if node.next_offset > range_.next_offset:
        return range_
    return range_._replace(first_offset=min(node.first_offset, range_.first_offset))


async def _copies(
    drive: Drive, target: DeleteTarget, range_: OffsetRange
) -> tuple[DeleteTarget, ...]:
    """All that is there of the copies of a move, each of them by itself: some may be live.

    Between the offsets of a move there are few fragments, so that the listing is short.
    """
    folder = target.object_key.rpartition("/")[0] + "/"
    found: list[DeleteTarget] = []
    async for facts in drive.list(folder, f"{folder}{range_.first_offset:020d}"):
        one = parse_delete_target(facts.object_key.encode("ascii", "replace"), target.drive)
        if one is None or one.first_offset is None:
            continue
        if one.first_offset >= range_.next_offset:
            break
        if one.copy == target.copy:
            found.append(one)
    return tuple(found)
