"""Read ranges of an object ahead of their decoder, in order, some at a time.

A store answers after tens of milliseconds, so the next ranges are under way while one is decoded.
What is held is bounded: `ahead` ranges beside the one that is being decoded.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Final, TypeVar

T = TypeVar("T")

THREAD_COUNT: Final = 16
"""Threads of one worker process, for all its tasks; further ranges wait for their turn."""


def prefetched(reads: Iterable[Callable[[], T]], ahead: int) -> Iterator[T]:
    """Give the results of the reads in order.

    Up to `ahead` of them are made before they are wanted.

    A read that fails raises when its turn comes: what was given before is good. If the caller stops
    early, only the reads that have begun still run to their end.
    """
    if ahead == 0:
        for read in reads:
            yield read()
        return
    under_way: deque[Future[T]] = deque()
    try:
        for read in reads:
            under_way.append(_threads().submit(read))
            if len(under_way) > ahead:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for future in under_way:
            future.cancel()


@cache
def _threads() -> ThreadPoolExecutor:
    # Made in the worker that needs it: threads do not come along when Spark forks workers.
    return ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="bottomless-read")
