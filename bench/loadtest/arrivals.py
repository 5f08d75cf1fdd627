"""When appends are to begin in an open loop: a Poisson process, the same for each seed. Pure.

In an open loop a slow answer keeps nobody from sending the next append, as with a thousand devices
that know nothing of each other. Latency is counted from when an append should have begun, so that
waiting for anything, this program included, cannot hide.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple


class Arrival(NamedTuple):
    at: float
    """Seconds since the begin."""
    producer: int


def arrivals(rate: float, seconds: float, producer_count: int, seed: int) -> Iterator[Arrival]:
    """All of them in the order of their time: `rate` a second on average, each of any producer."""
    chance = random.Random(f"arrivals {seed}")
    at = chance.expovariate(rate)
    while at < seconds:
        yield Arrival(at, chance.randrange(producer_count))
        at += chance.expovariate(rate)
