"""Keep fragments that a move took elsewhere for those who hold a lease, and may have been told the old
place.

A lease that is granted once the time of grace is over is no hindrance: its holder is told by a root
that names the copy. So a look at the record is enough, and nothing is condemned for it.
"""

from collections.abc import Mapping

import structlog

from bottomless.errors import StoreError
from bottomless.guards import guard
from bottomless.model.manifest import Node
from bottomless.model.stream import StreamRecord, held_from, live_leases
from bottomless_server.coordination.base import Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.failing_deletes import queue_later
from bottomless_server.manifest.common.lookup import entry_of
from bottomless_server.manifest.removal.range_leases import put_off
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget
from bottomless_server.manifest.tree.resolver import load_root

log = structlog.get_logger(__name__)


async def unleased(
    context: Context, record: StreamRecord, members: Mapping[Due, DeleteTarget], now: int
) -> tuple[dict[Due, DeleteTarget], list[Due]]:
    """Members without the moved fragments that a lease may need still, which are queued for later;
    and those of which that cannot be told.

    Raises:
        NotFound, Unavailable, Corrupt: of the root.
    """
    moved = {due: one for due, one in members.items() if one.moved and not one.height}
    if not moved or not live_leases(record, now):
        return {**members}, []
    record, root = await load_root(context, record)
    held: dict[Due, int] = {}
    unsure: list[Due] = []
    for due, target in moved.items():
        try:
            end = await _end_of(context, record, root, target)
        except StoreError as error:
            log.warning("the way to an object cannot be read", uid=target.uid, error=str(error))
            unsure.append(due)
            continue
        if is_held(record, end, now):
            held[due] = end
    await queue_later(context.coordination, put_off(context.settings, record, held, now))
    others = {due: one for due, one in members.items() if due not in {*held, *unsure}}
    return others, unsure


@guard("the leases of what was moved")
def is_held(record: StreamRecord, next_offset: int, now: int) -> bool:
    """Whether a live lease begins below the end of what was moved."""
    held = held_from(record, now)
    return held is not None and held < next_offset


async def _end_of(context: Context, record: StreamRecord, root: Node, target: DeleteTarget) -> int:
    """Where the records of a fragment that was moved end, or an offset above that."""
    assert target.first_offset is not None
    assert target.uid is not None
    offset = max(target.first_offset, root.first_offset)
    entry = await entry_of(context.drive, record.tenant, root, offset, target.uid)
    # What is not named any more was cut, and lies below the floor.
    return root.first_offset if entry is None else int(entry["next_offset"])
