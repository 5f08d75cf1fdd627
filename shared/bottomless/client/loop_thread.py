"""A loop of its own on a thread of its own: how programs without one use what is written for one."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

_STOP_SECONDS: Final = 10.0


class LoopThread:
    """Runs coroutines for any thread of the process that made it.

    After a fork the child has the object but not the thread, so there it refuses; nothing of
    the parent's is touched.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self.loop = asyncio.new_event_loop()
        # A daemon: a client that nobody closed does not keep its program from ending.
        self._thread = threading.Thread(target=self._run, name="bottomless-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """What the coroutine returns; whoever is interrupted here cancels it.

        Raises:
            TimeoutError: it was cancelled after so long.
            RuntimeError: there is no thread to run it: closed, forked, or asked from itself.
        """
        try:
            self.require()
        except RuntimeError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_seconds)
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The same items one by one, each asked for when it is wanted."""
        try:
            while True:
                try:
                    item = self.run(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            close = getattr(items, "aclose", None)
            if close is not None and self.alive:
                self.run(close())

    @property
    def alive(self) -> bool:
        return self._process == os.getpid() and self._thread.is_alive()

    def require(self) -> None:
        """Raises:
        RuntimeError: nothing can be run here.
        """
        if self._process != os.getpid():
            raise RuntimeError("a client is of one process: make another after a fork")
        if not self._thread.is_alive():
            raise RuntimeError("the client is closed")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of the client's own thread may not wait for it")

    def stop(self) -> None:
        """Cancel what runs, and end the thread; the same again does nothing."""
        if not self.alive or threading.current_thread() is self._thread:
            return
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with suppress(CancelledError):
                self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
