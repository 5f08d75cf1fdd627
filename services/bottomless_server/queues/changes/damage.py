"""Messages whose bytes are wrong or lost: they wait for an operator, and nobody gets them."""

from collections.abc import Sequence
from dataclasses import dataclass

from bottomless_server.queues.changes.fates import carry_out, life_of, live_queue
from bottomless_server.queues.core.life import damaged
from bottomless_server.queues.core.states import ItemState
from bottomless_server.queues.ledger.base import Stored
from bottomless_server.queues.rounds.work import Work


@dataclass(frozen=True)
class MarkDamaged:
    """Say of items whose messages could not be read that they are damaged; the answer is how many."""

    queue_id: bytes
    stored: Sequence[Stored]
    """Items as they were when they were read."""
    size: int = 0

    def apply(self, work: Work) -> int:
        row = live_queue(work, self.queue_id)
        asked = {
            each.item.sequence: each.message.id
            for each in self.stored
            if each.item.inside == row.inside
        }
        there = work.ledger.items(row.inside, list(asked))
        bad = [
            each
            for sequence, each in there.items()
            if each.message.id == asked[sequence] and each.item.state is not ItemState.DAMAGED
        ]
        carry_out(work, row, [(each, damaged(life_of(each.item))) for each in bad])
        return len(bad)
