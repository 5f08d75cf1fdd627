"""Reads and transactions that come together, as few exchanges with coordination.

A node that starts claims thousands of streams, each by a read and a transaction of its own. What
comes in one turn of the event loop goes together here: one read of all keys, one transaction over
all of them, which coordination syncs once. Who calls sees no difference: all keys are watched, each
caller decides by itself, and what one of them raises is nothing to the others.

What is different is who hears of a failure: of an exchange that got no answer the outcome is
unknown to all of its callers. So only calls belong here that are simply made again.

After a crash all that an exchange writes is in coordination, or nothing of it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from bottomless.guards import guard
from bottomless_server.coordination.base import (
    Changes,
    Coordination,
    CoordinationConflict,
    Decide,
    Room,
    Values,
)

T = TypeVar("T")
C = TypeVar("C")

JOINED_COUNT_MAX: Final = 64
"""Calls of one exchange: the store serves nobody else meanwhile."""
UNDER_WAY_COUNT_MAX: Final = 4
"""Exchanges of a kind at once; what comes meanwhile gathers for the next one. More than one, so
that a connection that hangs does not hold up all."""


class JoinedCalls:
    """The calls of coordination that streams are read and changed with. Those for a single key, and
    transactions without a bound, are joined; the others pass through."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._reads: _Line[str] = _Line(self._get)
        self._changes: _Line[_Change] = _Line(self._transact)

    async def get(self, redis_key: str) -> bytes | None:
        """Get the value, None if absent; the question is joined with others."""
        value: bytes | None = await self._reads.join(redis_key)
        return value

    async def get_many(self, redis_keys: Sequence[str]) -> list[bytes | None]:
        """Read several keys at one moment; `Coordination.get_many` tells more."""
        return await self._coordination.get_many(redis_keys)

    async def members(self, redis_key: str, after: bytes, limit: int) -> list[bytes]:
        """Members of an index in their order; `Coordination.members` tells more."""
        return await self._coordination.members(redis_key, after, limit)

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> T:
        """WATCH, read, decide, EXEC, joined with others; `Coordination.transact` tells more.

        `decide` may be asked again after a conflict of another caller's keys, too.
        """
        if room is not None:
            return await self._coordination.transact(redis_keys, decide, attempts, room)
        value: T = await self._changes.join(_Change(redis_keys, decide, attempts))
        return value

    async def _get(self, redis_keys: Sequence[str]) -> Sequence[Any]:
        return await self._coordination.get_many(redis_keys)

    async def _transact(self, changes: "Sequence[_Change]") -> Sequence[Any]:
        watched = list(dict.fromkeys(key for change in changes for key in change.redis_keys))
        attempts = min(change.attempts for change in changes)
        try:
            return await self._coordination.transact(
                watched, lambda values: _decided(changes, values), attempts
            )
        except CoordinationConflict as error:
            # Somebody writes one of these keys again and again, which is nothing to the others.
            return [error if len(changes) == 1 else _Again.ALONE] * len(changes)


class _Change(NamedTuple):
    redis_keys: Sequence[str]
    decide: Decide[Any]
    attempts: int


class _Again(Enum):
    """The outcome of a call that has to be made once more."""

    WITH_OTHERS = "with others"
    ALONE = "alone"


def _decided(changes: Sequence[_Change], values: Values) -> tuple[Changes, list[Any]]:
    """What all of these write, and the outcome of each: its value, or what it raised."""
    wanted, outcomes, written = list[Changes](), list[Any](), set[str]()
    for change in changes:
        if has_to_wait(change.redis_keys, written):
            outcomes.append(_Again.WITH_OTHERS)
            continue
        try:
            changed, value = change.decide({key: values[key] for key in change.redis_keys})
        except Exception as error:  # noqa: BLE001 it is that caller's, whatever it is
            outcomes.append(error)
            continue
        wanted.append(changed)
        written.update(changed.values)
        outcomes.append(value)
    return _together(wanted), outcomes


@guard("a change of a key that its exchange writes already")
def has_to_wait(redis_keys: Sequence[str], written: AbstractSet[str]) -> bool:
    """Whether a transaction has to see first what others of its exchange write."""
    return not written.isdisjoint(redis_keys)


def _together(wanted: Sequence[Changes]) -> Changes:
    return Changes(
        {key: value for one in wanted for key, value in one.values.items()},
        [due for one in wanted for due in one.queued],
        [member for one in wanted for member in one.members],
        [due for one in wanted for due in one.requeued],
        [due for one in wanted for due in one.settled],
    )


class _Waiting(NamedTuple, Generic[C]):
    call: C
    answer: "asyncio.Future[Any]"
    alone: bool = False


class _Line(Generic[C]):
    """Calls of one kind; there are as many as callers, who wait for them."""

    def __init__(self, exchange: Callable[[Sequence[C]], Awaitable[Sequence[Any]]]) -> None:
        """`exchange` gives the outcomes of calls in their order; what it raises is that of all."""
        self._exchange = exchange
        self._waiting: deque[_Waiting[C]] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._will_begin = False

    async def join(self, call: C) -> Any:
        """The value of a call. Who is cancelled leaves it: it is not made, or nobody hears of it."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(call, loop.create_future())
        self._waiting.append(waiting)
        if not self._will_begin:
            # At the end of this turn, so that all calls of the turn go together.
            self._will_begin = True
            loop.call_soon(self._begin)
        return await waiting.answer

    def _begin(self) -> None:
        self._will_begin = False
        while len(self._under_way) < UNDER_WAY_COUNT_MAX and (together := self._taken()):
            task = asyncio.create_task(self._make(together), name="joined calls")
            self._under_way.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._begin()

    def _taken(self) -> "list[_Waiting[C]]":
        taken = list[_Waiting[C]]()
        while self._waiting and len(taken) < JOINED_COUNT_MAX:
            if taken and (taken[0].alone or self._waiting[0].alone):
                break
            waiting = self._waiting.popleft()
            if not waiting.answer.done():
                taken.append(waiting)
        return taken

    async def _make(self, together: "Sequence[_Waiting[C]]") -> None:
        outcomes: Sequence[Any]
        try:
            outcomes = await self._exchange([waiting.call for waiting in together])
        except BaseException as error:  # noqa: BLE001 each caller raises it
            outcomes = [error] * len(together)
        for waiting, outcome in zip(together, outcomes, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(outcome, _Again):
                self._waiting.append(waiting._replace(alone=outcome is _Again.ALONE))
            elif isinstance(outcome, asyncio.CancelledError):
                waiting.answer.cancel()
            elif isinstance(outcome, BaseException):
                waiting.answer.set_exception(outcome)
            else:
                waiting.answer.set_result(outcome)
