"""How long passes of Python's garbage collector take: nothing else happens in the process meanwhile.

Counted in plain numbers. The collector may begin a pass at any allocation, also within a metric's own
lock, so none of the library's metrics may be touched while it calls.
"""

import gc
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Final

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

SECONDS: Final = (0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5)
"""Bounds of the buckets."""
GENERATIONS: Final = 3
"""The collector divides objects by age: a pass over 0 looks at the youngest, one over 2 at all that are
not set aside (runtime/process/long_lived.py)."""


class GcPauses:
    """Counts the passes of each generation; itself what the collector calls."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._counts = [[0] * (len(SECONDS) + 1) for _ in range(GENERATIONS)]
        self._seconds = [0.0] * GENERATIONS
        self._began_at = 0.0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """Note that a pass begins or ends; two never overlap."""
        if phase == "start":
            self._began_at = self._clock()
            return
        seconds = self._clock() - self._began_at
        generation = info["generation"]
        self._counts[generation][bisect_left(SECONDS, seconds)] += 1
        self._seconds[generation] += seconds

    def metrics(self) -> Iterable[Metric]:
        pauses = HistogramMetricFamily(
            "bottomless_gc_pause_seconds",
            "How long a pass of Python's garbage collector kept everything waiting.",
            labels=["generation"],
        )
        bounds = [*map(str, SECONDS), "+Inf"]
        for generation, (counts, seconds) in enumerate(
            zip(self._counts, self._seconds, strict=True)
        ):
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            pauses.add_metric([str(generation)], buckets, seconds)
        return (pauses,)


_PAUSES: Final = GcPauses()
"""The pauses of this process, which has one collector."""


@contextmanager
def timed_passes() -> Iterator[None]:
    """Put around a process whose passes are to be shown."""
    gc.callbacks.append(_PAUSES)
    try:
        yield
    finally:
        gc.callbacks.remove(_PAUSES)


def gc_pause_metrics() -> Iterable[Metric]:
    """The pauses so far."""
    return _PAUSES.metrics()
