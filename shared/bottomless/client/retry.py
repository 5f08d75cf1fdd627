"""Retry: whether a request may be sent again, and how long to wait before that.

It uses no library for retries: those report every retry to a logger of their choice, and the
command line's output is data.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from secrets import SystemRandom
from typing import Final, TypeVar

from bottomless.errors import Code, Outcome, StoreError
from bottomless.model.backoff import backoff

RETRY_SECONDS: Final = 20.0
"""How long a call is tried unless told otherwise: longer than a server takes to restart."""

_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0
_CHANCE: Final = SystemRandom()

T = TypeVar("T")


class Backoff:
    """The waits of one call.

    They are random, so that after a restart not all clients return at once.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deadline = clock() + seconds
        self._failures = 0

    def after(self, error: StoreError) -> float | None:
        """Tell how many seconds to wait before the next attempt.

        None if the time for attempts is over.
        """
        pause = jittered(self._failures, error.retry_after_seconds)
        self._failures += 1
        return None if self._clock() + pause > self._deadline else pause


def jittered(failures: int, retry_after_seconds: float | None) -> float:
    """Tell how many seconds to wait after `failures` in a row.

    Never less than the server asked for.
    """
    longest = backoff(failures, _PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
    return (retry_after_seconds or 0.0) + _CHANCE.uniform(0, longest)


def may_repeat(error: StoreError, *, repeatable: bool) -> bool:
    """Decide whether a request may be sent again after `error`.

    A request that changes something may be only if nothing of it was done, unless it is
    `repeatable`: then doing it twice is the same as doing it once.
    """
    # A gap is said to be retryable, but nobody but its producer knows what lies before.
    if not error.retryable or error.code is Code.PRODUCER_SEQUENCE_GAP:
        return False
    return repeatable or error.outcome is Outcome.NONE


async def retried(
    call: Callable[[], Awaitable[T]],
    seconds: float,
    *,
    repeatable: bool,
    on_retry: Callable[[StoreError], None] | None = None,
) -> T:
    """Make a call, and repeat it for up to `seconds` while that may help; returns its result.

    `on_retry` hears of each failure after which it is made again.

    Raises:
        StoreError: that of the last attempt, with what is known about all of them together.
    """
    waits = Backoff(seconds)
    doubtful = False
    while True:
        try:
            return await call()
        except StoreError as error:
            doubtful = doubtful or error.outcome is not Outcome.NONE
            pause = waits.after(error) if may_repeat(error, repeatable=repeatable) else None
            if pause is None:
                if doubtful and error.outcome is Outcome.NONE:
                    error.outcome = Outcome.UNKNOWN
                raise
            if on_retry is not None:
                on_retry(error)
        await asyncio.sleep(pause)
