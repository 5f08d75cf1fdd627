"""Store what a consumer commits: one EXEC, made again where its reply was lost.

After a crash the commit is stored or it is not; the consumer that heard nothing makes it again.
"""

from bottomless.errors import Code, NotFound, WrongOffset
from bottomless.model.consumer import StoredOffset
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import CoordinationUnknown
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.once_more import once_more_on_condition
from bottomless_server.manifest.consumers.core.consumers import Commit, commit
from bottomless_server.stores.consumers import ConsumerOffsets, room_for
from bottomless_server.stores.groups import Claim


class ConsumerCommits:
    """The commits of all consumers. Holds no state of its own."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._offsets = ConsumerOffsets(context.coordination, context.served)

    async def commit(
        self, record: StreamRecord, asked: Commit, claim: Claim | None = None
    ) -> tuple[StoredOffset, bool]:
        """What is stored then, and whether it is other than before. `claim` says as which member of
        a consumer group it is asked.

        Raises:
            Overloaded: `quota-exceeded`: the consumer is new, and there are too many.
            Conflict, WrongOffset: as the commit says.
            NotFound: there is no such stream any more.
            Unavailable: `coordination-regressed`: nor any other.
        """
        stream_id, consumer, now = record.stream_id, asked.consumer, self._context.clock()
        changed, tried = [True], list[StoredOffset]()

        def decide(stored: StoredOffset | None) -> StoredOffset:
            if stored is not None and stored in tried:
                # The attempt whose reply was lost did arrive.
                return stored
            after = commit(stored, asked, now)
            changed[:], tried[:] = [after != stored], [after]
            return after

        known = await self._offsets.find(stream_id, consumer)
        room = room_for(stream_id, consumer, self._context.settings.manifest_consumer_count_max)
        sentence = "the stream has as many consumers as it may; delete one that is not used"
        async with self._context.quotas.entering(room, sentence, is_in=known is not None):
            try:
                try:
                    stored = await self._offsets.change(
                        stream_id, consumer, decide, now, room, claim
                    )
                except CoordinationUnknown as lost:
                    # The same again is the same: it finds what the first attempt stored, or stores it.
                    again = self._offsets.change(stream_id, consumer, decide, now, room, claim)
                    stored = await once_more_on_condition(lost, again)
                    changed[:] = [True]
            except WrongOffset as error:
                self._context.counts.groups.fenced += error.code is Code.CONSUMER_FENCED
                raise
            except NotFound:
                # A stream that was found a moment ago was not deleted, if all streams are gone.
                await self._context.streams.check_generation()
                raise
        assert stored is not None
        return stored, changed[0]
