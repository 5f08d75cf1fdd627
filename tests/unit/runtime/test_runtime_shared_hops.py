"""Calls that come together share hops into threads, and each has an outcome of its own."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from bottomless_server.runtime.base.shared_hops import SharedHops

THREADS = 3


class CountedThreads(ThreadPoolExecutor):
    hops = 0

    def submit(self, *given: Any, **named: Any) -> "Future[Any]":
        self.hops += 1
        return super().submit(*given, **named)


@pytest.fixture
def threads() -> Iterator[CountedThreads]:
    with CountedThreads(THREADS) as made:
        yield made


def doubled(number: int) -> int:
    return 2 * number


async def test_calls_of_one_turn_take_one_hop_for_each_thread(threads: CountedThreads) -> None:
    hops = SharedHops(threads, THREADS)
    told = await asyncio.gather(*(hops.call(doubled, number) for number in range(20)))
    assert told == [doubled(number) for number in range(20)]
    assert threads.hops == THREADS
    assert await hops.call(doubled, 3) == 6
    assert threads.hops == THREADS + 1


async def test_what_comes_while_all_threads_are_busy_waits_and_shares_the_next_hop(
    threads: CountedThreads,
) -> None:
    hops, go_on = SharedHops(threads, 1), threading.Event()
    first = asyncio.create_task(hops.call(go_on.wait))
    await asyncio.sleep(0.0)
    await asyncio.sleep(0.0)
    later = [asyncio.create_task(hops.call(doubled, number)) for number in range(9)]
    await asyncio.sleep(0.0)
    assert threads.hops == 1
    go_on.set()
    assert await asyncio.gather(*later) == [doubled(number) for number in range(9)]
    assert await first
    assert threads.hops == 2


async def test_outcomes_of_a_share_come_in_one_turn(threads: CountedThreads) -> None:
    hops, came = SharedHops(threads, 1), list[int]()
    turn = 0

    async def wait_for(number: int) -> None:
        await hops.call(doubled, number)
        came.append(turn)

    calls = [asyncio.create_task(wait_for(number)) for number in range(5)]
    while not all(call.done() for call in calls):
        turn += 1
        await asyncio.sleep(0)
    assert len(set(came)) == 1


async def test_what_one_call_raises_is_nothing_to_the_others(threads: CountedThreads) -> None:
    hops = SharedHops(threads, 1)
    told = await asyncio.gather(
        *(hops.call(one, *given) for one, given in _mixed()), return_exceptions=True
    )
    assert [type(one) for one in told] == [int, ZeroDivisionError, int]


def _mixed() -> list[tuple[Callable[..., Any], tuple[int, ...]]]:
    return [(doubled, (1,)), (lambda: 1 // 0, ()), (doubled, (2,))]


async def test_who_leaves_before_it_begins_has_nothing_done(threads: CountedThreads) -> None:
    hops, go_on, done = SharedHops(threads, 1), threading.Event(), list[int]()
    first = asyncio.create_task(hops.call(go_on.wait))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    left, stays = (asyncio.create_task(hops.call(done.append, number)) for number in (1, 2))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait({left})
    go_on.set()
    await asyncio.gather(first, stays)
    assert left.cancelled()
    assert done == [2]


async def test_threads_that_take_nothing_are_an_error_of_each_call(
    threads: CountedThreads,
) -> None:
    threads.shutdown()
    hops = SharedHops(threads, THREADS)
    told = await asyncio.gather(*(hops.call(doubled, 1) for _ in range(4)), return_exceptions=True)
    assert [type(one) for one in told] == [RuntimeError] * 4


async def test_threads_that_end_before_a_share_begins_cancel_its_callers() -> None:
    class Ending(Executor):
        def submit(self, *_: Any, **__: Any) -> "Future[Any]":
            future: Future[Any] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    hops = SharedHops(Ending(), THREADS)
    calls = [asyncio.create_task(hops.call(doubled, 1)) for _ in range(2)]
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)
