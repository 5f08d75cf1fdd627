"""Waiting for leaderless streams to grow: one question for all of them, however many wait.

Nobody tells a reader of a commit. So while anybody waits, the records of all those streams are asked
for together, again and again; while nobody waits, nothing is asked.
"""

import asyncio
from typing import NamedTuple

from bottomless.errors import StoreError
from bottomless.model.names import StreamId
from bottomless_server.leaderless.tail import Tail, TailState
from bottomless_server.reader.leaderless.tail_records import Found, TailRecords
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.on_loop import loop_time


class _Waiter(NamedTuple):
    """One who waits for a tail to be another one than this."""

    epoch: int
    next_offset: int
    told: "asyncio.Future[Found]"

    def is_news(self, found: Found) -> bool:
        """Whether something has become of the tail. An answer may be older than what was waited
        from, so less is no news: a store that went back is found by others."""
        tail = found.tail
        if not isinstance(tail, Tail) or tail.state is TailState.CLOSED:
            return True
        return (tail.epoch, tail.next_offset) > (self.epoch, self.next_offset)


class TailPoll:
    def __init__(self, records: TailRecords, interval_ms: int) -> None:
        self._records = records
        self._interval = interval_ms / 1000
        self._waiting: dict[StreamId, set[_Waiter]] = {}
        self._known: dict[StreamId, Found] = {}
        self._polling: asyncio.Task[None] | None = None
        self._due_at = 0.0
        self.poll_count = 0
        """Questions so far, each for all streams that were waited at."""
        self.wake_count = 0
        """Waiters that were told of something."""

    @property
    def stream_count(self) -> int:
        """Streams that somebody waits at."""
        return len(self._waiting)

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """What asks; None while nobody waits."""
        return self._polling

    async def wait(self, stream_id: StreamId, last: Tail, seconds: float) -> Found | None:
        """What becomes of a tail that was `last` when it was looked at; None if nothing does in time.

        Raises:
            Unavailable: `coordination-regressed`, or coordination does not answer.
        """
        waiter = _Waiter(last.epoch, last.next_offset, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(stream_id, set()).add(waiter)
        if self._polling is None:
            self._due_at = loop_time() + self._interval
            self._polling = asyncio.create_task(endless("tail-poll", self._poll))
        try:
            async with asyncio.timeout(seconds):
                return await waiter.told
        except TimeoutError:
            return None
        finally:
            self._leave(stream_id, waiter)

    async def aclose(self) -> None:
        """Ask no more; who still waits is told nothing."""
        if self._polling is not None:
            await end_tasks(self._polling)

    def _leave(self, stream_id: StreamId, waiter: _Waiter) -> None:
        if waiter.told.done() and not waiter.told.cancelled():
            # Of who was cancelled at that very moment nobody else asks for it.
            waiter.told.exception()
        waiting = self._waiting[stream_id]
        waiting.discard(waiter)
        if not waiting:
            del self._waiting[stream_id]
            self._known.pop(stream_id, None)

    async def _poll(self) -> float | None:
        """Ask when it is time; returns how long to pause, None when nobody waits any more."""
        left = self._due_at - loop_time()
        if self._waiting and left > 0:
            return left
        if not self._waiting:
            self._polling = None
            return None
        # From the question on, not from its answer: who waits is told as soon as may be.
        self._due_at = loop_time() + self._interval
        self.poll_count += 1
        try:
            found = await self._records.load(list(self._waiting), self._known)
        except StoreError as error:
            self._fail(error)
            return 0
        for stream_id, one in found.items():
            self._tell(stream_id, one)
        return max(self._due_at - loop_time(), 0)

    def _tell(self, stream_id: StreamId, found: Found) -> None:
        waiting = self._waiting.get(stream_id)
        if waiting is None:
            return
        self._known[stream_id] = found
        for waiter in waiting:
            if waiter.is_news(found) and not waiter.told.done():
                self.wake_count += 1
                waiter.told.set_result(found)

    def _fail(self, error: StoreError) -> None:
        for waiting in self._waiting.values():
            for waiter in waiting:
                if not waiter.told.done():
                    waiter.told.set_exception(error)
