"""Find what retention and trim remove, and have it removed.

The decision is made in the stream's task, on the root that is published, and the edit that
follows from it is worked out anew if another process changes the manifest in between; so a
preview that nothing came after is what an evaluation does. Nothing is deleted here: the
EXEC that moves the floor puts what falls below it into the delete queue.
"""

import structlog

from bottomless.errors import Code, InvalidRequest
from bottomless.model.config import RetentionConfig
from bottomless.model.manifest import EntryKind, Node
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.lookup import path_to
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import CutFront, Edit, Empty
from bottomless_server.manifest.tree.core.retention_decision import (
    RetentionDecision,
    limits_of,
    retention_bounds,
)
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.tree.retention import Below, Bound, Cut, Descent, find_cut

log = structlog.get_logger(__name__)


async def judge(
    context: Context, record: StreamRecord, root: Node, asked: RetentionConfig | None = None
) -> RetentionDecision:
    """Decide what retention removes now: by `asked` instead of the stream's configuration, if given.

    Raises:
        DriveUnavailable, DriveRefused, Corrupt: it cannot be told now.
    """
    retention = record.config.retention if asked is None else asked
    limits = limits_of(retention, context.settings.retention_default())
    now, paused = context.clock(), False
    if limits.max_age_ms is not None:
        # By the slowest clock: what one that is ahead calls old may be new.
        now, doubt = await context.time.look()
        paused = doubt is not None
    bounds = retention_bounds(limits, now, paused)
    by_age, by_bytes = [await _cut_by(context, record.tenant, root, bound) for bound in bounds]
    return RetentionDecision(now, root, bounds, by_age, by_bytes, paused)


async def _cut_by(context: Context, tenant: str, root: Node, bound: Bound | None) -> Cut:
    if bound is None:
        return Cut(root.first_offset)
    return await context.groups.descend(tenant, root, find_cut(root, bound))


async def preview(
    context: Context, committer: Committer, asked: RetentionConfig | None
) -> RetentionDecision:
    """Decide what an evaluation would remove now; changes nothing."""
    await committer.refresh()
    return await judge(context, committer.record, committer.keeper.root, asked)


async def evaluate(context: Context, committer: Committer) -> RetentionDecision:
    """Remove what the configuration does not keep; when this returns the floor is published.

    After a crash the floor is where it was, or where it is now; the same again is right.

    Raises:
        NotFound, Unavailable, Corrupt
    """
    decisions: list[RetentionDecision] = []

    async def work_out(record: StreamRecord, root: Node) -> Edit | None:
        decision = await judge(context, record, root)
        decisions.append(decision)
        if decision.cut.floor == root.first_offset:
            return None
        await reach("manifest.retention.before-cut")
        return CutFront(decision.cut)

    await committer.edit(work_out)
    await reach("manifest.retention.after-cut")
    # The last one that removes something is what was published; none after it did.
    decision = next(
        (v for v in reversed(decisions) if v.cut.floor > v.root.first_offset), decisions[-1]
    )
    if decision.cut.floor > decision.root.first_offset:
        log.info(
            "retention removed fragments",
            stream_id=committer.record.stream_id,
            count=decision.cut.gone.fragment_count,
            first_offset=decision.cut.floor,
        )
    return decision


async def _find_trim(
    context: Context, record: StreamRecord, root: Node, before_offset: int, allow_empty: bool
) -> Edit | None:
    """Work out the edit of a trim; None where all records below are gone already.

    Raises:
        InvalidRequest: `offset-beyond-end`.
        DriveUnavailable, DriveRefused, Corrupt
    """
    if before_offset > record.published_next:
        raise InvalidRequest(
            "only what is in the object store can be trimmed",
            code=Code.OFFSET_BEYOND_END,
            facts={"published_next": record.published_next},
        )
    if before_offset <= root.first_offset:
        return None
    if allow_empty and before_offset == root.next_offset:
        return Empty()
    cut = await context.groups.descend(record.tenant, root, find_cut(root, Below(before_offset)))
    return None if cut.floor == root.first_offset else CutFront(cut)


async def preview_trim(
    context: Context, committer: Committer, before_offset: int, *, allow_empty: bool
) -> int:
    """The floor that a trim would lead to now; changes nothing.

    Raises:
        InvalidRequest: `offset-beyond-end`.
        NotFound, Unavailable, Corrupt
    """
    await committer.refresh()
    root = committer.keeper.root
    match await _find_trim(context, committer.record, root, before_offset, allow_empty):
        case CutFront(cut):
            return cut.floor
        case Empty():
            return root.next_offset
        case _:
            return root.first_offset


async def trim(
    context: Context, committer: Committer, before_offset: int, *, allow_empty: bool
) -> int:
    """Remove whole fragments below an offset; returns the floor, which is published.

    Raises:
        InvalidRequest: `offset-beyond-end`.
        NotFound, Unavailable, Corrupt
    """

    async def work_out(record: StreamRecord, root: Node) -> Edit | None:
        return await _find_trim(context, record, root, before_offset, allow_empty)

    await committer.edit(work_out)
    return committer.keeper.root.first_offset


async def records_lost(
    context: Context, tenant: str, decision: RetentionDecision, next_offset: int
) -> int:
    """Records that a consumer who goes on at `next_offset` would not get any more."""
    root, cut = decision.root, decision.cut
    start = max(next_offset, root.first_offset)
    if start >= cut.floor:
        return 0
    if cut.gone.record_count == cut.floor - root.first_offset:
        return cut.floor - start
    # There are gaps among what goes, which hold no record.
    below = await context.groups.descend(tenant, root, _up_to(root, start))
    path = await path_to(context.drive, tenant, root, start)
    within = start - below.floor if path[-1]["kind"] == EntryKind.FRAGMENT else 0
    return cut.gone.record_count - below.gone.record_count - within


def _up_to(root: Node, offset: int) -> Descent:
    return find_cut(root, Below(offset))
