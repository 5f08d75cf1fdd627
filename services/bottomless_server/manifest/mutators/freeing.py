"""Finish a takeover whose fence is in the record: adopt what is durable, then the gap.

Whoever touches the stream next does it, in whichever process: the operation, a mutator that
takes the stream up, a new session of an uploader. In this order; after a crash at any step
the record says that the gap is due, nobody can claim the stream, and the same again goes on:

1. What is registered is published, as always.
2. Fragments that are whole in the bucket under live intents, and go on from the end without
   a hole, are registered and published like those of an uploader.
3. One EXEC names the root with the gap up to `reserved_next`, and frees the stream. Before it
   that root is an object which nobody names, and of an epoch that exists.

What stays lost: what was not in the bucket when it was looked at, also if its upload ends
later; what lies after a hole; what a session gave up before, since its deletion may be under
way; and what does not verify.
"""

from typing import Final

import structlog

from bottomless.errors import Unavailable
from bottomless.guards import guard
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import Node
from bottomless.model.stream import StreamRecord, gap_due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import Edit
from bottomless_server.manifest.tree.core.rebuild_decision import TreeEnd
from bottomless_server.manifest.tree.core.takeovers import end_of_takeover, going_on
from bottomless_server.manifest.tree.resolver import look_under

log = structlog.get_logger(__name__)

_RUN_COUNT_MAX: Final = 64
"""Fragments that are adopted by one root; the next ones by another."""


async def free(context: Context, committer: Committer) -> None:
    """Do what a takeover has left to do, if there is any; afterwards nothing is due.

    Raises:
        NotFound, Unavailable, Corrupt: not now; the same again is right.
    """
    if gap_due(committer.record) is None:
        return
    await _publish_waiting(committer)
    while gap_due(committer.record) is not None and (run := await durable_run(context, committer)):
        refused = await committer.register(None, run)
        if refused:
            log.warning("fragments of a lost home cannot be adopted", count=len(refused))
        await _publish_waiting(committer)
        log.info("adopted fragments", stream_id=committer.record.stream_id, count=len(run))
        if refused:
            break
    await committer.edit(_gap)


async def _gap(record: StreamRecord, _: Node) -> Edit | None:
    return end_of_takeover(record)


async def _publish_waiting(committer: Committer) -> None:
    await committer.flush()
    if committer.wake_at is not None:
        # The gap would cover what waits: it has to be published, or refused, before.
        raise Unavailable("fragments of the lost home are not published yet")


@guard("what a takeover adopts")
async def durable_run(context: Context, committer: Committer) -> list[FragmentInfo]:
    """The run from the end of the manifest on that lies in the bucket under live intents."""
    record, end = committer.record, TreeEnd.of(committer.keeper.root)
    run: list[FragmentInfo] = []
    while len(run) < _RUN_COUNT_MAX:
        here = [intent for intent in record.intents if intent.first_offset == end.next_offset]
        found = [(await look_under(context, record, intent)).fragment for intent in here]
        fragment = going_on(record, end, [one for one in found if one is not None])
        if fragment is None:
            break
        run.append(fragment)
        end = end.after(fragment)
    return run
