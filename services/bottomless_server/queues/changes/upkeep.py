"""Upkeep: what is done of itself, a bounded part in one round.

Items whose delay or visibility is over, or whose time is, those of purged and deleted queues, and what
queues remember of publishes for longer than they should.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import structlog

from bottomless.errors import NotServed
from bottomless.model.queue import QueueConfig
from bottomless_server.queues.changes.fates import carry_out, config_of, life_of
from bottomless_server.queues.core.life import Fate, Life, expired, fallen_due
from bottomless_server.queues.ledger.base import Stored
from bottomless_server.queues.rounds.work import Work

log = structlog.get_logger(__name__)

SWEEP_COUNT: Final = 500
"""Items of each kind in one round."""
ASIDE_MS: Final = 60_000
"""So much later is looked again at what is due in a queue that a later release has configured: neither
its messages nor those of others are held up by it all the time."""
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
        aside = _carry_out(work, due, lambda config, life: fallen_due(config, life, work.now))
        later = work.now + ASIDE_MS
        ledger.change_items([(each, each.item._replace(due_at=later)) for each in aside])
        old = ledger.expired(work.now, count)
        ledger.expire_later(_carry_out(work, old, lambda config, _: expired(config)), later)
        swept = ledger.sweep(count)
        forgotten = ledger.forget_seen(work.now, count)
        return count in (len(due), len(old), swept, forgotten)


def _carry_out(work: Work, there: Sequence[Stored], decide: Decide) -> list[Stored]:
    """Give items what is decided; returns those of queues whose configuration nobody here can read."""
    aside: list[Stored] = []
    by_queue: dict[int, list[Stored]] = defaultdict(list)
    for stored in there:
        by_queue[stored.item.inside].append(stored)
    for inside, items in by_queue.items():
        row = work.ledger.queue_inside(inside)
        if row is None:
            # They are doomed: nobody hears of them, dead letters neither.
            work.ledger.remove_items(items)
            continue
        try:
            config = config_of(row.config)
        except NotServed:
            log.critical(
                "a queue waits for the release that configured it", queue=row.queue_id.hex()
            )
            aside += items
            continue
        carry_out(work, row, [(each, decide(config, life_of(each.item))) for each in items])
    return aside
