"""What the engine of queues has done, as metrics; no name of a queue or a tenant is among them."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric

from bottomless.errors import StoreError
from bottomless_server.queues.engine import QueueEngine
from bottomless_server.queues.figures import Figures, Gauges
from bottomless_server.runtime.observe.metrics import (
    SECONDS,
    counted,
    counted_by,
    gauged,
    gauged_by,
)

_LOOK_SECONDS: Final = 5.0
"""Between two looks at what is in all queues."""
_CHANGES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
"""Bounds of the buckets of requests in a round."""

_NAME: Final = "bottomless_queues"
_TOTALS: Final = {
    "published": "Messages that were published, counted in each queue.",
    "delivered": "Deliveries of messages.",
    "redelivered": "Those of them that were not the first of their message.",
    "acked": "Messages that were acknowledged.",
    "expired": "Messages whose time was over.",
    "dropped": "Messages that made room for new ones.",
    "duplicates": "Messages that were sent again and were known already.",
    "rejected": "Messages that consumers rejected, whether they became dead letters or are gone.",
    "purged": "Messages that were purged.",
    "refused": "Messages of publishes that were refused since a queue was full.",
}


class QueueMeasures:
    """Measures one engine: each of its rounds, and now and then what is in its queues."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """`clock` gives the time of queues in ms since 1970, of which the moments in them are."""
        self._clock = clock
        self._engine: QueueEngine | None = None
        self._gauges: Gauges | None = None
        self._seconds = Histogram(
            f"{_NAME}_round_seconds",
            "How long a round took, with its syncs.",
            buckets=SECONDS,
            registry=None,
        )
        self._changes = Histogram(
            f"{_NAME}_round_requests",
            "Requests that shared a round.",
            buckets=_CHANGES,
            registry=None,
        )

    def begin(self, engine: QueueEngine) -> None:
        """Measure this engine from now on."""
        self._engine = engine
        engine.figures().on_round = self._note_round

    async def look(self) -> float:
        """Look once; returns after how many seconds to look again."""
        if self._engine is not None:
            # Where the disk does not answer, what was seen last is shown.
            with suppress(StoreError):
                self._gauges = await self._engine.gauges()
        return _LOOK_SECONDS

    def metrics(self) -> Iterable[Metric]:
        """All of them; none before an engine is there."""
        if self._engine is None:
            return
        yield from queue_metrics(self._engine.figures())
        yield from self._seconds.collect()
        yield from self._changes.collect()
        if self._gauges is not None:
            yield from gauge_metrics(self._gauges, self._clock())

    def _note_round(self, seconds: float, changes: int) -> None:
        self._seconds.observe(seconds)
        self._changes.observe(changes)


def gauge_metrics(gauges: Gauges, now: int) -> Iterable[Metric]:
    """What is in all queues together; `now`, by the time of queues, in ms since 1970."""
    sums, oldest = gauges.sums, gauges.oldest_outgoing_at
    states = {
        "ready": sums.ready,
        "in-flight": sums.in_flight,
        "delayed": sums.delayed,
        "damaged": sums.damaged,
    }
    yield gauged_by(f"{_NAME}_messages", "Messages in queues, by their state.", "state", states)
    yield gauged(
        f"{_NAME}_outgoing",
        "Messages on their way to where dead letters and acknowledged ones go.",
        gauges.outgoing,
    )
    yield gauged(
        f"{_NAME}_outgoing_age_seconds",
        "How long ago the first of them left its queue.",
        0 if oldest is None else max(now - oldest, 0) / 1000,
    )
    yield gauged(f"{_NAME}_live_bytes", "Bytes of records that a message needs.", gauges.live_bytes)
    yield gauged(f"{_NAME}_ledger_bytes", "Bytes of the ledger.", gauges.ledger_bytes)
    yield gauged(f"{_NAME}_log_bytes", "Bytes of the log of the ledger.", gauges.log_bytes)


def queue_metrics(figures: Figures) -> Iterable[Metric]:
    """The metrics of one engine."""
    for member, meaning in _TOTALS.items():
        yield counted(f"{_NAME}_{member}", meaning, getattr(figures.totals, member))
    yield counted_by(
        f"{_NAME}_dead_lettered",
        "Messages that became dead letters, by the reason.",
        "reason",
        dict(figures.dead_lettered),
    )
    yield counted(
        f"{_NAME}_stale", "Receipts of messages that were delivered again since.", figures.stale
    )
    yield counted(
        f"{_NAME}_damaged_reads",
        "Messages whose bytes were lost or wrong when they were read.",
        figures.damaged_reads,
    )
    yield counted(
        f"{_NAME}_outgoing_sent",
        "Messages that reached where dead letters and acknowledged ones go.",
        figures.outgoing_sent,
    )
    yield counted(
        f"{_NAME}_outgoing_aside",
        "Messages that were refused there for themselves.",
        figures.outgoing_aside,
    )
    yield gauged(
        f"{_NAME}_outgoing_waiting",
        "Queues and streams that take no dead letters at present.",
        figures.outgoing_waiting,
    )
    yield gauged(
        f"{_NAME}_waiting_receives",
        "Receives that wait for messages.",
        figures.waiting_receives,
    )
    yield gauged(f"{_NAME}_disk_bytes", "Bytes of message files.", figures.disk_bytes)
    yield counted(f"{_NAME}_moved_bytes", "Bytes that compactions copied.", figures.moved_bytes)
    yield counted_by(
        f"{_NAME}_compactions",
        "Compactions of message files, by how they ended.",
        "ended",
        dict(figures.compactions),
    )
