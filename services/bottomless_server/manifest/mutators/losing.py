"""Give up all that a stream has on a drive that is lost for good.

In this order; after a crash at any step the same again goes on:

1. One EXEC takes out of the record what is under way there: intents, what was given up, moves to and
   from the drive, and that a rebuild has not looked at it. What a move has copied elsewhere is looked
   for later. From here on nothing that lies there can come into the manifest. Whoever has appended what
   an intent was about has it still, and uploads it anew.
2. Roots in which fragments on the drive are gaps, each by one EXEC, as many as it takes: a walk makes a
   bounded number of groups anew. Before such an EXEC groups and a root are there that nobody names, as
   after any publish that came to nothing. Groups that are displaced go after the grace, each as one object.

Nothing is deleted from the drive, and nothing waits for it.
"""

from dataclasses import replace

import structlog

from bottomless.model.manifest import Node
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord, StreamState, drives_under_way
from bottomless.model.tiers import Move
from bottomless_server.coordination.base import Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.delete_queue import copies_target
from bottomless_server.manifest.tree.core.events import Edit, LoseDrive
from bottomless_server.manifest.tree.core.planning import seal_node
from bottomless_server.stores.streams import deletes_key
from bottomless_server.tree.drive_loss import Lost, lose
from bottomless_server.tree.retention import Totals

log = structlog.get_logger(__name__)


def uses(record: StreamRecord, number: int) -> bool:
    """Whether a record says that something is under way on a drive, or was not looked at."""
    return number in drives_under_way(record) or number in record.unseen


async def give_up_uploads(context: Context, record: StreamRecord, number: int) -> None:
    """Take out of the record what is under way on a drive: step 1. It needs no task of the stream: where
    a takeover is due, such a task waits for the drive.

    Raises:
        NotFound, Unavailable
    """
    if record.state is not StreamState.ACTIVE or not uses(record, number):
        return
    due_at = context.time.latest() + context.settings.manifest_upload_deadline_ms
    queued = [
        Due(deletes_key(target.drive), target.member, due_at)
        for target in (copies_target(record, move) for move in record.moves if _is_on(move, number))
        if target.drive != number
    ]
    before = set(record.moves)

    def take_out(found: StreamRecord) -> StreamRecord:
        # The queue was fixed before the record was seen: a move that came since stays for the next try.
        ended = {move for move in found.moves if _is_on(move, number) and move in before}
        return replace(
            found,
            intents=tuple(one for one in found.intents if one.drive != number),
            quarantine=tuple(one for one in found.quarantine if one.drive != number),
            moves=tuple(move for move in found.moves if move not in ended),
            unseen=tuple(one for one in found.unseen if one != number),
        )

    left = await context.streams.update(record.stream_id, take_out, queued)
    if any(_is_on(move, number) for move in left.moves):
        await give_up_uploads(context, left, number)


async def lose_drive(context: Context, committer: Committer, number: int) -> Totals:
    """Put gaps in the place of all fragments on a drive: step 2; returns what was lost.

    Raises:
        NotFound, Unavailable, Corrupt
    """
    lost, more = Totals(), True
    while more:
        found = Lost(committer.keeper.root)

        async def work_out(_: StreamRecord, root: Node) -> Edit | None:
            nonlocal found
            descent = lose(root, number, context.new_uid, seal_node)
            found = await context.groups.descend(committer.record.tenant, root, descent)
            return LoseDrive(found) if found.lost.fragment_count else None

        await committer.edit(work_out)
        lost, more = lost.plus(found.lost), found.more
    if lost.fragment_count:
        _tell(committer.record.stream_id, number, lost)
    return lost


def _tell(stream_id: StreamId, number: int, lost: Totals) -> None:
    log.critical(
        "records were lost with a drive",
        stream_id=stream_id,
        drive=number,
        fragments=lost.fragment_count,
        records=lost.record_count,
    )


def _is_on(move: Move, number: int) -> bool:
    return number in (move.from_drive, move.to_drive)
