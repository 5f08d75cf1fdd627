"""How long an object store takes, as a distribution that says two of its quantiles.

A log-normal one has just these two degrees of freedom, so both hold exactly; and as with real
stores there are no times below 0, and a long tail.
"""

import math
import random
from collections.abc import Mapping
from statistics import NormalDist
from typing import Final, NamedTuple

_P99: Final = NormalDist().inv_cdf(0.99)


class Latency(NamedTuple):
    """Times of requests, in milliseconds: half of them are below `p50_ms`, 99 of 100 below `p99_ms`."""

    p50_ms: float
    p99_ms: float

    def quantile(self, part: float) -> float:
        """The time in ms that so large a part of all requests does not exceed; 0 < part < 1."""
        spread = math.log(self.p99_ms / self.p50_ms) / _P99
        return self.p50_ms * math.exp(spread * NormalDist().inv_cdf(part))

    def draw(self, chance: random.Random) -> float:
        """The time of one request, in ms."""
        # 0 itself has no quantile, and may be drawn.
        return self.quantile(max(chance.random(), 2.0**-54))


StoreLatency = Mapping[str, Latency]
"""By the method of a request; others take as long as they take."""

STANDARD: Final[StoreLatency] = {"PUT": Latency(100, 195), "GET": Latency(30, 110)}
"""S3 Standard, within a region. Reads of small objects are some three times as fast as writes."""
EXPRESS: Final[StoreLatency] = {"PUT": Latency(6, 20), "GET": Latency(4, 12)}
"""S3 Express One Zone, within the zone."""
STORES: Final[Mapping[str, StoreLatency]] = {"standard": STANDARD, "express": EXPRESS, "none": {}}
"""By the names under which a load test asks for them."""
