"""Messages that go from one queue to another: dead letters that arrive, and what is redriven.

Each is published anew where it goes, with a record of its own whose envelope names that queue: so a
rebuild of a lost ledger finds it there, whatever was purged or deleted where it was. It is taken away
where it was in the same round: so it is in one of both places, and never in two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bottomless.model.queue import QueueMessage
from bottomless_server.core.not_found import queue_not_found
from bottomless_server.queues.changes.fates import config_of, live_queue
from bottomless_server.queues.changes.storing import Copy, Fresh, store_messages
from bottomless_server.queues.core.life import published
from bottomless_server.queues.core.message_ids import first_id
from bottomless_server.queues.core.origin import decode_origin, with_origin, without_origin
from bottomless_server.queues.core.repeats import ids_of
from bottomless_server.queues.core.states import ItemState
from bottomless_server.queues.ledger.base import Outgoing, QueueRow, Stored, Target
from bottomless_server.queues.rounds.work import Work

_OVERHEAD = 1_024


class Arriving(NamedTuple):
    """An outgoing row, and the message that was read for it."""

    row: Outgoing
    message: QueueMessage


@dataclass(frozen=True)
class Arrive:
    """Publish outgoing messages in the queue where they go; the answer says how many."""

    target: Target
    arriving: Sequence[Arriving]
    randomness: bytes
    checksum: bool = True

    @property
    def size(self) -> int:
        return sum(len(each.message.value) + _OVERHEAD for each in self.arriving)

    def apply(self, work: Work) -> int:
        row = _queue(work, self.target.tenant, self.target.name)
        ids = ids_of(first_id(work.now, self.randomness), len(self.arriving))
        fresh = [
            _anew(work, row, msg_id, each.message, *_left(each))
            for msg_id, each in zip(ids, self.arriving, strict=True)
        ]
        # Bounds of this queue do not refuse what another one has let go of already.
        store_messages(work, fresh, checksum=self.checksum)
        work.ledger.remove_outgoing(self.target.id, [each.row.number for each in self.arriving])
        return len(fresh)


class Redriven(NamedTuple):
    """What a redrive has come to."""

    moved: int
    missing: str | None
    """A queue that was deleted before its messages came; those stay where they are."""


class Redriving(NamedTuple):
    """An item that is redriven, as it was when its message was read, and where it goes."""

    stored: Stored
    message: QueueMessage
    to: str


@dataclass(frozen=True)
class Redrive:
    """Publish messages anew in the queues that they came from; the answer is a Redriven.

    What is not ready any more stays, and so does what has nowhere to go: the others move.
    """

    queue_id: bytes
    items: Sequence[Redriving]
    randomness: bytes
    checksum: bool = True

    @property
    def size(self) -> int:
        return sum(len(each.message.value) + _OVERHEAD for each in self.items)

    def apply(self, work: Work) -> Redriven:
        row = live_queue(work, self.queue_id)
        names = dict.fromkeys(each.to for each in self.items)
        found = {name: work.ledger.queue_named(row.tenant, name) for name in names}
        targets = {name: to for name, to in found.items() if to is not None}
        there = work.ledger.items(row.inside, [each.stored.item.sequence for each in self.items])
        ids = ids_of(first_id(work.now, self.randomness), len(self.items))
        moving = [
            (msg_id, each)
            for msg_id, each in zip(ids, self.items, strict=True)
            if each.to in targets
            and _is_still(each.stored, there.get(each.stored.item.sequence), row)
        ]
        for name in {each.to for _, each in moving}:
            work.require_registry(targets[name].queue_id)
        fresh = [
            _anew(
                work,
                targets[each.to],
                msg_id,
                each.message,
                None,
                without_origin(each.message.headers),
            )
            for msg_id, each in moving
        ]
        if fresh:
            store_messages(work, fresh, checksum=self.checksum)
            work.ledger.remove_items([there[each.stored.item.sequence] for _, each in moving])
        missing = next((name for name, to in found.items() if to is None), None)
        return Redriven(len(fresh), missing)


def _queue(work: Work, tenant: str, name: str) -> QueueRow:
    row = work.ledger.queue_named(tenant, name)
    if row is None:
        raise queue_not_found(name)
    work.require_registry(row.queue_id)
    return row


def _is_still(before: Stored, now: Stored | None, row: QueueRow) -> bool:
    return (
        now is not None
        and before.item.inside == row.inside
        and now.item.state is ItemState.READY
        and now.message.id == before.message.id
    )


def _left(each: Arriving) -> tuple[bytes, tuple[tuple[str, bytes], ...]]:
    origin = decode_origin(each.row.origin)
    return each.row.origin, with_origin(each.message.headers, origin, each.row.message.msg_id)


def _anew(
    work: Work,
    row: QueueRow,
    msg_id: bytes,
    message: QueueMessage,
    origin: bytes | None,
    headers: tuple[tuple[str, bytes], ...],
) -> Fresh:
    # Its own time may be over already, and would let it expire again at once: only the queue's counts.
    life = published(config_of(row.config), work.now)
    copy = Copy(row, life, origin)
    return Fresh(msg_id, message.content, message.priority, None, headers, message.value, [copy])
