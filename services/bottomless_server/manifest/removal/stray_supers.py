"""Super objects that a collection of garbage meets: which of them nothing needs any more.

A super stream that coordination knows keeps its objects: the few newest stay, and they go with it.
Of one that it does not know objects go only if the newest is a tombstone, or if the bucket has nothing of
the partitions that the newest names (`left_partitions.py`), and the newest last: they were put by a
process that stood still while the super stream was deleted. Everything else without a record may be
what a lost coordination does not know of, and is never touched.
"""

from collections.abc import Sequence

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt, NotFound
from bottomless.formats.keys import parse_super_key
from bottomless.formats.super_record import decode_super_object
from bottomless.guards import guard
from bottomless.model.names import SuperId
from bottomless.model.object_facts import ObjectFacts
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.left_partitions import has_partitions
from bottomless_server.stores.supers import Supers


def super_objects_in(page: Sequence[ObjectFacts]) -> list[ObjectFacts]:
    """The super objects of a page, in the order of their versions."""
    return [facts for facts in page if parse_super_key(facts.object_key) is not None]


async def stray_supers(
    context: Context, super_id: SuperId, objects: Sequence[ObjectFacts]
) -> list[ObjectFacts] | None:
    """Super objects that nothing needs; None where nobody knows whose they are.

    Raises:
        Corrupt: the record of the super stream cannot be read.
        CoordinationUnavailable, DriveUnavailable
    """
    try:
        await Supers(context.coordination, context.streams).load(super_id)
    except NotFound:
        return list(objects) if await _is_of_a_deleted_one(context, objects[-1]) else None
    return []


async def _is_of_a_deleted_one(context: Context, newest: ObjectFacts) -> bool:
    try:
        record = decode_super_object(bytes(await context.drive.get(newest.object_key)))
    except (Corrupt, ObjectMissing):
        return False
    return record.state is SuperState.DELETING or not await may_be_lost(context.drive, record)


@guard("the partitions of a super stream that nobody knows, in a collection")
async def may_be_lost(drive: Drive, record: SuperRecord) -> bool:
    """Whether a super stream without a record is one that a lost coordination does not know of."""
    return await has_partitions(drive, record)
