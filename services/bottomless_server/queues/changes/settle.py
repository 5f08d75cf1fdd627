"""Acknowledge, give back and extend: what whoever has a receipt does with its message."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from bottomless.model.queue import QueueConfig
from bottomless_server.queues.changes.fates import carry_out, config_of, life_of, live_queue
from bottomless_server.queues.core.life import Fate, Life, acked, extended, nacked
from bottomless_server.queues.core.receipt import (
    RECEIPT_SIZE,
    Receipt,
    There,
    Verdict,
    judged,
    read_receipt,
)
from bottomless_server.queues.ledger.base import Stored
from bottomless_server.queues.rounds.work import Work

Decide = Callable[[QueueConfig, Life, int], Fate]
"""What becomes of an item at a time whose receipt is good."""


class Settled(NamedTuple):
    """What became of receipts, of each in one of three ways."""

    done: int
    gone: Sequence[str]
    """Their items are not there any more: what a repeated acknowledgement hears."""
    stale: Sequence[str]
    """Their items were delivered again since, and are somebody else's."""


@dataclass(frozen=True)
class Settle:
    """Do with items what `decide` says, those whose receipts are good."""

    queue_id: bytes
    receipts: Sequence[str]
    decide: Decide

    @property
    def size(self) -> int:
        return len(self.receipts) * RECEIPT_SIZE

    def apply(self, work: Work) -> Settled:
        row = live_queue(work, self.queue_id)
        config = config_of(row.config)
        store_id = work.ledger.store().store_id
        read = {text: read_receipt(text) for text in self.receipts}
        sequences = {each.sequence for each in read.values() if each is not None}
        there = work.ledger.items(row.inside, sorted(sequences))
        fates: dict[int, tuple[Stored, Fate]] = {}
        gone: list[str] = []
        stale: list[str] = []
        for text, receipt in read.items():
            verdict = _judged(receipt, store_id, row.inside, there)
            if receipt is None or verdict is Verdict.GONE:
                gone.append(text)
            elif verdict is Verdict.STALE:
                stale.append(text)
            else:
                stored = there[receipt.sequence]
                fate = self.decide(config, life_of(stored.item), work.now)
                fates[receipt.sequence] = (stored, fate)
        carry_out(work, row, list(fates.values()))
        return Settled(len(fates), gone, stale)


def ack(queue_id: bytes, receipts: Sequence[str]) -> Settle:
    """Their consumer is done with these messages."""
    return Settle(queue_id, receipts, lambda config, _, __: acked(config))


def nack(
    queue_id: bytes, receipts: Sequence[str], *, delay_ms: int = 0, dead_letter: bool = False
) -> Settle:
    """Their consumer gives these messages back, or rejects them."""
    return Settle(queue_id, receipts, partial(nacked, delay_ms=delay_ms, dead_letter=dead_letter))


def extend(queue_id: bytes, receipts: Sequence[str], visibility_ms: int | None) -> Settle:
    """Their consumer wants these messages for longer, from now on."""

    def decide(config: QueueConfig, life: Life, now: int) -> Fate:
        visibility = config.visibility_ms if visibility_ms is None else visibility_ms
        return extended(life, now, visibility)

    return Settle(queue_id, receipts, decide)


def _judged(
    receipt: Receipt | None, store_id: bytes, inside: int, there: dict[int, Stored]
) -> Verdict:
    if receipt is None:
        return Verdict.GONE
    stored = there.get(receipt.sequence)
    now = None if stored is None else There(stored.item.deliveries, stored.message.msg_id)
    return judged(receipt, store_id, inside, now)
