"""Remove the roots that a rebuild could believe and that lead to an object which is about to go.

An attempt to publish that lost leaves a root which no record names, and the groups that were put
for it. It may be newer than the root that is published, or as new, and a rebuild, which has nothing
but the bucket, takes the newest one whose objects are there. What it names is there until it is
deleted, so a delete that is under way while coordination is lost would take away what the rebuild
believes; and with a group the way to all published fragments below it.

Therefore such a root goes first. Nobody reads it, and it can never be published, since what it
leads to is nothing that a root may add any more:

- a fragment that was given up: the EXEC wants every uid that the root adds among the live intents,
  and a uid that has left them never comes back;
- a group that no manifest names: it came into the queue with the EXEC of a later attempt, or after
  garbage collection had raised the version of the record, so the version for which the root was
  planned is gone; and each plan has groups of its own;
- what a move displaced: the root was planned before the EXEC of the relocation; or, where the drive of a
  copy was lost, to name its source again, and then it is published, or may be. So fragments of a move are
  claimed first, and the record and the registry of drives are asked once more (`claims.py`): after that no
  root that names one of them is published, or comes to be;
- offsets that retention or trim removed: the root was planned before the EXEC that removed them, or
  it would begin after them, so its version is gone too.

Afterwards coordination has to show the generation of the stream's record still. If it does, any
rebuild that follows lists the roots after this one is gone; if it does not, the object stays, and
garbage collection finds it. After a crash at any step the object is due again.
"""

from collections.abc import Collection

import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt, StoreError
from bottomless.formats.keys import parse_root_key, root_prefix
from bottomless.formats.manifest import decode_node
from bottomless.guards import guard
from bottomless.model.manifest import Node
from bottomless.model.stream import StreamRecord
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.lookup import Sought, entries_of
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget, is_at
from bottomless_server.stores.generation import held_generation

log = structlog.get_logger(__name__)


@guard("roots of lost attempts before what they name")
async def remove_stray_roots(
    context: Context, record: StreamRecord, going: Collection[DeleteTarget]
) -> None:
    """Delete every root, not older than the published one, that leads to one of `going`.

    These are fragments and groups that neither `record` nor its root leads to.

    Raises:
        Unavailable: a root may still be there, or coordination does not show the generation of
            `record` any more (`coordination-regressed`): none of `going` may be deleted now.
        DriveRefused, Corrupt: it cannot be told whether a root leads to one of them.
    """
    roots = [
        object_key
        for object_key in await _newer_roots(context, record)
        if await _leads_to_any(context, record, object_key, going)
    ]
    if not roots:
        return
    log.info("roots of lost attempts are deleted", stream_id=record.stream_id, count=len(roots))
    failed = await context.drive.delete(roots)
    if failed:
        raise next(iter(failed.values()))
    # Not by what this process believes: a rebuild may have ended in it meanwhile.
    if await held_generation(context.coordination) != record.generation:
        raise coordination_lost("the coordination store was lost while a root was deleted")


async def _newer_roots(context: Context, record: StreamRecord) -> list[str]:
    """Roots of the record's generation, other than its own, that a rebuild may rank above it."""
    published = record.root
    found: list[str] = []
    async for facts in context.drive.list(root_prefix(record.stream_id, record.tenant)):
        key = parse_root_key(facts.object_key)
        if key is None or key.generation != record.generation:
            continue
        if published is None or (key.uid != published.uid and key.version >= published.version):
            found.append(facts.object_key)
    return found


async def _leads_to_any(
    context: Context, record: StreamRecord, object_key: str, going: Collection[DeleteTarget]
) -> bool:
    root = await _read(context, object_key)
    if root is None:
        return False
    sought: dict[DeleteTarget, Sought] = {}
    for one in going:
        assert one.first_offset is not None
        assert one.uid is not None
        first, end = one.range or (one.first_offset, root.next_offset)
        offset = max(first, root.first_offset)
        # Of a group that is cut in part, a root may name the part that stays.
        if offset < end:
            sought[one] = Sought(offset, one.uid, one.height)
    found = await entries_of(context.drive, record.tenant, root, sought)
    named = {one: entry for one, entry in found.items() if not isinstance(entry, StoreError)}
    # Of a fragment that was moved, a root that is about to be published names the other one.
    if any(entry is not None and is_at(entry, one) for one, entry in named.items()):
        return True
    for entry in found.values():
        if isinstance(entry, StoreError):
            raise entry
    return False


async def _read(context: Context, object_key: str) -> Node | None:
    """The root under a key; None where a rebuild would not believe it either."""
    for _ in range(2):
        # Once more where it does not verify: it may have been damaged on the way only.
        try:
            return decode_node(await context.drive.get(object_key))
        except ObjectMissing:
            return None
        except Corrupt:
            continue
    return None
