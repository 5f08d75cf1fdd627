"""Calls that block, of which those that come together share hops into threads and back.

A hop costs more than many a call. So what comes in one turn of the loop is dealt out evenly among
the threads, and what comes while all of them are busy waits for the next one. The outcomes of a
share come back in one turn of the loop: who goes on with them meets again there.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Call(NamedTuple):
    call: Callable[[], Any]
    answer: "asyncio.Future[Any]"


class SharedHops:
    """Makes calls in at most `thread_count` threads of an executor; as many wait as there are callers."""

    def __init__(self, executor: Executor, thread_count: int) -> None:
        self._executor = executor
        self._thread_count = thread_count
        self._waiting: deque[_Call] = deque()
        self._under_way = 0
        self._will_deal = False

    async def call(self, call: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """What a call that blocks returns, or raises.

        Who is cancelled leaves the call: if it has begun it goes on, and else it is not made.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._waiting.append(_Call(lambda: call(*arguments), answer))
        if not self._will_deal:
            self._will_deal = True
            loop.call_soon(self._deal)
        return await answer

    def _deal(self) -> None:
        self._will_deal = False
        while self._waiting and self._waiting[0].answer.done():
            self._waiting.popleft()
        # By all threads, not by the free ones: the one that is free just now must not take it all.
        count = -(-len(self._waiting) // self._thread_count)
        while self._waiting and self._under_way < self._thread_count:
            self._begin([self._waiting.popleft() for _ in range(min(count, len(self._waiting)))])

    def _begin(self, share: Sequence[_Call]) -> None:
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._executor, _make, share)
        except Exception as error:  # noqa: BLE001 no thread takes it, so nothing of it is done
            _settle(share, [_Raised(error)] * len(share))
            return
        self._under_way += 1
        running.add_done_callback(lambda done: self._end(share, done))

    def _end(self, share: Sequence[_Call], done: "asyncio.Future[list[Any]]") -> None:
        self._under_way -= 1
        # Cancelled where its executor was shut down before a thread took it.
        never = _Raised(asyncio.CancelledError())
        _settle(share, [never] * len(share) if done.cancelled() else done.result())
        self._deal()


class _Raised(NamedTuple):
    error: BaseException


def _settle(share: Sequence[_Call], outcomes: Sequence[Any]) -> None:
    for call, outcome in zip(share, outcomes, strict=True):
        if call.answer.done():
            continue
        if not isinstance(outcome, _Raised):
            call.answer.set_result(outcome)
        elif isinstance(outcome.error, asyncio.CancelledError):
            call.answer.cancel()
        else:
            call.answer.set_exception(outcome.error)


def _make(share: Sequence[_Call]) -> list[Any]:
    """The outcomes of calls, one after the other; in a thread."""
    return [_outcome(call) for call in share]


def _outcome(call: _Call) -> Any:
    if call.answer.cancelled():
        return None
    try:
        return call.call()
    except BaseException as error:  # noqa: BLE001 it is that caller's, whatever it is
        return _Raised(error)
