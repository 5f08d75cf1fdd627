"""A histogram in the making: how many of some values fell up to each of some bounds."""

from bisect import bisect_left
from collections.abc import Sequence


class HistogramCounts:
    """Counts values by bounds, which ascend; what is above the last one is counted too."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values up to each bound and above the one before it; the last: above all of them."""
        self.total: float = 0
        """The sum of all values."""

    def note(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)
