"""Find the objects that one member of the delete queue stands for, one level of a subtree at a time.

A group that is gone was expanded before, since it is the last of its subtree to go; so a
missing one is no error here. Groups below are not descended into but queued: a subtree may
have millions of fragments, and a step of the deleter stays as small as one node.
"""

from typing import NamedTuple

import numpy as np

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.formats.keys import FragmentPlace, fragment_place, group_key
from bottomless.formats.manifest import decode_node
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.manifest import EntryKind, Node, fragment_info
from bottomless.model.names import uid_from_bytes
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget, OffsetRange


class Expansion(NamedTuple):
    queued: tuple[DeleteTarget, ...] = ()
    """Groups below: durable in the queue before anything is deleted."""
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    """After all of `first` and `elsewhere` are gone."""
    elsewhere: tuple[FragmentPlace, ...] = ()
    """Fragments on other drives than the first, which has all others of these."""

    @property
    def before_last(self) -> tuple[str, ...]:
        """The keys of all that has to be gone before `last`, on whatever drive."""
        return (*self.first, *(place.object_key for place in self.elsewhere))


async def expand(drive: Drive, target: DeleteTarget) -> Expansion:
    """The objects to delete for one member.

    Raises:
        Corrupt: a group is damaged; its children stay until somebody looks.
        DriveUnavailable, DriveRefused
    """
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
    touched = (entries["next_offset"] > np.uint64(range_.first_offset)) & (
        entries["first_offset"] < np.uint64(range_.next_offset)
    )
    queued: list[DeleteTarget] = []
    places: list[FragmentPlace] = []
    for entry in entries[touched]:
        first, end = int(entry["first_offset"]), int(entry["next_offset"])
        uid, height = uid_from_bytes(entry["uid"].tobytes()), int(entry["height"])
        if entry["kind"] == EntryKind.GROUP:
            object_key = group_key(node.stream_id, first, uid, height, tenant)
            part = OffsetRange(max(first, range_.first_offset), min(end, range_.next_offset))
            queued.append(DeleteTarget(object_key, node.stream_id, uid, first, height, range=part))
        elif entry["kind"] == EntryKind.FRAGMENT and end <= range_.next_offset:
            places.append(fragment_place(node.stream_id, fragment_info(entry), tenant))
    whole = node.next_offset <= range_.next_offset
    return Expansion(
        tuple(queued),
        tuple(place.object_key for place in places if place.drive == DEFAULT_NUMBER),
        (target.object_key,) if whole else (),
        tuple(place for place in places if place.drive != DEFAULT_NUMBER),
    )
