"""Close a hole between what is published and the owner's log, and accept what was in it as lost.

Such a hole is left when local segments are lost, or when a rebuild finds less in the bucket
than the owner was once told is there. Nothing is uploaded across it, and reads of it are
answered `local-log-lost`, until an operator says that the loss is accepted:

    gap from published_next to the first offset of the owner's log

What is uploaded, and only waits for its root, is published first. The owner has to say itself that its log begins there; it stays the owner, and both sides of
the gap are readable. After a crash before the EXEC nothing has changed; after it, the end of
the manifest tells the step that is done again that it is done.
"""

from typing import Any

from bottomless.errors import Code, Unavailable, WrongOffset
from bottomless.model.manifest import GapReason, Node
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import AcceptGap, Edit


async def check_gap(context: Context, record: StreamRecord, next_offset: int) -> None:
    """Refuse what is no hole: the owner's log has to begin at `next_offset`, beyond the manifest.

    Raises:
        WrongOffset: `offset-mismatch`, with the bounds there are.
        Unavailable: `not-owner`: no owner of the stream answers, so nobody says where its log begins.
    """
    first = None
    if record.owner_url is not None:
        seconds = context.settings.manifest_owner_ms / 1000
        first = await context.owners.first_offset(record.owner_url, record.stream_id, seconds)
    if first is None:
        raise Unavailable(
            "no owner of the stream answers, so nobody says where its log begins",
            code=Code.NOT_OWNER,
            retry_after_seconds=1,
        )
    if not record.published_next < first == next_offset:
        raise WrongOffset(
            "there is no hole that ends at this offset",
            facts={"published_next": record.published_next, "local_first_offset": first},
        )


async def accept_gap(context: Context, committer: Committer, next_offset: int) -> dict[str, Any]:
    """Publish the gap that ends at `next_offset`.

    Raises:
        WrongOffset: `offset-mismatch`: there is no hole that ends at this offset any more.
        NotFound, Unavailable, Corrupt
    """
    # What waits for its root is in the bucket, so it is no part of the hole: a large fragment
    # waits for seconds, and the gap would cover its records.
    await committer.flush()
    if committer.wake_at is not None:
        raise Unavailable("fragments that lie before the gap are not published yet")
    started: list[int] = []

    async def work_out(record: StreamRecord, root: Node) -> Edit | None:
        if root.next_offset >= next_offset:
            return None
        await check_gap(context, record, next_offset)
        started.append(root.next_offset)
        return AcceptGap(next_offset)

    await committer.edit(work_out)
    reason = GapReason.LOCAL_LOG_LOST.name.lower().replace("_", "-")
    first = started[-1] if started else None
    return {"gap": {"first_offset": first, "next_offset": next_offset, "reason": reason}}
