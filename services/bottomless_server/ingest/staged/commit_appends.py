"""Append one part of a commit of staged batches, and compare it with what is stored.

On the record's path: after batches.py or object_batches.py, before local/appender.py; asked by commits.py.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final

from bottomless.errors import NotFound
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.producers.commit_parts import place_in, progress
from bottomless_server.ingest.producers.commit_plan import CommitPlan, StagedBatch
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import Conditions
from bottomless_server.ingest.records.intake import crc_of_staged, take_staged
from bottomless_server.ingest.staged.kept import KeptBatches

HoldRoom = Callable[[StreamId, int, float], AbstractAsyncContextManager[None]]
"""Holds room for so many bytes of a stream within a block, and waits so many seconds for it."""
_ROOM_SECONDS: Final = 30.0
"""Longer than small appends wait: a part needs much room at once. It holds none meanwhile, and all
that waits before it is being written."""


class CommitAppends:
    """Appends parts of commits; each is in memory as a whole only while it is under way."""

    def __init__(self, room: HoldRoom) -> None:
        self._room = room

    async def append(
        self,
        kept: KeptBatches,
        appender: LocalAppender,
        conditions: Conditions,
        part: Sequence[StagedBatch],
    ) -> Appended:
        async with self._room_of(appender, part):
            frames = await kept.read(appender.stream_id, part)
            return await appender.append(take_staged(frames, conditions))

    @guard("the comparison of a plan with what is stored")
    async def is_followed(
        self, kept: KeptBatches, appender: LocalAppender, plan: CommitPlan
    ) -> bool:
        """Whether no part that is stored, as far as that is remembered, differs from what the plan
        has in its place.

        Raises:
            Corrupt, OSError: nobody can say what the plan has there.
            StoreError: there is no room for it now, or the store does not answer.
        """
        stream_id = appender.stream_id
        _, stored = progress(plan, appender.tracking)
        async with AsyncExitStack() as held:
            try:
                pinned = kept.pinned(stream_id, plan.producer_id, plan.staged_ids)
                found = await held.enter_async_context(pinned)
                by_id = {batch.staged_id: batch for batch in found}
            except NotFound:
                # Nothing is appended by it any more: the client is told that the rest is lost.
                return True
            for one in stored:
                part = [by_id[staged_id] for staged_id in plan.parts[place_in(plan, one)]]
                if sum(batch.record_count for batch in part) != one.record_count:
                    return False
                async with self._room_of(appender, part):
                    frames = await kept.read(stream_id, part)
                    if crc_of_staged(frames) != one.body_crc:
                        return False
        return True

    def _room_of(
        self, appender: LocalAppender, part: Sequence[StagedBatch]
    ) -> AbstractAsyncContextManager[None]:
        return self._room(appender.stream_id, sum(batch.size for batch in part), _ROOM_SECONDS)
