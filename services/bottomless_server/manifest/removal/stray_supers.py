"""Super objects that a collection of garbage meets: which of them nothing needs any more.

A super stream that coordination knows keeps its objects: the few newest stay, and they go with it.
Of one that it does not know objects go only if the newest is a tombstone, or if the bucket has nothing of
the partitions that the newest names (`left_partitions.py`), and the newest last: they were put by a
process that stood still while the super stream was deleted. Everything else without a record may be
what a lost coordination does not know of, and is never touched.

The newest is that with the highest generation, and of these with the highest version, as a rebuild sees
it: a process that stood still over a rebuild may put a tombstone under a higher version late.
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
        return await _of_a_deleted_one(context, objects)
    return []


async def _of_a_deleted_one(
    context: Context, objects: Sequence[ObjectFacts]
) -> list[ObjectFacts] | None:
    """Give all of them, the newest last; None if they may be of one that was not deleted."""
    records = []
    for facts in objects:
        try:
            data = bytes(await context.drive.get(facts.object_key))
            records.append(decode_super_object(data, context.served))
        except (Corrupt, ObjectMissing):
            # It may be the newest.
            return None
    at = newest_of(records)
    if records[at].state is not SuperState.DELETING and await may_be_lost(
        context.drive, records[at]
    ):
        return None
    return [*objects[:at], *objects[at + 1 :], objects[at]]


@guard("the newest generation of super objects, in a collection")
def newest_of(records: Sequence[SuperRecord]) -> int:
    """Tell which of these says what became of a super stream; they are in the order of their versions."""
    return max(range(len(records)), key=lambda at: (records[at].generation, at))


@guard("the partitions of a super stream that nobody knows, in a collection")
async def may_be_lost(drive: Drive, record: SuperRecord) -> bool:
    """Whether a super stream without a record is one that a lost coordination does not know of."""
    return await has_partitions(drive, record)
