"""Tell which objects of a stream nothing leads to, and nothing will.

Asked of a page that was listed before the record was read: what is in the listing and comes
into the manifest meanwhile is then in the record, its root, or its intents. An object stays if

- the root of the record leads to it, by the drive and the copy that it says of it, or the record
  names it (intents, quarantine, and moves whose copy it is), or it lies where a rebuild could not look;
- its key is in the delete queue, which knows better when it may go;
- it lies below the floor, where the queue still works on some of that range, since the queue
  names a group and means everything below it;
- it is the newest of its kind: the registry object of the record's version, a snapshot of
  consumers as new as the last one that was noted.

Staged batches of streams that are leaderless or have replicas are what clients hold the ids of. One
that is old enough to be looked at is not committed any more, or was; but while the plan of a commit
is there, some of them may be its rest, for which a plan is kept so long.

Whatever cannot be told is kept.
"""

from collections.abc import Sequence
from typing import Final

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.keys import (
    parse_consumers_key,
    parse_staged_plan_key,
    registry_key,
    staged_plans_prefix,
)
from bottomless.formats.manifest import decode_node
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.limits import STAGED_PLAN_KEEP_MS
from bottomless.model.manifest import Node
from bottomless.model.names import Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.unseen import may_be_adopted
from bottomless_server.manifest.removal.core.orphan_tally import ObjectKind, OrphanCandidate
from bottomless_server.manifest.tree.core.delete_queue import (
    OffsetRange,
    is_copied,
    moved_member,
    parse_delete_target,
)
from bottomless_server.manifest.tree.reachability import (
    Place,
    among,
    among_places,
    reached_fragments,
    reached_groups,
)
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.stores.consumers import ConsumerOffsets
from bottomless_server.stores.streams import deletes_key

QUEUE_COUNT_MAX: Final = 50_000
"""Members of the delete queue that are looked at; with more, what is below a floor is kept."""
_FOREVER: Final = 2**52
"""Later than anything is queued for."""


async def orphans_of(
    context: Context, record: StreamRecord, page: Sequence[OrphanCandidate], oldest: int
) -> list[OrphanCandidate]:
    """Objects of the page that are orphans by this record; it must be newer than the listing.

    What was put after `oldest`, by the clock of the store, is not looked at.

    Raises:
        ObjectMissing, Corrupt: of the root or a group: then nothing can be told.
        NotFound, Unavailable
    """
    if not page:
        return []
    record, root = await load_root(context, record)
    by_kind: dict[ObjectKind, list[OrphanCandidate]] = {kind: [] for kind in ObjectKind}
    for one in page:
        by_kind[one.kind].append(one)
    left = [
        *await _unnamed(context, record, root, by_kind[ObjectKind.FRAGMENT]),
        *await _unreached(context, record, root, by_kind[ObjectKind.GROUP]),
        *_old_roots(record, by_kind[ObjectKind.ROOT]),
        *await _old_registry(context, record, by_kind[ObjectKind.REGISTRY]),
        *await _old_consumers(context, record, by_kind[ObjectKind.CONSUMERS]),
        *await _old_staged(context, record, by_kind[ObjectKind.STAGED], oldest),
    ]
    # Last: what was dropped by an edit before the record was read is in the queue by now.
    left = await unqueued(context, left)
    return await _uncovered(context, record, root, left)


async def unqueued(context: Context, left: Sequence[OrphanCandidate]) -> list[OrphanCandidate]:
    """Candidates whose keys are not in the delete queue."""
    if not left:
        return []
    # All are of one page, and so of one drive. What was moved is queued in another form.
    queue = deletes_key(left[0].target.drive)
    keys = [one.target.member for one in left]
    moved = [moved_member(one.facts.object_key) for one in left]
    due_at = await context.coordination.due_at(queue, [*keys, *moved])
    count = len(left)
    return [
        one
        for one, alone_at, moved_at in zip(left, due_at[:count], due_at[count:], strict=True)
        if alone_at is None and moved_at is None
    ]


async def _unreached(
    context: Context,
    record: StreamRecord,
    root: Node,
    page: Sequence[OrphanCandidate],
) -> list[OrphanCandidate]:
    """Groups that the root does not lead to."""
    if not page:
        return []
    firsts = [_first_offset(one) for one in page]
    reached = await reached_groups(context.drive, record.tenant, root, min(firsts), max(firsts))
    live = among([_uid(one) for one in page], reached)
    return [one for one, is_live in zip(page, live, strict=True) if not is_live]


async def _unnamed(
    context: Context, record: StreamRecord, root: Node, page: Sequence[OrphanCandidate]
) -> list[OrphanCandidate]:
    """Fragments that neither the root nor the record leads to: of one that was moved, the root names
    the object that counts, and no other. The deleter looks at that one before another goes."""
    if not page:
        return []
    firsts = [_first_offset(one) for one in page]
    reached = await reached_fragments(context.drive, record.tenant, root, min(firsts), max(firsts))
    places = [Place(_uid(one), one.target.drive, one.target.copy) for one in page]
    live = among_places(places, reached)
    named = {intent.uid for intent in (*record.intents, *record.quarantine)}
    return [
        one
        for one, is_live in zip(page, live, strict=True)
        if not is_live
        and one.target.uid not in named
        and not may_be_adopted(record, one.target)
        and not any(is_copied(move, one.target) for move in record.moves)
    ]


