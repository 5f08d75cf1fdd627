"""Turns of commits: one at a time for each producer, and not so many that others find no place.

A turn may last long, since each part of a commit waits for room. A commit that waits for its turn
keeps in memory what its request names, so there is a bound for the process; and a smaller one for
a stream and for a producer, so that neither keeps the commits of all others out.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from bottomless.errors import Code, Unavailable
from bottomless.model.names import StreamId

_T = TypeVar("_T")

COUNT_MAX: Final = 1_000
STREAM_COUNT_MAX: Final = COUNT_MAX // 4
"""A stream has a quarter of all turns at most, as it has of the room of appends."""
PRODUCER_COUNT_MAX: Final = 8
"""A client that repeats what took too long, a few times; all but one of them are repeats."""


@dataclass(slots=True, eq=False)
class Turn:
    """The turn of one producer; every caller that has joined it leaves it."""

    stream_id: StreamId
    producer_id: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0
    """How many callers have the turn or wait for it."""


class Turns:
    """The turns of all commits of a process."""

    def __init__(self) -> None:
        self._turns: dict[tuple[StreamId, str], Turn] = {}
        self._by_stream: Counter[StreamId] = Counter()
        self._running: set[asyncio.Task[Any]] = set()

    async def take(
        self,
        stream_id: StreamId,
        producer_id: str,
        work: Callable[[], Awaitable[_T]],
        *,
        bounded: bool = True,
    ) -> _T:
        """Do work in the turn of a producer. It goes on when the caller leaves: one commit must not
        mix with its repeat. What ends commits, as a fence does, is not `bounded`.

        Raises:
            Unavailable: `overloaded`.
        """
        turn = self._join(stream_id, producer_id, bounded=bounded)
        task = asyncio.create_task(_locked(turn, work))
        self._running.add(task)
        task.add_done_callback(lambda task: self._ended(turn, task))
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """Return when nobody has a turn or waits for one."""
        await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, turn: Turn, task: asyncio.Task[Any]) -> None:
        self._leave(turn)
        self._running.discard(task)
        if not task.cancelled():
            # Looked at here, since nobody may be waiting for it any more.
            task.exception()

    def _join(self, stream_id: StreamId, producer_id: str, *, bounded: bool) -> Turn:
        key = (stream_id, producer_id)
        turn = self._turns.get(key) or Turn(stream_id, producer_id)
        if bounded:
            self._require_place(turn)
        turn.count += 1
        self._turns[key] = turn
        self._by_stream[stream_id] += 1
        return turn

    def _leave(self, turn: Turn) -> None:
        turn.count -= 1
        if not turn.count:
            del self._turns[turn.stream_id, turn.producer_id]
        self._by_stream[turn.stream_id] -= 1
        if not self._by_stream[turn.stream_id]:
            del self._by_stream[turn.stream_id]

    def _require_place(self, turn: Turn) -> None:
        for count, limit, whose in (
            (turn.count, PRODUCER_COUNT_MAX, " of this producer"),
            (self._by_stream[turn.stream_id], STREAM_COUNT_MAX, " of this stream"),
            (self._by_stream.total(), COUNT_MAX, ""),
        ):
            if count >= limit:
                raise Unavailable(
                    f"too many commits{whose} are under way",
                    code=Code.OVERLOADED,
                    retry_after_seconds=1,
                )


async def _locked(turn: Turn, work: Callable[[], Awaitable[_T]]) -> _T:
    async with turn.lock:
        return await work()
