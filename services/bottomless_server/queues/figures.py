"""What an engine of queues has done since its start, for metrics: no name of a queue is among it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bottomless_server.queues.ledger.base import Sums, Totals
from bottomless_server.queues.rounds.work import Ended, sum_of


@dataclass
class Figures:
    """Counts since the start, and what is there now."""

    rounds: int = 0
    changes: int = 0
    """Requests that rounds have done, or refused."""
    totals: Totals = Totals()  # noqa: RUF009 it is immutable
    """What has become of messages, of all queues together."""
    dead_lettered: Counter[str] = field(default_factory=Counter)
    """Dead letters, by the reason."""
    stale: int = 0
    """Receipts that were somebody else's by then."""
    damaged_reads: int = 0
    outgoing_sent: int = 0
    outgoing_aside: int = 0
    """Messages that their targets refused for themselves."""
    outgoing_waiting: int = 0
    """Targets that refuse everything at present."""
    waiting_receives: int = 0
    compactions: Mapping[str, int] = field(default_factory=dict)
    moved_bytes: int = 0
    disk_bytes: int = 0
    """Bytes of message files, as of the last look."""

    on_round: Callable[[float, int], None] | None = None
    """Told the seconds and the changes of each round, for whoever makes histograms of them."""

    def hear(self, ended: Ended, seconds: float) -> None:
        """Count what a round has come to."""
        self.rounds += 1
        if self.on_round is not None:
            self.on_round(seconds, len(ended.verdicts))
        self.changes += len(ended.verdicts)
        self.totals = sum_of(self.totals, ended.totals)
        self.dead_lettered.update(ended.dead_lettered)


class Gauges(NamedTuple):
    """What is there at one moment, of all queues together."""

    sums: Sums
    outgoing: int
    """Messages that are on their way to a queue or a stream."""
    oldest_outgoing_at: int | None
    """When the first of them left its queue, in ms since 1970; of those that are sent next."""
    disk_bytes: int
    live_bytes: int
    ledger_bytes: int
    log_bytes: int
