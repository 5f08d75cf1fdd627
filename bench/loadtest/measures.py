"""What clients saw, as lines for each interval and for all of a run. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from bench.loadtest.histogram import Histogram


@dataclass
class Measures:
    """What appends came to, in an interval or in all."""

    appends: int = 0
    """Acknowledged; the others are told by attempts."""
    records: int = 0
    bytes: int = 0
    repeats: int = 0
    """Acknowledged appends that an earlier attempt had stored."""
    attempts: Counter[str] = field(default_factory=Counter)
    """Requests that got no good answer: `refused …` with its code stored nothing, `unknown …` may
    have."""
    nodes: Counter[str] = field(default_factory=Counter)
    """Acknowledged appends by the node that answered."""
    left_out: int = 0
    """Appends of an open loop for which there was no room to wait."""
    remaps: int = 0
    latency: Histogram = field(default_factory=Histogram)
    """In an open loop from when an append should have begun, in a closed one from when it did."""
    late: Histogram = field(default_factory=Histogram)
    """How much of that was over before the first request was sent: the append waited for the one
    before it of its producer, for room, for a node, or for this program to get its turn."""

    def acknowledged(self, node: str, records: int, size: int, ms: float) -> None:
        self.appends += 1
        self.records += records
        self.bytes += size
        self.nodes[node] += 1
        self.latency.add(ms)

    def merge(self, other: "Measures") -> None:
        """Add what another interval came to."""
        self.appends += other.appends
        self.records += other.records
        self.bytes += other.bytes
        self.repeats += other.repeats
        self.left_out += other.left_out
        self.remaps += other.remaps
        self.attempts += other.attempts
        self.nodes += other.nodes
        self.latency.merge(other.latency)
        self.late.merge(other.late)

    def told(self, seconds: float) -> dict[str, Any]:
        """As files have it, of so many seconds."""
        return {
            "seconds": round(seconds, 3),
            "appends": self.appends,
            "appends_per_second": round(self.appends / seconds, 2) if seconds else 0.0,
            "records": self.records,
            "bytes": self.bytes,
            "repeats": self.repeats,
            "attempts": dict(sorted(self.attempts.items())),
            "nodes": dict(sorted(self.nodes.items())),
            "left_out": self.left_out,
            "remaps": self.remaps,
            "latency": self.latency.told(),
            "late": self.late.told(),
        }
