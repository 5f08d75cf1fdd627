"""The connections of a small server: each is served by a task, and all can be ended at once."""

import asyncio
from collections.abc import Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Connections:
    """What `asyncio.start_server` calls for each connection."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._tasks: set[asyncio.Future[None]] = set()
        self._calls: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            # It may not have come to its first step, and then nothing of it has closed anything.
            writer.transport.abort()

    def break_off(self) -> None:
        """End all of them, without waiting for that."""
        for task in list(self._tasks):
            task.cancel()

    async def end(self) -> None:
        self.break_off()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*self._calls, return_exceptions=True)
