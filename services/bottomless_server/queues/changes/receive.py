"""Receive: the first ready messages of a queue are in flight, for as long as their consumer may have them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bottomless_server.queues.changes.fates import (
    carry_out,
    config_of,
    life_of,
    live_queue,
    with_life,
)
from bottomless_server.queues.core.life import Fate, Life, received
from bottomless_server.queues.core.receipt import (
    MESSAGE_SIZE,
    STORE_SIZE,
    Receipt,
    There,
    Verdict,
    judged,
    read_receipt,
    write_receipt,
)
from bottomless_server.queues.core.states import ItemState
from bottomless_server.queues.ledger.base import Item, Message, QueueRow, Stored, Totals
from bottomless_server.queues.ports import Pin
from bottomless_server.queues.rounds.work import Work

_LOOK_COUNT_MAX: Final = 10
"""Looks at the front of a queue in one receive: what has expired there leaves, and others come after it."""
LOOK_SIZE: Final = 200
"""Messages of a further look, at least: where one has expired many may have."""


class Delivery(NamedTuple):
    """A message that was taken, and where its record is to be read."""

    item: Item
    """What it has become: it is in flight."""
    message: Message
    receipt: str


class Received(NamedTuple):
    """What a receive has taken. Whoever has it releases the pins once the records are read."""

    deliveries: Sequence[Delivery]
    pins: Sequence[Pin]

    def release(self) -> None:
        for pin in self.pins:
            pin.release()


@dataclass(frozen=True)
class Receive:
    """Take messages. One is taken always if one is ready, however large it is."""

    queue_id: bytes
    limit: int
    bytes_max: int
    visibility_ms: int | None = None
    size: int = 0

    def apply(self, work: Work) -> Received:
        row = live_queue(work, self.queue_id)
        store = work.ledger.store().store_id[:STORE_SIZE]
        taken: list[tuple[Stored, Life]] = []
        for look in range(_LOOK_COUNT_MAX):
            found, goes_on = self._look(work, row, taken, LOOK_SIZE if look else 0)
            carry_out(work, row, found)
            taken += [(stored, fate) for stored, fate in found if isinstance(fate, Life)]
            if not goes_on:
                break
        else:
            # Others may come after all that has expired: so it is not left waiting for new ones.
            work.wake(row.queue_id, 1)
        again = sum(life.deliveries > 1 for _, life in taken)
        if taken:
            totals = Totals(delivered=len(taken), redelivered=again)
            work.count(row.queue_id, totals)
        files = {stored.message.file for stored, _ in taken}
        deliveries = [_delivery(store, stored, life) for stored, life in taken]
        return Received(deliveries, [work.pin(file) for file in sorted(files)])

    def _look(
        self, work: Work, row: QueueRow, taken: Sequence[tuple[Stored, Life]], at_least: int
    ) -> tuple[list[tuple[Stored, Fate]], bool]:
        """What becomes of the first ready items, and whether it is worth looking again."""
        wanted = self.limit - len(taken)
        size = sum(stored.message.size for stored, _ in taken)
        asked = max(wanted, at_least)
        there = work.ledger.ready(row.inside, asked)
        found: list[tuple[Stored, Fate]] = []
        left = 0
        config = config_of(row.config)
        for stored in there:
            if len(found) - left == wanted:
                return found, False
            fate = received(config, life_of(stored.item), work.now, self.visibility_ms)
            if isinstance(fate, Life):
                size += stored.message.size
                if size > self.bytes_max and (taken or len(found) > left):
                    return found, False
            else:
                left += 1
            found.append((stored, fate))
        return found, left > 0 and len(there) == asked

    def is_empty(self, answer: Received) -> bool:
        return not answer.deliveries

    def give_back(self, answer: Any) -> "GiveBack | None":
        """Let others have at once what nobody hears of."""
        answer.release()
        receipts = [each.receipt for each in answer.deliveries]
        return GiveBack(self.queue_id, receipts) if receipts else None


@dataclass(frozen=True)
class GiveBack:
    """Make items ready again that were taken for somebody who never got them, and are nobody else's yet.

    That was no delivery: nobody was told of it, so its receipt is nobody's, and the next delivery may have
    the same one. So it is asked for once: a second time it would take them from that delivery's consumer.
    """

    queue_id: bytes
    receipts: Sequence[str]
    delay_ms: int = 0
    """How long they stay away."""
    size: int = 0

    def apply(self, work: Work) -> int:
        row = live_queue(work, self.queue_id)
        store_id = work.ledger.store().store_id
        read = [read_receipt(receipt) for receipt in self.receipts]
        asked = {each.sequence: each for each in read if each is not None}
        there = work.ledger.items(row.inside, list(asked))
        state = ItemState.DELAYED if self.delay_ms else ItemState.READY
        due_at = work.now + self.delay_ms if self.delay_ms else None
        back: list[tuple[Stored, Fate]] = [
            (
                stored,
                Life(state, due_at, stored.item.expires_at, stored.item.deliveries - 1),
            )
            for sequence, stored in there.items()
            if stored.item.state is ItemState.IN_FLIGHT
            and judged(asked[sequence], store_id, row.inside, _there(stored)) is Verdict.GOOD
        ]
        carry_out(work, row, back)
        return len(back)


@dataclass(frozen=True)
class GiveBackByName:
    """Do the same in the queue of a name. If that is another queue by now, the receipts name nothing in it."""

    tenant: str
    name: str
    receipts: Sequence[str]
    size: int = 0

    def apply(self, work: Work) -> int:
        row = work.ledger.queue_named(self.tenant, self.name)
        return 0 if row is None else GiveBack(row.queue_id, self.receipts).apply(work)


def _there(stored: Stored) -> There:
    return There(stored.item.deliveries, stored.message.msg_id)


def _delivery(store: bytes, stored: Stored, life: Life) -> Delivery:
    item = with_life(stored.item, life)
    message = stored.message.msg_id[-MESSAGE_SIZE:]
    receipt = write_receipt(Receipt(store, item.inside, item.sequence, item.deliveries, message))
    return Delivery(item, stored.message, receipt)
