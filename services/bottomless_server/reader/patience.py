"""Try again what the object store did not do for now, for as long as a request may take.

The one place in the reader that does: a drive makes one attempt for each call, answers that stay
open try again by themselves, and they ask for none of this. What was read before the failure lies
in the cache, so a further attempt asks the store for what failed and not for all of it again.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import stamina

from bottomless.errors import Code, StoreError

T = TypeVar("T")

_PAUSE_SECONDS = 0.05
"""Before the second attempt; it doubles with each further one."""
_PAUSE_SECONDS_MAX = 1.0
_JITTER_SECONDS = 0.05


class Patience:
    def __init__(self, seconds: float) -> None:
        """An attempt that fails later than `seconds` after the first one began is the last."""
        self._seconds = seconds

    async def with_store(self, act: Callable[[], Awaitable[T]]) -> T:
        """What `act` gives; whatever it raises last passes through."""
        if not self._seconds:
            return await act()
        async for attempt in stamina.retry_context(
            on=_may_pass,
            attempts=None,
            timeout=self._seconds,
            wait_initial=_PAUSE_SECONDS,
            wait_max=_PAUSE_SECONDS_MAX,
            wait_jitter=_JITTER_SECONDS,
        ):
            with attempt:
                return await act()
        raise AssertionError("an attempt returns or raises")


def _may_pass(error: Exception) -> bool:
    away = isinstance(error, StoreError) and error.code is Code.OBJECT_STORE_UNAVAILABLE
    return away and isinstance(error, StoreError) and error.retryable
