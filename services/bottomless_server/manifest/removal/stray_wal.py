"""WAL objects that nobody looks after any more: a put that landed after its object was deleted.

Such an object is below `deleted` of its instance, or its instance has no record. Nothing names it, and
the vacuum does not come back to it. Objects are listed first, and records are read then: a record is
there before the first object of its instance, so a new instance is never taken for a forgotten one.

A coordination that was emptied, or is an older copy of itself, knows no instance either. So it has to
show the generation with which this process works, and before anything is deleted it is compared with
the newest objects of all instances, as when ingest starts (`stores/wal_check.py`).

They are deleted one at a time and in order, as every WAL object: what is left after a crash are later
ones. The next collection finds them.
"""

from collections.abc import Sequence

import structlog

from bottomless.errors import Corrupt, Unavailable
from bottomless.formats.keys import WalKey, parse_wal_key
from bottomless.guards import guard
from bottomless.model.names import Uid
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.leaderless.instance import WalInstance, decode_instance
from bottomless_server.manifest.common.context import Context
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.wal import instance_key, readable, require_generation
from bottomless_server.stores.wal_check import check_wal

log = structlog.get_logger(__name__)


async def stray_wal(context: Context, listed: Sequence[ObjectFacts]) -> list[ObjectFacts]:
    """Pick out of listed objects the WAL objects that nobody looks after.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
    """
    found = [(facts, key) for facts in listed if (key := parse_wal_key(facts.object_key))]
    if not found:
        return []
    instances = list(dict.fromkeys(key.instance for _, key in found))
    records = await _records(context, instances)
    return [facts for facts, key in found if is_stray(key, records[key.instance])]


@guard("what is deleted of an instance, before a WAL object counts as garbage")
def is_stray(key: WalKey, record: WalInstance | Corrupt | None) -> bool:
    """Whether nothing can name an object. Of an instance whose record cannot be read nobody knows."""
    if isinstance(record, Corrupt):
        return False
    return record is None or key.sequence < record.deleted


async def _records(
    context: Context, instances: Sequence[Uid]
) -> dict[Uid, WalInstance | Corrupt | None]:
    keys = [instance_key(one) for one in instances]
    held, *values = await context.coordination.get_many([GENERATION_KEY, *keys])
    require_generation({GENERATION_KEY: held}, _generation(context))
    return {
        one: None if value is None else readable(decode_instance, value)
        for one, value in zip(instances, values, strict=True)
    }


async def delete_stray_wal(context: Context, found: Sequence[ObjectFacts]) -> None:
    """Delete such objects, once coordination is known to be no older than the bucket.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
        DriveUnavailable, DriveRefused: the first that could not be deleted.
    """
    await check_wal(context.drive, context.coordination, _generation(context))
    for facts in found:
        failed = await context.drive.delete([facts.object_key])
        if facts.object_key in failed:
            raise failed[facts.object_key]
    log.info("deleted WAL objects that nothing named", count=len(found))


def _generation(context: Context) -> int:
    generation = context.streams.generation
    if generation is None:
        raise Unavailable("nobody has found out which generation coordination has to have")
    return generation
