"""Close a hole between what is published and the owner's log, and accept what was in it as lost.

Such a hole is left when local segments are lost, or when a rebuild finds less in the bucket
than the owner was once told is there. Nothing is uploaded across it, and reads of it are
answered `local-log-lost`, until an operator says that the loss is accepted:

    gap from published_next to the first offset of the owner's log

What is whole in the bucket is no part of the hole: what is registered, and what nobody has told of
yet, is published first (`adopting.py`). The owner has to say itself that its log begins there; it
stays the owner, and both sides of the gap are readable. After a crash before the EXEC nothing is
given up; after it, the end of the manifest tells the step that is done again that it is done.

Of a leaderless stream it is the entry of its tail with which the manifest would go on, if that is
damaged or gone. A new session begins before, so that no uploader registers what it may have read of it.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from bottomless.errors import Code, Unavailable, WrongOffset
from bottomless.model.manifest import Entries, EntryKind, GapReason, Node
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.leaderless.damaged_entry import damaged_next
from bottomless_server.manifest.leaderless.pruning import prune_published
from bottomless_server.manifest.mutators.adopting import publish_gap
from bottomless_server.manifest.mutators.sessions import begin
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import AcceptGap, Edit


async def check_gap(context: Context, record: StreamRecord, next_offset: int) -> None:
    """Refuse what is no hole: the owner's log has to begin at `next_offset`, beyond the manifest; or
    the damaged entry of a tail to end there.

    Raises:
        WrongOffset: `offset-mismatch`, with the bounds there are.
        Unavailable: `not-owner`: no owner of the stream answers, so nobody says where its log begins.
    """
    if record.config.leaderless:
        end = await damaged_next(context, record)
        if end != next_offset:
            raise WrongOffset(
                "no damaged entry that the manifest would go on with ends at this offset",
                facts={"published_next": record.published_next, "damaged_next": end},
            )
        return
    first = await _ask_owner(context, record, context.owners.first_offset)
    if not record.published_next < first == next_offset:
        raise WrongOffset(
            "there is no hole that ends at this offset",
            facts={"published_next": record.published_next, "local_first_offset": first},
        )


async def _ask_owner(
    context: Context,
    record: StreamRecord,
    ask: Callable[[str, StreamId, float], Awaitable[int | None]],
) -> int:
    said = None
    if record.owner_url is not None:
        seconds = context.settings.manifest_owner_ms / 1000
        said = await ask(record.owner_url, record.stream_id, seconds)
    if said is None:
        raise Unavailable(
            "no owner of the stream answers, so nobody says where its log begins",
            code=Code.NOT_OWNER,
            retry_after_seconds=1,
        )
    return said


async def accept_gap(context: Context, committer: Committer, next_offset: int) -> dict[str, Any]:
    """Publish the gap that ends at `next_offset`, after what is durable before it.

    Raises:
        WrongOffset: `offset-mismatch`: there is no hole that ends at this offset any more.
        NotFound, Unavailable, Corrupt
    """

    async def find(record: StreamRecord, root: Node) -> Edit | None:
        if root.next_offset >= next_offset:
            return None
        await check_gap(context, record, next_offset)
        return AcceptGap(next_offset, reason)

    await committer.refresh()
    durable_next = 0
    leaderless = committer.record.config.leaderless
    reason = GapReason.DAMAGED if leaderless else GapReason.LOCAL_LOG_LOST
    if leaderless:
        # It adopts what is durable before the entry, which is all in fragments then.
        await begin(context, committer, context.new_uid())
    elif committer.record.published_next < next_offset:
        # An object that goes beyond the owner's log may hold what a recovery has cut.
        durable_next = await _ask_owner(context, committer.record, context.owners.committed_next)
    await publish_gap(context, committer, find, durable_next)
    if leaderless:
        await prune_published(context, committer.record)
    first = _first_of_gap(committer.keeper.root, next_offset, reason)
    told = reason.name.lower().replace("_", "-")
    return {"gap": {"first_offset": first, "next_offset": next_offset, "reason": told}}


def _first_of_gap(root: Node, next_offset: int, reason: GapReason) -> int | None:
    """Where the gap that ends there begins; None where nothing was left to be given up."""
    entries: Entries = root.entries
    gaps = entries[
        (entries["kind"] == EntryKind.GAP)
        & (entries["reason"] == reason)
        & (entries["next_offset"] == next_offset)
    ]
    return int(gaps["first_offset"][0]) if len(gaps) else None
