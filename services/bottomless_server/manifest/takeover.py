"""Take a stream away from a home that will not come back, and accept what only it holds as lost.

Only an operator can know that a disk is gone, so this happens on demand, names the home that
is given up, and says that loss is accepted. One EXEC does all of it, on condition that the
home's lease is gone; coordination keeps a lease for its margin longer than the node itself
believes in it, so an owner that was cut off has stopped by then:

    gap from published_next to reserved_next, epoch + 1, no home, not dirty

No offset below `reserved_next` is used again: whatever the lost disk acknowledged is in the
gap. After a crash before the EXEC nothing has changed; after it, the gap in the manifest
tells the step that is done again that it is done.
"""

from typing import Any, Final

import numpy as np

from bottomless.model.manifest import Entries, EntryKind, GapReason, Node
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord
from bottomless.stores.operations import Operation
from bottomless.stores.streams import node_key
from bottomless_server.manifest.committer import Committer
from bottomless_server.manifest.context import Context
from bottomless_server.manifest.core.events import Edit, TakeOver
from bottomless_server.manifest.mutator import Mutators
from bottomless_server.manifest.operations import Done, Operations
from bottomless_server.manifest.publisher import home_live

TAKEOVER: Final = "takeover"


async def check_takeover(context: Context, record: StreamRecord, expect_home: NodeId) -> None:
    """Refuse early what the EXEC would refuse.

    Raises:
        Fenced: `home-live`.
        Unavailable
    """
    if record.home != expect_home:
        raise home_live(record)
    if await context.coordination.get(node_key(expect_home)) is not None:
        raise home_live(record)


async def take_over(
    context: Context, committer: Committer, expect_home: NodeId, epoch: int
) -> dict[str, Any]:
    """Close the stream's end with a gap and free it from `expect_home`, which had `epoch`.

    Raises:
        Fenced: `home-live`: the home is alive, or the stream is another's by now.
        NotFound, Unavailable, Corrupt
    """

    async def work_out(record: StreamRecord, root: Node) -> Edit | None:
        if _is_done(record, root, epoch):
            return None
        if record.epoch != epoch:
            raise home_live(record)
        await check_takeover(context, record, expect_home)
        return TakeOver(GapReason.TAKEOVER if record.dirty else GapReason.NONE)

    record = await committer.edit(work_out)
    return {"epoch": epoch + 1, "gap": _gap_of(committer.keeper.root, epoch), "home": record.home}


def _is_done(record: StreamRecord, root: Node, epoch: int) -> bool:
    freed = record.epoch == epoch + 1 and record.home is None
    return freed or _gap_of(root, epoch) is not None


def _gap_of(root: Node, epoch: int) -> dict[str, Any] | None:
    """The gap that ended this epoch; a younger manifest may have it in a group, which is old news."""
    entries: Entries = root.entries
    gaps = entries[
        (entries["kind"] == EntryKind.GAP)
        & (entries["reason"] == GapReason.TAKEOVER)
        & (entries["last_epoch"] == np.uint64(epoch))
    ]
    if len(gaps) == 0:
        return None
    first, end = int(gaps["first_offset"][-1]), int(gaps["next_offset"][-1])
    return {"first_offset": first, "next_offset": end, "reason": GapReason.TAKEOVER.name.lower()}


def register_takeover(operations: Operations, mutators: Mutators) -> None:
    async def run(context: Context, operation: Operation) -> Done:
        home, epoch = NodeId(operation.arguments["home"]), int(operation.arguments["epoch"])

        async def work(committer: Committer) -> dict[str, Any]:
            return await take_over(context, committer, home, epoch)

        stream_id = operation.stream_id
        assert stream_id is not None
        return Done(await mutators.at(StreamId(stream_id)).ask(work))

    operations.register(TAKEOVER, run)
