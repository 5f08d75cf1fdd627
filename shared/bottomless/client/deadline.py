"""Deadlines of calls: moments of the monotonic clock."""

import time


def seconds_left(deadline: float | None) -> float | None:
    """Seconds until a moment of the monotonic clock, 0 after it; None where there is no such moment."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
