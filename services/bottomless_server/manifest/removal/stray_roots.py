"""Remove the roots that a rebuild could believe and that name a fragment which is about to go.

An attempt to publish that lost leaves a root which no record names. It may be newer than the root
that is published, and a rebuild, which has nothing but the bucket, takes the newest one whose
objects are there. A fragment of it that was given up is still there until its delete lands, so a
delete that is under way while coordination is lost would take away what the rebuild believes.

Therefore such a root goes first. It can never be published: the EXEC wants every uid that the
root adds among the live intents, and a uid that has left them never comes back. Nobody reads it.

Afterwards coordination has to show the generation of the stream's record still. If it does, any
rebuild that follows lists the roots after this one is gone; if it does not, the fragment stays, and
garbage collection finds it. After a crash at any step the fragment is due again.
"""

from collections.abc import Collection

import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.keys import parse_root_key, root_prefix
from bottomless.formats.manifest import decode_node
from bottomless.guards import guard
from bottomless.model.manifest import Node
from bottomless.model.stream import StreamRecord
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.lookup import names
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget
from bottomless_server.stores.generation import held_generation

log = structlog.get_logger(__name__)


@guard("roots of lost attempts before what they name")
async def remove_stray_roots(
    context: Context, record: StreamRecord, fragments: Collection[DeleteTarget]
) -> None:
    """Delete every root, not older than the published one, that leads to one of `fragments`.

    The fragments must be neither published nor among the intents of `record`.

    Raises:
        Unavailable: a root may still be there, or coordination does not show the generation of
            `record` any more (`coordination-regressed`): no fragment may be deleted now.
        DriveRefused, Corrupt: it cannot be told whether a root leads to one of them.
    """
    strays = [
        object_key
        for object_key in await _newer_roots(context, record)
        if await _leads_to_any(context, record, object_key, fragments)
    ]
    if not strays:
        return
    log.info("roots of lost attempts are deleted", stream_id=record.stream_id, count=len(strays))
    failed = await context.drive.delete(strays)
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
    context: Context, record: StreamRecord, object_key: str, fragments: Collection[DeleteTarget]
) -> bool:
    root = await _read(context, object_key)
    if root is None:
        return False
    for one in fragments:
        assert one.first_offset is not None
        assert one.uid is not None
        offset = max(one.first_offset, root.first_offset)
        if await names(context.drive, record.tenant, root, offset, one.uid):
            return True
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
