"""Find out whether the entry of a tail cannot be read with which its stream's manifest would go on.

A round of compaction ends before such an entry, and nothing after it gets into fragments, until an
operator accepts its loss. Nothing is written here.
"""

from typing import Final

import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.keys import wal_key
from bottomless.formats.placing import place
from bottomless.model.stream import StreamRecord
from bottomless_server.leaderless.tail import Tail, TailEntry
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.leaderless.tail_facts import tail_of
from bottomless_server.stores.tail_keys import entries_from

log = structlog.get_logger(__name__)

_READ_COUNT: Final = 2
"""Once more where it does not verify: it may have been damaged on the way only."""


async def damaged_next(context: Context, record: StreamRecord) -> int | None:
    """The end of the entry that holds the end of the manifest, if it is damaged or gone; else None.

    Raises:
        Corrupt: the tail itself cannot be read.
        Unavailable: `coordination-regressed`, or not now.
        DriveUnavailable, DriveRefused
    """
    tail = await tail_of(context, record)
    if tail is None:
        return None
    found = await entries_from(context.coordination, record.stream_id, record.published_next, 1)
    if not found or await _is_whole(context, tail, found[0]):
        return None
    return found[0].next_offset


async def _is_whole(context: Context, tail: Tail, entry: TailEntry) -> bool:
    object_key = wal_key(entry.instance, entry.sequence)
    for _ in range(_READ_COUNT):
        try:
            place(
                await context.drive.get(object_key, entry.position, entry.size),
                first_offset=entry.first_offset,
                record_count=entry.record_count,
                timestamp=entry.timestamp,
                epoch=tail.epoch,
            )
        except (Corrupt, ObjectMissing) as error:
            log.warning("an entry of a tail cannot be read", wal=object_key, error=str(error))
        else:
            return True
    return False
