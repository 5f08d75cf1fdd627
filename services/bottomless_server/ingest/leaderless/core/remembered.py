"""What coordination knows of some producers and keys, as a memory that the rules can be asked about.

No node remembers the producers of a leaderless stream. What is known of a name is read when it is
needed, in the transaction that changes it; a memory is made for that one question, and holds
those names alone.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from bottomless.formats.checks import check
from bottomless_server.core.tracking.known_producers import (
    KeyUse,
    Producer,
    TrackingBounds,
    tracked,
    tracked_key,
)
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.leaderless.decided import KnownName, NewKnown
from bottomless_server.leaderless.tail_format import Known

_UNBOUNDED: Final = 2**62
"""Names of one question, which a commit bounds: none makes room for another."""


class KnownBounds(NamedTuple):
    """How much a stream without an owner knows of producers and keys, and for how long."""

    tracking: TrackingBounds
    producer_keep_ms: int
    """How long a producer is known after it was heard last."""

    def count_max(self, name: KnownName) -> int:
        """How many names of this kind a stream knows."""
        bounds = self.tracking
        return bounds.producer_count_max if name.is_producer else bounds.key_count_max


class RememberedNames:
    """What is known of the names of one question."""

    def __init__(self, known: Mapping[KnownName, Known | None], bounds: KnownBounds) -> None:
        """Read what coordination has of each name; None of one that it does not know.

        Raises:
            Corrupt: what it has of one says nothing of it.
        """
        counts = {"producer_count_max": _UNBOUNDED, "key_count_max": _UNBOUNDED}
        self.tracking = Tracking(bounds.tracking._replace(**counts))
        self._bounds = bounds
        self._read = known.keys()
        for name, value in known.items():
            if value is not None:
                self.tracking.take_tracked(value.entries)
                check("known value", self.knows(name), "it is of another name")

    def is_read(self, name: KnownName) -> bool:
        """Tell whether what is known of a name could be read."""
        return name in self._read

    def knows(self, name: KnownName) -> bool:
        return self.producer(name) is not None or self._use(name) is not None

    def producer(self, name: KnownName) -> Producer | None:
        return self.tracking.producers.get(name.name) if name.is_producer else None

    def _use(self, name: KnownName) -> KeyUse | None:
        return None if name.is_producer else self.tracking.keys.get(bytes.fromhex(name.name))

    def written(self, name: KnownName) -> NewKnown:
        """What is to be written of a name that is known."""
        producer, use = self.producer(name), self._use(name)
        if producer is not None:
            forget_at = producer.timestamp + self._bounds.producer_keep_ms
            return NewKnown(list(tracked(name.name, producer)), forget_at)
        assert use is not None
        forget_at = use.timestamp + self._bounds.tracking.keep_ms
        return NewKnown([tracked_key(bytes.fromhex(name.name), use)], forget_at)
