"""Small changes of queues for tests of rounds: a record is its value, and nothing decides about a life."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bottomless.errors import Code, Overloaded
from bottomless_server.queues.core.states import ItemState
from bottomless_server.queues.ledger.base import Item, Ledger, NewMessage, QueueRow
from bottomless_server.queues.ports import Record
from bottomless_server.queues.rounds.work import Asked, Change, Work
from support.ledgers import in_flight

VISIBILITY_MS: Final = 30_000


@dataclass
class CreateQueue:
    queue_id: bytes
    name: str
    size: int = 0

    def apply(self, work: Work) -> QueueRow:
        return work.ledger.create_queue(self.queue_id, "default", self.name, "{}")


@dataclass
class Publish:
    """Answers the sequence. With `refused` it is refused after it has done everything."""

    queue_id: bytes
    value: bytes
    refused: bool = False
    bug: bool = False
    expires_at: int | None = None

    @property
    def size(self) -> int:
        return len(self.value)

    def apply(self, work: Work) -> int:
        work.require_registry(self.queue_id)
        row = work.ledger.queue(self.queue_id)
        assert row is not None
        file, position = work.add_record([self.value])
        item = Item(
            row.inside,
            row.next_sequence,
            ItemState.READY,
            0,
            None,
            self.expires_at,
            work.now,
            0,
            None,
        )
        msg_id = work.number.to_bytes(8, "big") + row.next_sequence.to_bytes(8, "big")
        work.ledger.add_messages([NewMessage(msg_id, file, position, len(self.value), [item])])
        work.wake(self.queue_id, 1)
        if self.refused:
            raise Overloaded("the queue is full", code=Code.OVERLOADED)
        assert not self.bug
        return row.next_sequence


@dataclass
class PublishRecords:
    """Messages by their ids, with whole records, all of them placed before one is entered."""

    queue_id: bytes
    records: Mapping[bytes, Record]

    @property
    def size(self) -> int:
        return sum(map(_size_of, self.records.values()))

    def apply(self, work: Work) -> None:
        row = work.ledger.queue(self.queue_id)
        assert row is not None
        places = [work.add_record(record) for record in self.records.values()]
        messages = []
        for number, (msg_id, record) in enumerate(self.records.items()):
            item = Item(
                row.inside,
                row.next_sequence + number,
                ItemState.READY,
                0,
                None,
                None,
                work.now,
                0,
                None,
            )
            messages.append(NewMessage(msg_id, *places[number], _size_of(record), [item]))
        work.ledger.add_messages(messages)
        work.wake(self.queue_id, len(messages))


def _size_of(record: Record) -> int:
    return sum(memoryview(part).nbytes for part in record)


@dataclass
class Do:
    """Anything with the ledger; answers what that returned, and the number of the round."""

    change: Callable[[Ledger], Any]
    size: int = 0

    def apply(self, work: Work) -> tuple[Any, int]:
        return self.change(work.ledger), work.number


@dataclass
class Take:
    """Answers sequences."""

    queue_id: bytes
    limit: int = 10
    size: int = 0
    pins: bool = False
    asked_count: int = field(default=0, compare=False)

    def apply(self, work: Work) -> list[int]:
        self.asked_count += 1
        row = work.ledger.queue(self.queue_id)
        assert row is not None
        found = work.ledger.ready(row.inside, self.limit)
        until = work.now + VISIBILITY_MS
        work.ledger.change_items([(each, in_flight(each.item, until)) for each in found])
        if self.pins:
            work.pin(0)
        return [each.item.sequence for each in found]

    def is_empty(self, answer: Any) -> bool:
        return not answer

    def give_back(self, answer: Sequence[int]) -> Change | None:
        return GiveBack(self.queue_id, answer) if answer else None


@dataclass
class GiveBack:
    queue_id: bytes
    sequences: Sequence[int]
    size: int = 0

    def apply(self, work: Work) -> None:
        row = work.ledger.queue(self.queue_id)
        assert row is not None
        there = work.ledger.items(row.inside, self.sequences)
        work.ledger.change_items(
            [
                (each, each.item._replace(state=ItemState.READY, due_at=None))
                for each in there.values()
            ]
        )
        work.wake(self.queue_id, len(there))


@dataclass
class Ack:
    queue_id: bytes
    sequences: Sequence[int]
    size: int = 0

    def apply(self, work: Work) -> int:
        row = work.ledger.queue(self.queue_id)
        assert row is not None
        there = list(work.ledger.items(row.inside, self.sequences).values())
        work.ledger.remove_items(there)
        return len(there)


@dataclass
class Delete:
    queue_id: bytes
    size: int = 0

    def apply(self, work: Work) -> None:
        work.ledger.delete_queue(self.queue_id)
        work.needs_upkeep = True


def wanted(*changes: Change) -> list[Asked]:
    return [Asked(change, lambda: True) for change in changes]
