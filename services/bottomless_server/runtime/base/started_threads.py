"""Threads for calls that must not be made later once they were refused.

The executor of the standard library puts a call into its queue, and starts a thread for it after
that. Where the system has none to give (a bound on processes, no memory for a stack), whoever
called is told that this failed; but a thread that becomes free makes the call all the same, when
nobody expects it any more. So all threads are started before the first call is taken.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class StartedThreads(ThreadPoolExecutor):
    """An executor that takes every call, or none."""

    def __init__(self, thread_count: int, name: str) -> None:
        super().__init__(thread_count, name)
        self._thread_count = thread_count
        self._all_there = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Have a call made; the first one waits until all threads are there.

        Raises:
            RuntimeError: there are not enough threads, or no longer any. The call is never made.
        """
        if not self._all_there:
            self._start_all()
            self._all_there = True
        return super().submit(fn, *args, **kwargs)

    def _start_all(self) -> None:
        # Who waits keeps its thread, so that the next call needs another one.
        together = threading.Barrier(self._thread_count)
        submit = super().submit
        try:
            waits = [submit(together.wait) for _ in range(self._thread_count)]
        except BaseException:
            together.abort()
            self.shutdown(wait=False)
            raise
        for one in waits:
            one.result()
