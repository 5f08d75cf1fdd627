"""Read many objects for one consumer, in order, some of them ahead of it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from bottomless_server.runtime.base.end import end_tasks

W = TypeVar("W")
R = TypeVar("R")


class AheadBounds(NamedTuple):
    """What may be read, or wait for its consumer, at a time. One read always may."""

    count_max: int
    """1: each is read when the consumer comes to it."""
    size_max: int


@asynccontextmanager
async def reads_ahead(
    read: Callable[[W], Coroutine[Any, Any, R]],
    wanted: Sequence[W],
    bounds: AheadBounds,
    size_of: Callable[[W], int] = lambda _: 0,
) -> AsyncIterator[AsyncIterator[R]]:
    """Read all of `wanted`; yields an iterator of the results, in order.

    Leaving the block ends what is still being read. What a read raises is raised when the consumer
    comes to it.
    """
    in_flight: deque[tuple[int, asyncio.Task[R]]] = deque()

    async def one_by_one() -> AsyncIterator[R]:
        for one in wanted:
            yield await read(one)

    async def results() -> AsyncIterator[R]:
        begun = held = 0
        while True:
            while begun < len(wanted):
                size = size_of(wanted[begun])
                full = len(in_flight) >= bounds.count_max or held + size > bounds.size_max
                if full and in_flight:
                    break
                in_flight.append((size, asyncio.create_task(read(wanted[begun]))))
                begun, held = begun + 1, held + size
            if not in_flight:
                return
            size, task = in_flight[0]
            result = await task
            in_flight.popleft()
            yield result
            held -= size

    try:
        # A single read at a time needs no task, and so no loop.
        yield one_by_one() if bounds.count_max == 1 else results()
    finally:
        if in_flight:
            await end_tasks(*(task for _, task in in_flight))
