"""Take a stream away from a home that will not come back, and accept what only it holds as lost.

Only an operator can know that a disk is gone, so this happens on demand, names the home that
is given up, and says that loss is accepted. Two EXECs do it:

1. The fence, on condition that the home's lease is gone: epoch + 1, and nobody as the home. Of a
   stream with replicas the leases of all nodes in sync have to be gone, since each of them goes on by
   itself; nobody is in sync then.
   Coordination keeps a lease for its margin longer than the node itself believes in it, so an
   owner that was cut off has stopped by then. From here on the home is refused, and nobody can
   claim. A stream that is clean is freed by this EXEC, and that is all.
2. The end, an ordinary publish of the new epoch (`freeing.py`): what is durable in the bucket is
   adopted, then the gap up to `reserved_next` is published, and the stream has no home.

With a node that goes on with what it holds there is no gap: the fence makes that member the home, and
alone in sync, on condition that its log reaches what is published; fragments of the lost owner that go
beyond that log are refused from then on, since they would be published past it. It finds the stream named as its own
and claims it, under the next epoch; offsets that it does not hold are given again. That is all there is:
after a crash the record is as before the fence, or as after it.

Without a node no offset below `reserved_next` is used again: whatever the lost disk acknowledged is in the
gap. After a crash before the fence nothing has changed, neither in coordination nor in the
bucket; after it, whoever touches the stream next goes on. The registry object follows, so that
a rebuild does not look for the home that was given up. docs/decisions/0020.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from bottomless.model.manifest import Entries, EntryKind, GapReason, Node
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.freeing import free
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.takeovers import (
    GoesOn,
    cannot_go_on,
    fence,
    going_on_from,
    in_sync_live,
    is_done,
    require_reaches,
    require_seen,
)
from bottomless_server.manifest.tree.publish_attempts import check_active
from bottomless_server.node.core import in_sync
from bottomless_server.node.replica_records import watching
from bottomless_server.runtime.base.fault_points import reach


async def take_over(
    context: Context,
    committer: Committer,
    expect_home: NodeId,
    epoch: int,
    named: GoesOn | None = None,
) -> dict[str, Any]:
    """Close the stream's end with a gap and free it from `expect_home`, which had `epoch`; or have the
    member go on that is `named`.

    Raises:
        Fenced: `home-live`: the home is alive, or the stream is another's by now; `in-sync-live`;
            `not-in-sync`: the member that is named cannot go on.
        NotFound, Unavailable, Corrupt
    """

    # The manifest is read before anything is changed: a gap after nothing would be no use.
    await committer.refresh()
    if not is_done(committer.record, expect_home, epoch):
        if named is not None:
            require_seen(committer.keeper.root, named)
        await _fence(context, committer, expect_home, epoch, named)
        await reach("manifest.takeover.after-fence")
        await free(context, committer)
        await reach("manifest.takeover.after-gap")
    gap = _gap_of(committer.keeper.root, epoch)
    return {"epoch": epoch + 1, "gap": gap, "home": committer.record.home}


async def _fence(
    context: Context, committer: Committer, home: NodeId, epoch: int, named: GoesOn | None
) -> None:
    def nodes_of(record: StreamRecord) -> list[NodeId]:
        return [home, *(node for node in record.in_sync if node != home)]

    def decide(record: StreamRecord, live: Collection[NodeId]) -> StreamRecord:
        check_active(record)
        if is_done(record, home, epoch):
            # The attempt whose reply was lost did arrive.
            return record
        if named is not None:
            require_reaches(record, named)
        fenced = fence(record, home, epoch, home_held=home in live)
        taken = in_sync.take_over(record, fenced, live, None if named is None else named.node)
        return taken if named is None else going_on_from(taken, named)

    stream_id = committer.record.stream_id
    try:
        record = await watching(context.streams, stream_id, nodes_of, decide)
    except in_sync.Refused as error:
        if error.refusal is in_sync.Refusal.NOT_A_MEMBER:
            raise cannot_go_on("the node is no member of the stream") from error
        raise in_sync_live(committer.record) from error
    await committer.take_up(record)


def _gap_of(root: Node, epoch: int) -> dict[str, Any] | None:
    """The gap that ended this epoch; a younger manifest may have it in a group, which is old news."""
    entries: Entries = root.entries
    gaps = entries[
        (entries["kind"] == EntryKind.GAP)
        & (entries["reason"] == GapReason.TAKEOVER)
        # Of its fence; earlier releases gave it the epoch of the home.
        & np.isin(entries["last_epoch"], np.array([epoch, epoch + 1], np.uint64))
    ]
    if len(gaps) == 0:
        return None
    first, end = int(gaps["first_offset"][-1]), int(gaps["next_offset"][-1])
    return {"first_offset": first, "next_offset": end, "reason": GapReason.TAKEOVER.name.lower()}
