"""What retention would remove from a stream, and how it is told. Pure; the descents are run
outside.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from bottomless.model.config import RetentionConfig
from bottomless.model.manifest import Node
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.tree.retention import UNKNOWN_TIME, Cut, MoreThan, OlderThan, larger, totals


class Limits(NamedTuple):
    max_age_ms: int | None
    max_bytes: int | None


def limits_of(retention: RetentionConfig, default: RetentionConfig) -> Limits:
    """The limits of a stream: its own, and the server's where it has none."""
    found = retention.with_default(default)
    seconds = found.age_limit_seconds
    return Limits(None if seconds is None else seconds * 1000, found.bytes_limit)


class RetentionBounds(NamedTuple):
    """The limits at one moment, as what the tree can be cut by."""

    by_age: OlderThan | None
    by_bytes: MoreThan | None


def retention_bounds(limits: Limits, now: int, age_paused: bool) -> RetentionBounds:
    aged = limits.max_age_ms is not None and not age_paused
    return RetentionBounds(
        OlderThan(now - (limits.max_age_ms or 0)) if aged else None,
        None if limits.max_bytes is None else MoreThan(limits.max_bytes),
    )


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """The records that go if retention is evaluated at `evaluated_at`."""

    evaluated_at: int
    root: Node
    bounds: RetentionBounds
    by_age: Cut
    by_bytes: Cut
    age_paused: bool

    @property
    def cut(self) -> Cut:
        return larger((self.by_age, self.by_bytes), self.root.first_offset)

    @property
    def excess_bytes(self) -> int:
        """Bytes by which the stream is still above its limit afterwards: the last fragment stays."""
        if self.bounds.by_bytes is None:
            return 0
        left = totals(self.root.entries).byte_size - self.cut.gone.byte_size
        return max(left - self.bounds.by_bytes.size, 0)

    @property
    def kept_because_last_fragment(self) -> bool:
        entries, by_age = self.root.entries, self.bounds.by_age
        if not totals(entries).fragment_count:
            return False
        newest = int(entries["last_timestamp"][-1])
        too_old = by_age is not None and UNKNOWN_TIME < newest < by_age.timestamp
        return too_old or self.excess_bytes > 0

    def described(self) -> dict[str, Any]:
        cut = self.cut
        newest = cut.newest_timestamp
        nothing = cut.floor == self.root.first_offset
        known = newest is not None and newest != UNKNOWN_TIME
        return {
            "evaluated_at": format_timestamp(self.evaluated_at),
            "would_delete": {
                "fragments": cut.gone.fragment_count,
                "bytes": cut.gone.byte_size,
                "records": cut.gone.record_count,
                "from_offset": None if nothing else self.root.first_offset,
                "to_offset": None if nothing else cut.floor - 1,
                "newest_timestamp": format_timestamp(newest) if known and newest else None,
            },
            "new_first_offset": cut.floor,
            "reason": {
                "max_age": self.by_age.gone.fragment_count,
                "max_bytes": self.by_bytes.gone.fragment_count,
            },
            "excess_bytes": self.excess_bytes,
            "kept_because_last_fragment": self.kept_because_last_fragment,
            "age_paused": self.age_paused,
        }
