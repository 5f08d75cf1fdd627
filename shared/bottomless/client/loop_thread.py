"""An event loop on a thread of its own, by which blocking programs use asynchronous code."""

import asyncio
import math
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from bottomless.client.belonging import another_process
from bottomless.errors import StoreError

T = TypeVar("T")

_STOP_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0
"""How often a thread that waits looks for an interruption. A signal that arrives between Python's last
look and the wait in the system's call does not end that wait."""


class LoopThread:
    """Runs coroutines for any thread of the process that made it.

    After a fork the child has the object but not the thread, so there it refuses every call;
    nothing of the parent's is touched.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._ended = False
        self._handing_over = threading.RLock()
        """What is handed over is there before the end or refused, never left lying. The thread that has
        it may come back for it: a handler of a signal, or the end of what `iterate` gave, which a
        collection of garbage may meet anywhere."""
        self.loop = asyncio.new_event_loop()
        # A daemon: a client that nobody closed does not keep its program from ending.
        self._thread = threading.Thread(target=self._run, name="bottomless-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """Run a coroutine on the loop and return its result; an interrupt here cancels it.

        Raises:
            TimeoutError: it was cancelled after `timeout_seconds`.
            RuntimeError: there is no thread to run it: it was closed, perhaps meanwhile, the
                process was forked, or the call comes from that thread itself.
        """
        call = _Call(work, self.loop)
        try:
            self.require()
        except BaseException:
            work.close()
            raise
        try:
            with self._handing_over:
                self._refuse_ended()
                call.hand_over()
            return call.wait(timeout_seconds)
        except CancelledError:
            if not self._ended:
                raise
            raise RuntimeError("the client was closed meanwhile") from None
        except StoreError as error:
            # It says what happened. The way that it took through this package would be ten frames
            # of a traceback, between the caller's line and the sentence.
            raise error.with_traceback(None)  # noqa: B904
        except BaseException:
            call.abandon()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Give the items of an asynchronous iterator one by one.

        Each is asked for when it is wanted.
        """
        one_at_a_time = asyncio.Lock()
        asking: asyncio.Task[Any] | None = None

        async def ask() -> T:
            nonlocal asking
            async with one_at_a_time:
                asking = asyncio.current_task()
                try:
                    return await anext(items)
                finally:
                    asking = None

        async def end() -> None:
            # Whoever is interrupted comes here while what was asked for is still being cancelled;
            # or is not, if the interruption fell between the asking and the waiting.
            if asking is not None and not asking.cancelling():
                asking.cancel()
            async with one_at_a_time:
                if isinstance(items, AsyncGenerator):
                    await items.aclose()

        try:
            while True:
                try:
                    item = self.run(ask())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            # On the own thread, where the last reference may go, the loop ends them by itself.
            if self.alive and threading.current_thread() is not self._thread:
                self.run(end())

    @property
    def alive(self) -> bool:
        """Whether the thread runs, in this process."""
        return self._process == os.getpid() and self._thread.is_alive() and not self._ended

    def require(self) -> None:
        """Refuse a call that the thread of the loop cannot serve.

        Raises:
            RuntimeError: nothing can be run here: closed, forked, or called from that thread
                itself.
        """
        if self._process != os.getpid():
            raise another_process()
        self._refuse_ended()
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of the client's own thread may not wait for it")

    def end_with(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as the last coroutine, and end the thread.

        From that thread itself without waiting.
        """
        if threading.current_thread() is self._thread:
            last = self.loop.create_task(work)
            last.add_done_callback(lambda _: self.stop())
            return
        try:
            self.run(work)
        finally:
            self.stop()

    def stop(self) -> None:
        """Cancel what runs, and end the thread; repeating it does nothing."""
        if self._process != os.getpid():
            return
        with self._handing_over:
            if not self._ended:
                self._ended = True
                self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_STOP_SECONDS)

    def _refuse_ended(self) -> None:
        if self._ended:
            raise RuntimeError("the client is closed")

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with suppress(CancelledError):
                self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


def _seconds_before(until: float) -> float:
    """How long to wait at a stretch for what may take until then, by the monotonic clock."""
    return min(_LOOK_SECONDS, max(0.0, until - time.monotonic()))


class _Call(Generic[T]):
    """A coroutine that the loop runs, and the thread that waits for what comes of it.

    One bare lock stands between them, and no `Condition`, `Event` or `Future` of the standard
    library: whoever is interrupted while it enters one of these leaves it locked, and the loop's
    thread would then wait for it for ever.
    """

    def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        self._result: T
        self._error: BaseException | None = None
        self._handed_over = False
        self._abandoned = False
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def hand_over(self) -> None:
        """Have the loop start it."""
        self._handed_over = True
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._abandoned:
            return
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._end)

    def wait(self, timeout_seconds: float | None) -> T:
        """Wait for its end; returns or raises what it does.

        Raises:
            TimeoutError: it has not ended after `timeout_seconds`.
            CancelledError: that of `concurrent.futures`: it was cancelled on the loop.
        """
        until = (
            math.inf if timeout_seconds is None else time.monotonic() + max(0.0, timeout_seconds)
        )
        while not self._under_way.acquire(timeout=_seconds_before(until)):
            if time.monotonic() >= until:
                raise TimeoutError
        # Let go of, or the error and the frames of its traceback would hold each other.
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._result
        finally:
            del error

    def abandon(self) -> None:
        """Cancel it, wherever it is by now: nobody waits for it any more."""
        if not self._handed_over:
            self._work.close()
            return
        # Where the loop has ended, so has all that was handed over to it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._abandoned = True
        if self._task is not None:
            self._task.cancel()
        else:
            self._work.close()

    def _end(self, task: asyncio.Task[T]) -> None:
        # The last that is known of the task ends here and not with who waits: asyncio is told of
        # that end by a callback in which Python drops an interruption that falls into it.
        self._task = None
        if task.cancelled():
            self._error = CancelledError()
        else:
            self._error = task.exception()
            if self._error is None:
                self._result = task.result()
        self._under_way.release()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
