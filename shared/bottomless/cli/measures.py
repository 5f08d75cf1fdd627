"""Measures: what a load was to do, what it did, and the percentiles and rates of it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, NamedTuple

_PERCENTILES: Final = (50.0, 90.0, 99.0)


class Bounds(NamedTuple):
    """What a load does, and when it ends."""

    seconds: float
    connections: int
    """Connections that append at once."""
    record_bytes: int
    batch_count: int
    """Records of one request."""
    max_bytes: int


@dataclass(slots=True)
class Load:
    """What a load did, and how long each request took."""

    waits: list[float] = field(default_factory=list)
    """Seconds that each successful request took."""
    record_count: int = 0
    size: int = 0
    """Bytes of values."""
    refused: int = 0
    """Requests that the server was too busy to accept."""
    seconds: float = 0.0
    busy_seconds: float = 0.0
    """CPU seconds of this program, on all cores."""


def summary(load: Load) -> dict[str, Any]:
    """Compute rates over the whole time, and waits of single requests.

    Sizes in millions of bytes.
    """
    seconds = max(load.seconds, 1e-9)
    return {
        "requests": len(load.waits),
        "refused": load.refused,
        "records": load.record_count,
        "bytes": load.size,
        "seconds": round(load.seconds, 3),
        "requests_per_second": round(len(load.waits) / seconds, 1),
        "records_per_second": round(load.record_count / seconds, 1),
        "megabytes_per_second": round(load.size / seconds / 1e6, 3),
        "milliseconds": _milliseconds(load.waits),
        "busy_percent": round(100 * load.busy_seconds / seconds, 1),
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Find the smallest of the ordered values that `percent` of them do not exceed."""
    assert ordered
    return ordered[max(ceil(len(ordered) * percent / 100), 1) - 1]


def _milliseconds(waits: Sequence[float]) -> dict[str, float]:
    if not waits:
        return {}
    ordered = sorted(waits)
    found = {f"p{percent:g}": percentile(ordered, percent) for percent in _PERCENTILES}
    found["max"] = ordered[-1]
    return {name: round(1000 * value, 2) for name, value in found.items()}
