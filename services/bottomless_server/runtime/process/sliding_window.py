"""A sliding window of two counters: how much was asked for lately, and when there is room again.

Time is cut into windows of equal length, the first of which begins with the first count. Kept are
the counts of this window and of the one before it. Of the one before counts the part that still
lies within one window's length of now, as if what it counted had come evenly. So a counter is two
numbers whatever it counts, and over any window's length not much more passes than its quota.

Pure: whoever counts says what time it is.
"""

from dataclasses import dataclass
from typing import Final

WAIT_SECONDS_MIN: Final = 0.001


@dataclass(slots=True)
class SlidingWindow:
    """The counter of one limit for one tenant or credential."""

    window_seconds: int
    began_at: float
    """When this window began; after `move` it is less than a window's length ago."""
    before: int = 0
    """What the window before this one counted."""
    now: int = 0
    """What this window has counted."""

    def move(self, now: float) -> float:
        """Go on to the window of `now`, which never goes back; returns the seconds left of it."""
        passed = int((now - self.began_at) // self.window_seconds)
        if passed > 0:
            self.before = self.now if passed == 1 else 0
            self.now = 0
            self.began_at += passed * self.window_seconds
        return self.window_seconds - (now - self.began_at)

    def counted(self, left: float) -> float:
        """What counts when so many seconds are left of this window."""
        return self.before * left / self.window_seconds + self.now

    def seconds_until_room(self, quota: int, left: float, cost: int) -> float:
        """Tell how long `cost`, which is at most the quota, does not fit beside what counts; 0 if
        it fits now.

        Whole units are counted: what is short of one more does not count yet.
        """
        assert cost <= quota
        window, room = self.window_seconds, quota - cost
        if self.counted(left) < room + 1:
            return 0.0
        if self.now <= room:
            wait = left - (room + 1 - self.now) * window / self.before
        else:
            wait = left + window * (1 - (room + 1) / self.now)
        return max(wait, WAIT_SECONDS_MIN)
