"""Latencies in bounded memory: how many lie in each of some thousand ranges. Pure.

Each range is 2 % wide, so a quantile is at most 2 % too high; the largest is kept as it is.
"""

import math
from collections import Counter
from typing import Final

_WIDTH: Final = math.log(1.02)
_LEAST_MS: Final = 0.01
_RANGE_MAX: Final = 1_200
"""Beyond some fifty hours all are one range."""


class Histogram:
    """Counts latencies, in milliseconds."""

    def __init__(self) -> None:
        self.counts = Counter[int]()
        self.count = 0
        self.max_ms = 0.0

    def add(self, ms: float) -> None:
        place = math.ceil(math.log(max(ms, _LEAST_MS) / _LEAST_MS) / _WIDTH - 1e-9)
        self.counts[min(place, _RANGE_MAX)] += 1
        self.count += 1
        self.max_ms = max(self.max_ms, ms)

    def merge(self, other: "Histogram") -> None:
        """Count all of another one too."""
        self.counts += other.counts
        self.count += other.count
        self.max_ms = max(self.max_ms, other.max_ms)

    def quantile(self, part: float) -> float:
        """A latency that so large a part of all does not exceed; 0 of none."""
        wanted = max(math.ceil(part * self.count - 1e-9), 1)
        seen = 0
        for place, count in sorted(self.counts.items()):
            seen += count
            if seen >= wanted:
                return min(_LEAST_MS * math.exp(place * _WIDTH), self.max_ms)
        return 0.0

    def told(self) -> dict[str, float]:
        """As summaries have it, in ms."""
        parts = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "p999_ms": 0.999}
        quantiles = {name: round(self.quantile(part), 2) for name, part in parts.items()}
        return {"count": self.count, **quantiles, "max_ms": round(self.max_ms, 2)}
