"""What members of the delete queue stand for: more than the objects that they name.

A group that retention removed is queued by its own name and means all that lies below it; those
below come into the queue only when its time has come. One of them may have left the queue before:
a trim that ended within it queued its front, alone, when the root still named it directly. It was
put into a larger group after that, a second trim queued the larger one, and so its rest waits under
another name.
"""

from collections.abc import Iterable

from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.manifest.removal.expansion import expand
from bottomless_server.manifest.tree.core.delete_queue import parse_delete_target


async def objects_waiting(drive: MemoryDrive, members: Iterable[bytes]) -> set[str]:
    """Return the keys of all objects that go, whole or in part, with one of the members.

    Of a group these are the ones below it that lie in the offsets of which the member speaks: what
    an earlier member spoke of has to be gone by now, unless that waits for longer than the last part of the
    group, with which all below it goes. Nothing of it may be due yet, so that it does not change meanwhile.
    """
    found: set[str] = set()
    left = [target for member in members if (target := parse_delete_target(member)) is not None]
    while left:
        target = left.pop()
        found.add(target.object_key)
        below = await expand(drive, target)
        found.update(below.first)
        left += below.queued
    return found


def objects_named(members: Iterable[bytes]) -> set[str]:
    """Return the keys of the objects that members name themselves."""
    return {member.partition(b"?")[0].decode() for member in members}
