"""Retry: whether the same request may be sent again, and how long to wait before it is.

Not by a library for retries: those tell every retry to a logger of their choice, and the
command line's output is data.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from secrets import SystemRandom
from typing import Final, TypeVar

from bottomless.errors import Code, Outcome, StoreError

RETRY_SECONDS: Final = 20.0
"""How long a call is tried unless something else is said: a restart of a server, and some."""

_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0
_DOUBLINGS_MAX: Final = 10
_CHANCE: Final = SystemRandom()

T = TypeVar("T")


class Backoff:
    """The waits of one call. Full jitter: after a restart not everybody comes back at once."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deadline = clock() + seconds
        self._failures = 0

    def after(self, error: StoreError) -> float | None:
        """Seconds to wait before the next attempt, None if the time for attempts is over."""
        pause = jittered(self._failures, error.retry_after_seconds)
        self._failures += 1
        return None if self._clock() + pause > self._deadline else pause


def jittered(failures: int, retry_after_seconds: float | None) -> float:
    """Seconds to wait after so many failures in a row, never less than the server asked for."""
    longest = min(_PAUSE_SECONDS * 2 ** min(failures, _DOUBLINGS_MAX), _PAUSE_SECONDS_MAX)
    return (retry_after_seconds or 0.0) + _CHANCE.uniform(0, longest)


def may_repeat(error: StoreError, *, repeatable: bool) -> bool:
    """Whether the same request may be sent again.

    One that changes something only if nothing of it was done, unless it is `repeatable`: then
    the same again is the same, whatever became of the first.
    """
    # A gap is said to be retryable, but nobody but its producer knows what lies before.
    if not error.retryable or error.code is Code.PRODUCER_SEQUENCE_GAP:
        return False
    return repeatable or error.outcome is Outcome.NONE


async def retried(call: Callable[[], Awaitable[T]], seconds: float, *, repeatable: bool) -> T:
    """What a call returns, tried for so long.

    Raises:
        StoreError: that of the last attempt, with what is known of all of them together.
    """
    backoff = Backoff(seconds)
    doubtful = False
    while True:
        try:
            return await call()
        except StoreError as error:
            doubtful = doubtful or error.outcome is Outcome.UNKNOWN
            pause = backoff.after(error) if may_repeat(error, repeatable=repeatable) else None
            if pause is None:
                if doubtful:
                    error.outcome = Outcome.UNKNOWN
                raise
        await asyncio.sleep(pause)
