"""Keep what is whole in the bucket, before a gap is put at the end of a manifest.

A gap says that nothing is stored for its offsets, and nothing ever will be. So whoever is about to
publish one first publishes what stands before it and is durable already. In this order; after a
crash at any step the record has no gap yet, and the same again goes on:

1. What is registered is published, as always. Where a rebuild could not look at a drive, it is looked
   at now (`unseen.py`).
2. Fragments that are whole in the bucket under live intents, and go on from the end without
   a hole, are registered and published like those of an uploader.
3. One EXEC names the root with the gap, if the manifest still ends where that was looked at. Where
   somebody published more meanwhile, it is looked at once more, since what stood after a hole then
   may go on from the end now.

What stays lost: what was not in the bucket when it was looked at, also if its upload ends
later; what lies after a hole; what a session gave up before, since its deletion may be under
way; and what does not verify.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from bottomless.errors import Outcome, Unavailable
from bottomless.guards import guard
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.manifest import Node
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.unseen import look_everywhere
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import Edit
from bottomless_server.manifest.tree.core.rebuild_decision import TreeEnd
from bottomless_server.manifest.tree.core.takeovers import going_on
from bottomless_server.manifest.tree.resolver import look_under

log = structlog.get_logger(__name__)

_RUN_COUNT_MAX: Final = 64
"""Fragments that are adopted by one root; the next ones by another."""
_ATTEMPT_COUNT: Final = 16
"""More than all intents that a stream may have need, with some that others take meanwhile."""

FindGap = Callable[[StreamRecord, Node], Awaitable[Edit | None]]
"""Says which gap is due at the end of this manifest; None where none is (any more)."""


async def publish_gap(
    context: Context, committer: Committer, find: FindGap, end_max: int = OFFSET_MAX + 1
) -> None:
    """Publish the gap that `find` names, after all that is durable before it; afterwards none is due.

    Only fragments that end at `end_max` or below are adopted.

    Raises:
        NotFound, Unavailable, Corrupt: not now; the same again is right.
    """
    for _ in range(_ATTEMPT_COUNT):
        await _publish_waiting(committer)
        record, root = committer.record, committer.keeper.root
        if await find(record, root) is None:
            return
        # Once more after what was found is published: there may have been more than fits at once.
        await look_everywhere(context, committer)
        if run := await durable_run(context, committer, end_max):
            # Also where some were refused no gap follows yet: they are looked for once more, and
            # what is not to be had any more is not found then.
            await register_run(committer, run)
            await _publish_waiting(committer)
        elif await _edit_at(committer, root.next_offset, find):
            return
    raise Unavailable("others keep changing the manifest", outcome=Outcome.UNKNOWN)


async def register_run(committer: Committer, run: Sequence[FragmentInfo]) -> None:
    """Register durable fragments that follow each other, up to the first that is refused.

    The refusal of one is that of all it comes with: then each is registered by itself, and is
    published before the next one, so that none waits for room.

    Raises:
        NotFound, Unavailable: not now; the same again is right.
    """
    refused = await committer.register(None, run)
    count = len(run)
    if refused:
        count = await _count_registered(committer, run)
        log.warning("durable fragments are refused", count=len(run) - count)
    if count:
        log.info("adopted fragments", stream_id=committer.record.stream_id, count=count)


async def _count_registered(committer: Committer, run: Sequence[FragmentInfo]) -> int:
    for count, fragment in enumerate(run):
        if await committer.register(None, [fragment]):
            return count
        await committer.flush()
    return len(run)


async def _edit_at(committer: Committer, end: int, find: FindGap) -> bool:
    """Publish the gap; False where the manifest does not end there any more."""

    async def find_here(record: StreamRecord, root: Node) -> Edit | None:
        if root.next_offset != end:
            raise _Moved
        return await find(record, root)

    try:
        await committer.edit(find_here)
    except _Moved:
        return False
    return True


async def _publish_waiting(committer: Committer) -> None:
    await committer.flush()
    if committer.wake_at is not None:
        # The gap would cover what waits: it has to be published, or refused, before.
        raise Unavailable("fragments that stand before the gap are not published yet")


@guard("what is adopted before a gap")
async def durable_run(context: Context, committer: Committer, end_max: int) -> list[FragmentInfo]:
    """The run from the end of the manifest on that lies in the bucket under live intents."""
    record, end = committer.record, TreeEnd.of(committer.keeper.root)
    run: list[FragmentInfo] = []
    while len(run) < _RUN_COUNT_MAX:
        here = [intent for intent in record.intents if intent.first_offset == end.next_offset]
        found = [(await look_under(context, record, intent)).fragment for intent in here]
        fitting = [one for one in found if one is not None and one.next_offset <= end_max]
        fragment = going_on(record, end, fitting)
        if fragment is None:
            break
        run.append(fragment)
        end = end.after(fragment)
    return run


class _Moved(Exception):
    """The manifest ends elsewhere than where durable fragments were looked for."""
