"""Waiting at the end of streams: one question to the owner for each stream, however many wait.

What comes back is kept for a while, within one budget of bytes for all streams, so that
those who follow and come a little later find it here. Committed chunks never change;
only the bounds beside them grow, and the newest that were heard go with every answer.

On the record's path: between the tail that is asked and page_reader.py.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import replace
from typing import Final

from bottomless.errors import Overloaded
from bottomless.model.names import StreamId
from bottomless_server.protocol.tail import Bounds
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.reader.tail import Tail, TailAnswer
from bottomless_server.runtime.base.single_flight import SingleFlight

FLIGHT_MS: Final = 20_000
"""How long one question waits at the owner; who waits longer asks again."""
RUN_SIZE: Final = 1024 * 1024
"""Bytes of chunks that one question brings: what a page has if nothing is said."""
LINGER_SECONDS: Final = 1.0
"""A caller that waits again and again, as between two heartbeats, finds the question still there."""
_RUN_COUNT_MAX: Final = 16
"""Answers kept for one stream."""
_OVERHEAD: Final = 1024
"""Bytes of our own structures for each answer that is kept."""
_PAUSE_SECONDS: Final = 0.05
"""Before the same is asked again of an owner that answers early and has nothing."""


class SharedTail:
    def __init__(self, tail: Tail, *, keep_size: int, stream_count_max: int) -> None:
        self._tail = tail
        self._keep_size = keep_size
        self._stream_count_max = stream_count_max
        self._flights: SingleFlight[tuple[StreamId, int], TailAnswer] = SingleFlight(LINGER_SECONDS)
        self._recent: OrderedDict[StreamId, _Recent] = OrderedDict()
        self._kept_size = 0

    @property
    def flight_count(self) -> int:
        """Questions that wait at owners now."""
        return len(self._flights)

    @property
    def joined_count(self) -> int:
        """Readers that wait for those questions."""
        return self._flights.joined_count

    @property
    def kept_size(self) -> int:
        return self._kept_size

    async def aclose(self) -> None:
        """Give up all questions."""
        await self._flights.aclose()

    def is_asked(self, stream: StreamFacts, position: int) -> bool:
        """Whether a question about this position waits at the owner."""
        return (stream.stream_id, position) in self._flights

    async def chunks(self, stream: StreamFacts, position: int, seconds: float) -> TailAnswer | None:
        """Chunks from the one that holds `position` on: what is kept here, or comes in time.

        None if nothing came. For those who follow: others have a right to ask the owner.

        Raises:
            Unavailable, NotFound, Overloaded
        """
        recent = self._recent.get(stream.stream_id)
        if recent is not None and (kept := recent.at(position)) is not None:
            self._recent.move_to_end(stream.stream_id)
            return kept
        return await self.wait(stream, position, seconds)

    async def wait(self, stream: StreamFacts, position: int, seconds: float) -> TailAnswer | None:
        """What the owner answers about `position` as soon as that is not the end any more.

        None if the time was over first. A question on its way is joined: it cannot miss what
        was committed before the caller came, since it has no answer yet.

        Raises:
            Unavailable, NotFound, Overloaded
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        name = (stream.stream_id, position)
        while True:
            if name not in self._flights and len(self._flights) >= self._stream_count_max:
                raise Overloaded("too many streams are waited for at once", retry_after_seconds=1)
            began = loop.time()
            try:
                async with asyncio.timeout_at(ends):
                    answer = await self._flights.join(name, lambda: self._fly(stream, position))
            except TimeoutError:
                return None
            if answer.data or answer.moved or answer.bounds.committed_next != position:
                return answer
            if loop.time() - began < _PAUSE_SECONDS:
                await asyncio.sleep(_PAUSE_SECONDS)
            if loop.time() >= ends:
                return None

    async def _fly(self, stream: StreamFacts, position: int) -> TailAnswer:
        answer = await self._tail.chunks(stream, position, RUN_SIZE, FLIGHT_MS)
        if answer.end_known:
            self._keep(stream.stream_id, answer)
        return answer

    def _keep(self, stream_id: StreamId, answer: TailAnswer) -> None:
        recent = self._recent.get(stream_id)
        if recent is not None and recent.bounds.epoch != answer.bounds.epoch:
            self._drop(stream_id)
            recent = None
        if recent is not None and answer.bounds.committed_next >= recent.bounds.committed_next:
            recent.bounds = answer.bounds
        if not answer.data or len(answer.data) > self._keep_size:
            return
        if recent is None:
            recent = self._recent[stream_id] = _Recent(answer.bounds)
        self._recent.move_to_end(stream_id)
        self._kept_size += recent.add(answer)
        while self._kept_size > self._keep_size:
            oldest_id, oldest = next(iter(self._recent.items()))
            self._kept_size -= oldest.drop_oldest()
            if oldest.size == 0:
                del self._recent[oldest_id]

    def _drop(self, stream_id: StreamId) -> None:
        self._kept_size -= self._recent.pop(stream_id).size


class _Recent:
    """The last answers about one stream."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.size = 0
        self._runs: deque[TailAnswer] = deque()

    def at(self, position: int) -> TailAnswer | None:
        for run in reversed(self._runs):
            if run.first_offset <= position < run.next_offset:
                return replace(run, bounds=self.bounds)
        return None

    def add(self, run: TailAnswer) -> int:
        """Keep an answer; returns by how many bytes all that is kept of the stream grew."""
        before = self.size
        self._runs.append(run)
        self.size += len(run.data) + _OVERHEAD
        if len(self._runs) > _RUN_COUNT_MAX:
            self.drop_oldest()
        return self.size - before

    def drop_oldest(self) -> int:
        """Forget the oldest answer; returns its bytes."""
        size = len(self._runs.popleft().data) + _OVERHEAD
        self.size -= size
        return size
