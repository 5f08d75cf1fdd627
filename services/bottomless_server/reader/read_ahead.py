"""Read ahead of one consumer, in order, within a budget of bytes.

On the record's path: after core/locator.py said which fragments a page needs, before
page_reader.py cuts their chunks to the page.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from bottomless_server.reader.core.window import Sized, Window
from bottomless_server.runtime.base.end import end_tasks

W = TypeVar("W", bound=Sized)
R = TypeVar("R")


@asynccontextmanager
async def read_ahead(
    get: Callable[[W], Coroutine[Any, Any, R]], wanted: Iterable[W], budget: int
) -> AsyncIterator[AsyncIterator[R]]:
    """Fetch `wanted` ahead of the consumer; yields an iterator of the results, in order.

    Leaving the block cancels what is still in flight. A failed fetch is raised when the
    consumer reaches it, not before: what came earlier is still good.
    """
    window = Window(wanted, budget)
    in_flight: deque[asyncio.Task[R]] = deque()

    async def results() -> AsyncIterator[R]:
        while True:
            in_flight.extend(asyncio.create_task(get(item)) for item in window.start())
            if not in_flight:
                return
            result = await in_flight[0]
            in_flight.popleft()
            yield result
            window.consumed()

    try:
        yield results()
    finally:
        # Not a TaskGroup: it would cancel the consumer at the first failure, before the
        # consumer has read the good results in front of it.
        await end_tasks(*in_flight)