def _old_roots(record: StreamRecord, page: Sequence[OrphanCandidate]) -> list[OrphanCandidate]:
    newest = None if record.root is None else record.root.uid
    return [one for one in page if one.target.uid != newest]


async def _old_registry(
    context: Context, record: StreamRecord, page: Sequence[OrphanCandidate]
) -> list[OrphanCandidate]:
    newest = record.registry_version
    # An object is put after its record says so: one above the record was put by a process of before
    # a rebuild, or by a rebuild that did not end.
    old = [one for one in page if one.target.registry_version != newest]
    if not old:
        return []
    try:
        await context.drive.head(registry_key(record.stream_id, newest, record.tenant))
    except ObjectMissing:
        # The older one is all that a rebuild has, until the newer one is put.
        return []
    return old


async def _old_consumers(
    context: Context, record: StreamRecord, page: Sequence[OrphanCandidate]
) -> list[OrphanCandidate]:
    if not page:
        return []
    pointer = await ConsumerOffsets(context.coordination, context.served).pointer(record.stream_id)
    if pointer is None:
        return []
    return [
        one for one in page if (parse_consumers_key(one.facts.object_key) or 0) < pointer.version
    ]


@guard("the rest of a begun commit, kept for as long as its plan")
async def _old_staged(
    context: Context, record: StreamRecord, page: Sequence[OrphanCandidate], oldest: int
) -> list[OrphanCandidate]:
    """What was staged and is no commit's rest: nothing of it, as long as any plan is kept."""
    if not page:
        return []
    kept_after = oldest - STAGED_PLAN_KEEP_MS
    prefix = staged_plans_prefix(record.stream_id, record.tenant)
    async for facts in context.drive.list(prefix):
        if facts.modified > kept_after:
            return [one for one in page if _is_old_plan(one, kept_after)]
    return list(page)


def _is_old_plan(one: OrphanCandidate, kept_after: int) -> bool:
    is_plan = parse_staged_plan_key(one.facts.object_key) is not None
    return is_plan and one.facts.modified <= kept_after


async def _uncovered(
    context: Context, record: StreamRecord, root: Node, left: Sequence[OrphanCandidate]
) -> list[OrphanCandidate]:
    """Leave out those below the floor that the queue may mean by the name of a group above them."""
    below = [
        one
        for one in left
        if one.target.first_offset is not None and one.target.first_offset < root.first_offset
    ]
    if not below:
        return list(left)
    # All are of one page, and so of one drive.
    ranges = await _queued_ranges(context, record, below[0].target.drive)
    covered = {one.facts.object_key for one in below if await _is_covered(context, one, ranges)}
    return [one for one in left if one.facts.object_key not in covered]


async def _queued_ranges(
    context: Context, record: StreamRecord, number: int
) -> list[OffsetRange] | None:
    """What retention removed of a stream, and is not deleted yet of drive 0 and of the drive `number`;
    None if there is too much."""
    ranges: list[OffsetRange] = []
    # Drive 0 first: what is found below a group goes from its queue to that of another drive.
    for each in sorted({DEFAULT_NUMBER, number}):
        found = await _ranges_in_queue(context, record, each)
        if found is None:
            return None
        ranges += found
    return ranges


async def _ranges_in_queue(
    context: Context, record: StreamRecord, number: int
) -> list[OffsetRange] | None:
    dues = await context.coordination.due(deletes_key(number), _FOREVER, QUEUE_COUNT_MAX)
    if len(dues) == QUEUE_COUNT_MAX:
        return None
    mine = f"/{record.stream_id}/".encode("ascii")
    members = [parse_delete_target(due.member, number) for due in dues if mine in due.member]
    return [one.range for one in members if one is not None and one.range is not None]


async def _is_covered(
    context: Context, one: OrphanCandidate, ranges: Sequence[OffsetRange] | None
) -> bool:
    if ranges is None:
        return True
    if not ranges:
        return False
    first = _first_offset(one)
    end = first + 1
    if one.kind is ObjectKind.GROUP:
        # It goes with the range that its end is in, which only the object itself tells.
        try:
            end = decode_node(await context.drive.get(one.facts.object_key)).next_offset
        except ObjectMissing:
            return False
        except Corrupt:
            return True
    return any(range_.first_offset < end and first < range_.next_offset for range_ in ranges)


def _first_offset(one: OrphanCandidate) -> int:
    assert one.target.first_offset is not None
    return one.target.first_offset


def _uid(one: OrphanCandidate) -> Uid:
    assert one.target.uid is not None
    return one.target.uid
