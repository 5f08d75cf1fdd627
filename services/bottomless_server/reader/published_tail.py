"""The tail of a stream with an owner, for which object storage answers while no owner does.

Only what is published is answered so, and only after all nodes were asked: where an owner answers,
nothing is different, and costs nothing more. What lies in the tail is its owner's alone.

On the record's path: between owned_tail.py and whoever reads.
"""

from typing import Final

from cachetools import TTLCache

from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import StreamId
from bottomless_server.protocol.tail import Bounds, Located
from bottomless_server.reader.core.without_owner import bounds_without_owner
from bottomless_server.reader.owned_tail import OwnedTail
from bottomless_server.reader.roots import Roots
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.reader.tail import NoOwnerAnswers, TailAnswer, TailTime
from bottomless_server.runtime.base.on_loop import loop_time

SLOW_SECONDS: Final = 1.0
"""Nodes that let one wait for so long, to say nothing in the end, are not asked with every page."""
_LEFT_ALONE_SECONDS: Final = 5.0
_LEFT_ALONE_COUNT_MAX: Final = 10_000


class PublishedTail:
    def __init__(self, owned: OwnedTail, roots: Roots) -> None:
        self._owned = owned
        self._roots = roots
        self._left_alone: TTLCache[StreamId, None] = TTLCache(
            _LEFT_ALONE_COUNT_MAX, _LEFT_ALONE_SECONDS, timer=loop_time
        )
        """Streams of which no node answers, and each lets one wait."""

    async def bounds(self, stream: StreamFacts) -> Bounds:
        """What the owner says of the stream now.

        Raises:
            NoOwnerAnswers
        """
        return await self._owned.bounds(stream)

    async def chunks(
        self,
        stream: StreamFacts,
        first_offset: int,
        size: int,
        wait_ms: int = 0,
        end: int = OFFSET_MAX + 1,
    ) -> TailAnswer:
        """Chunks from the one that holds `first_offset` on, as the owner gives them. Where none answers
        and the offset is published, it says that it has `moved`, and that the end is not known.

        Raises:
            NoOwnerAnswers: none does, and the offset is not published.
            NotFound: the stream is gone.
        """
        if self._left_alone and stream.stream_id in self._left_alone:
            answer = await self._alone(stream, first_offset)
            if answer is not None:
                return answer
        asked_at = loop_time()
        try:
            answer = await self._owned.chunks(stream, first_offset, size, wait_ms, end)
        except NoOwnerAnswers:
            if loop_time() - asked_at >= SLOW_SECONDS:
                self._left_alone[stream.stream_id] = None
            alone = await self._alone(stream, first_offset)
            if alone is None:
                raise
            return alone
        if self._left_alone:
            self._left_alone.pop(stream.stream_id, None)
        return answer

    async def _alone(self, stream: StreamFacts, first_offset: int) -> TailAnswer | None:
        """Answer without the owner; None where it alone may answer."""
        stream_id = stream.stream_id
        state = await self._roots.refreshed(stream_id)
        bounds = bounds_without_owner(first_offset, state, self._owned.heard(stream_id))
        return None if bounds is None else TailAnswer(bounds, moved=True, end_known=False)

    async def time_of(self, stream: StreamFacts, offset: int) -> TailTime:
        """When the record at an offset was committed, or the first one after it, as the owner says.

        Raises:
            NoOwnerAnswers
        """
        return await self._owned.time_of(stream, offset)

    async def locate(self, stream: StreamFacts, timestamp: int) -> Located:
        """The first local chunk of `timestamp` or later, as the owner says.

        Raises:
            NoOwnerAnswers
        """
        return await self._owned.locate(stream, timestamp)
