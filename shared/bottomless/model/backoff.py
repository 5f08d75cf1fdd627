"""Backoff: how long to wait before something is tried again.

One schedule for all that try again, or look again: the client, Spark's workers and the services.
When to give up, and what may be tried again at all, is each caller's own.
"""

from typing import Final

_DOUBLINGS_MAX: Final = 64
"""Enough to reach every limit, and few enough that no number leaves the range of floats."""


def backoff(failures: int, first: float, longest: float, jitter: float = 0.0) -> float:
    """The wait after a failure that follows `failures` others without a success in between.

    It is `first`, and twice as long with each further failure; `jitter` is added, and the sum is at
    most `longest`. All are of one unit, seconds or milliseconds. Whoever calls draws the jitter,
    which keeps many that failed together from returning together; full jitter is a random share of
    what this returns.
    """
    assert failures >= 0
    assert min(first, longest, jitter) >= 0
    return min(first * 2.0 ** min(failures, _DOUBLINGS_MAX) + jitter, longest)
