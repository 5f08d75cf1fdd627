"""Upkeep: what is done of itself, a bounded part in one round.

Items whose delay or visibility is over, or whose time is, those of purged and deleted queues, and what
queues remember of publishes for longer than they should.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from bottomless.model.queue import QueueConfig
from bottomless_server.queues.changes.fates import carry_out, config_of, life_of
from bottomless_server.queues.core.life import Fate, Life, expired, fallen_due
from bottomless_server.queues.ledger.base import Stored
from bottomless_server.queues.rounds.work import Work

SWEEP_COUNT: Final = 2_000
"""Items of each kind in one round."""
BUSY_PART: Final = 4
BUSY_COUNT_MIN: Final = 100
"""While others use queues it is a part of that in one round, but not less than so many."""

Decide = Callable[[QueueConfig, Life], Fate]


@dataclass(frozen=True)
class Upkeep:
    """Do what is due; the answer is whether more is left."""

    count: int = SWEEP_COUNT
    size: int = 0
    is_background: ClassVar[bool] = True

    def apply(self, work: Work) -> bool:
        ledger = work.ledger
        count = self.count
        if work.is_busy:
            # Others wait for the end of this round, or will for that of the next one.
            count = max(count // BUSY_PART, min(count, BUSY_COUNT_MIN))
        due = ledger.due(work.now, count)
        _carry_out(work, due, lambda config, life: fallen_due(config, life, work.now))
        old = ledger.expired(work.now, count)
        _carry_out(work, old, lambda config, _: expired(config))
        swept = ledger.sweep(count)
        forgotten = ledger.forget_seen(work.now, count)
        return count in (len(due), len(old), swept, forgotten)


def _carry_out(work: Work, there: Sequence[Stored], decide: Decide) -> None:
    by_queue: dict[int, list[Stored]] = defaultdict(list)
    for stored in there:
        by_queue[stored.item.inside].append(stored)
    for inside, items in by_queue.items():
        row = work.ledger.queue_inside(inside)
        if row is None:
            # They are doomed: nobody hears of them, dead letters neither.
            work.ledger.remove_items(items)
            continue
        config = config_of(row.config)
        carry_out(work, row, [(each, decide(config, life_of(each.item))) for each in items])
