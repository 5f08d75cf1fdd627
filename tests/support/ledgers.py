"""A ledger in a test: rounds around single calls, messages without bytes, and a check after each round."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.ledger.base import Item, Ledger, NewMessage, QueueRow, Stored
from bottomless_server.queues.ledger.memory import MemoryLedger
from bottomless_server.queues.ledger.sqlite import SqliteLedger

STORE_ID = b"0123456789abcdef"
LEDGERS = ("memory", "sqlite")


def open_ledger(kind: str, directory: Path) -> Ledger:
    if kind == "memory":
        return MemoryLedger(STORE_ID)
    return SqliteLedger(directory / "ledger.db", RealFileCalls(), STORE_ID)


@contextmanager
def a_round(ledger: Ledger) -> Iterator[int]:
    """A round with one change, which is committed and checked; an error takes it back."""
    number = ledger.begin()
    try:
        ledger.savepoint()
        yield number
        ledger.keep()
        ledger.commit()
    except BaseException:
        ledger.rollback()
        raise
    assert ledger.check() == []


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Books:
    """A ledger with an open file, and ids and places that count up."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.count = 0
        with a_round(ledger):
            self.file = ledger.add_file(FileState.OPEN)
        self.end = 64

    def queue(self, name: str = "jobs", tenant: str = "default") -> QueueRow:
        self.count += 1
        with a_round(self.ledger):
            return self.ledger.create_queue(id_of(self.count), tenant, name, "{}")

    def fresh(self, row: QueueRow) -> QueueRow:
        found = self.ledger.queue(row.queue_id)
        assert found is not None
        return found

    def next_file(self) -> int:
        with a_round(self.ledger):
            self.ledger.set_file_state(self.file, FileState.SEALED)
            self.file = self.ledger.add_file(FileState.OPEN)
        self.end = 64
        return self.file

    def publish(
        self,
        *queues: QueueRow,
        priority: int = 0,
        due_at: int | None = None,
        expires_at: int | None = None,
        size: int = 100,
    ) -> list[int]:
        """One message into all of the queues; returns its sequences."""
        with a_round(self.ledger):
            return self.add(
                *queues, priority=priority, due_at=due_at, expires_at=expires_at, size=size
            )

    def add(
        self,
        *queues: QueueRow,
        priority: int = 0,
        due_at: int | None = None,
        expires_at: int | None = None,
        size: int = 100,
    ) -> list[int]:
        """The same within a round that is open."""
        self.count += 1
        state = ItemState.READY if due_at is None else ItemState.DELAYED
        items = [
            Item(row.inside, row.next_sequence, state, priority, due_at, expires_at, 5, 0, None)
            for row in map(self.fresh, queues)
        ]
        message = NewMessage(id_of(self.count), self.file, self.end, size, items)
        self.end += size
        self.ledger.add_messages([message])
        self.ledger.set_file_size(self.file, self.end)
        return [item.sequence for item in items]

    def take(self, row: QueueRow, count: int, until: int) -> list[Stored]:
        """What a receive does."""
        with a_round(self.ledger):
            taken = self.ledger.ready(self.fresh(row).inside, count)
            self.ledger.change_items([(stored, in_flight(stored.item, until)) for stored in taken])
        return taken

    def remove(self, row: QueueRow, *sequences: int) -> None:
        with a_round(self.ledger):
            there = self.ledger.items(self.fresh(row).inside, sequences)
            self.ledger.remove_items(list(there.values()))

    def sequences(self, row: QueueRow) -> list[int]:
        return sequences(self.ledger.page(self.fresh(row).inside, 0, 1000))


def in_flight(item: Item, until: int) -> Item:
    return item._replace(state=ItemState.IN_FLIGHT, due_at=until, deliveries=item.deliveries + 1)


def sequences(stored: Sequence[Stored]) -> list[int]:
    return [each.item.sequence for each in stored]
