"""Keep fragments that a move took elsewhere for those who hold a lease, and may have been told the old
place.

A lease that is granted once the time of grace is over is no hindrance: its holder is told by a root
that names the copy. So a look at the record is enough, and nothing is condemned for it.

The copy is looked at once more before its source goes: until then a disk that came back older has lost
nothing. Where its drive is lost the source stays, and is named again (`mutators/losing.py`), unless its
deletion may be under way (`claims.py`). So it is with
what a collection of garbage finds, with the copies of a move that was given up, and with what a rebuild
takes for strays: what the manifest names is looked at before anything goes that has the same bytes.
"""

from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

import numpy as np
import structlog

from bottomless.drives.base import DriveUnavailable
from bottomless.errors import Corrupt, StoreError
from bottomless.formats.keys import fragment_place
from bottomless.guards import guard
from bottomless.model.manifest import fragment_info
from bottomless.model.stream import StreamRecord, StreamState, held_from, live_leases
from bottomless_server.coordination.base import Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.failing_deletes import queue_later
from bottomless_server.manifest.removal.range_leases import put_off
from bottomless_server.manifest.removal.reachability import Seen, see
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget
from bottomless_server.runtime.base.side_by_side import side_by_side

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)

_COPIES_AT_ONCE: Final = 8


async def unleased(
    context: Context,
    record: StreamRecord,
    seen: Seen[Due] | None,
    members: Mapping[Due, DeleteTarget],
    now: int,
) -> tuple[dict[Due, DeleteTarget], set[Due]]:
    """Members without the moved fragments that a lease may need still, which are queued for later;
    and those of which that cannot be told. `seen` is what was read of the members, if anything was.

    Raises:
        NotFound, Unavailable, Corrupt: of the root.
    """
    moved = {due: one for due, one in members.items() if one.moved and not one.height}
    # Of a stream that is being deleted nothing is named any more.
    if not moved or not (record.state is StreamState.ACTIVE or live_leases(record, now)):
        return {**members}, set()
    seen = seen or await see(context, record, moved)
    unsure = await without_copy(context, seen, moved)
    held: dict[Due, int] = {}
    for due in moved:
        entry = seen.entries.get(due)
        if due in unsure or isinstance(entry, StoreError):
            continue
        # What is not named any more was cut, and lies below the floor.
        end = seen.root.first_offset if entry is None else int(entry["next_offset"])
        if is_held(seen.record, end, now):
            held[due] = end
    await queue_later(context.coordination, put_off(context.settings, seen.record, held, now))
    others = {due: one for due, one in members.items() if due not in {*held, *unsure}}
    return others, unsure


async def without_copy(context: Context, seen: Seen[K], moved: Mapping[K, DeleteTarget]) -> set[K]:
    """Tell in place of which of them something is named that is not there whole, or cannot be looked at."""

    async def look(key: K) -> None:
        entry = seen.entries.get(key)
        if isinstance(entry, StoreError):
            raise entry
        if entry is not None:
            await require_copy(context, seen.record, entry, seen.lost)

    return refused(moved, await side_by_side(moved, look, _COPIES_AT_ONCE))


def refused(members: Mapping[K, DeleteTarget], looks: Mapping[K, Exception | None]) -> set[K]:
    """Tell which looks found a fault of a store; raises what else was raised."""
    found: set[K] = set()
    for key, error in looks.items():
        if isinstance(error, StoreError):
            tell_unread(members[key], error)
            found.add(key)
        elif error is not None:
            raise error
    return found


def tell_unread(target: DeleteTarget, error: StoreError) -> None:
    """Say that a member stays since its way cannot be read."""
    log.warning("the way to an object cannot be read", uid=target.uid, error=str(error))


@guard("the leases of what was moved")
def is_held(record: StreamRecord, next_offset: int, now: int) -> bool:
    """Whether a live lease begins below the end of what was moved."""
    held = held_from(record, now)
    return held is not None and held < next_offset


@guard("the copy before its source goes")
async def require_copy(
    context: Context, record: StreamRecord, entry: np.void, lost: AbstractSet[int]
) -> None:
    """Look at what the manifest names in place of a source: its disk may have come back older. `lost` are
    the drives of the stream that were lost when the manifest had been read.

    Raises:
        ObjectMissing, Corrupt: it is not there, or is something else; the source is all that is left.
        DriveUnavailable, DriveRefused: its drive does not say.
    """
    info = fragment_info(entry)
    drive, object_key = fragment_place(record.stream_id, info, record.tenant)
    if drive in lost:
        raise DriveUnavailable("the copy is on a drive that is lost, so its source is kept")
    if (await context.drives.of(drive).head(object_key)).size != info.size:
        raise Corrupt("the copy of a fragment that was moved has another size")


@guard("what is named before a copy of it goes")
async def require_other(
    context: Context,
    record: StreamRecord,
    entry: np.void,
    target: DeleteTarget,
    lost: AbstractSet[int],
) -> None:
    """Look at what the manifest names in place of an object: it may be on a drive that is away, or lost.

    Of what was moved `unleased` does so.

    Raises:
        ObjectMissing, Corrupt, DriveUnavailable, DriveRefused: the object may be all that is left.
    """
    if not target.moved:
        await require_copy(context, record, entry, lost)
