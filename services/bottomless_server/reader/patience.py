"""Try again what the object store did not do for now, for as long as a request may take.

The one place in the reader that does: a drive makes one attempt for each call, and answers that
stay open try again by themselves, so they ask for none of this. Each call is tried again and not
the whole read: of a page of many objects, and a cache of any size, one call is what failed.
"""

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Final, TypeVar

import stamina

from bottomless.errors import Code, StoreError
from bottomless.model.backoff import backoff
from bottomless_server.runtime.base.on_loop import loop_time

T = TypeVar("T")

_PAUSE_SECONDS: Final = 0.05
"""Before the second attempt; it doubles with each further one."""
_PAUSE_SECONDS_MAX: Final = 1.0
_JITTER_SECONDS: Final = 0.05

_ENDS: ContextVar[float | None] = ContextVar("end of patience", default=None)
"""When the patience of the request that is being answered ends, by the loop's clock."""


class Patience:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """Within the block calls are tried again, until the time is over that begins now."""
        token = _ENDS.set(loop_time() + self._seconds)
        try:
            yield
        finally:
            _ENDS.reset(token)


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """What `call` gives; whatever it raises last passes through."""
    ends = _ENDS.get()
    left = 0 if ends is None else ends - loop_time()
    if left <= 0:
        return await call()
    failures = count()

    def pause_after(error: Exception) -> bool | float:
        jitter = random.uniform(0, _JITTER_SECONDS)  # noqa: S311
        pause = backoff(next(failures), _PAUSE_SECONDS, _PAUSE_SECONDS_MAX, jitter)
        return _may_pass(error) and pause

    async for attempt in stamina.retry_context(on=pause_after, attempts=None, timeout=left):
        with attempt:
            return await call()
    raise AssertionError("an attempt returns or raises")


def _may_pass(error: Exception) -> bool:
    away = isinstance(error, StoreError) and error.code is Code.OBJECT_STORE_UNAVAILABLE
    return away and isinstance(error, StoreError) and error.retryable
