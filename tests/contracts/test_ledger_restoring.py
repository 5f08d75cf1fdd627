"""What the ledger promises those who make one of what they found on a disk, on SQLite and in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ledgers import LEDGERS, Books, a_round, open_ledger, sequences

from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.ledger.base import SEQUENCE_BLOCK, Item, Ledger, NewMessage, QueueRow


@pytest.fixture(params=LEDGERS)
def books(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Books]:
    found = open_ledger(request.param, tmp_path)
    yield Books(found)
    found.close()


def found(msg_id: bytes, file: int, position: int, *places: tuple[QueueRow, int]) -> NewMessage:
    items = [
        Item(queue.inside, sequence, ItemState.READY, 0, None, None, 5, 0, None)
        for queue, sequence in places
    ]
    return NewMessage(msg_id, file, position, 100, items)


def a_file(ledger: Ledger) -> int:
    number = ledger.add_file(FileState.MOVING)
    ledger.set_file_size(number, 1_000)
    return number


def state_of(ledger: Ledger, number: int) -> FileState:
    row = ledger.file(number)
    assert row is not None
    return row.state


def test_messages_that_were_found_come_in_any_order_and_with_holes(books: Books) -> None:
    one, other = books.queue("one"), books.queue("other")
    ledger = books.ledger
    with a_round(ledger):
        file = a_file(ledger)
        ledger.restore_messages([found(bytes(16), file, 500, (one, 7), (other, 0))])
        ledger.restore_messages([found(b"m" * 16, file, 64, (one, 3))])
    assert sequences(ledger.page(one.inside, 0, 9)) == [3, 7]
    assert sequences(ledger.page(other.inside, 0, 9)) == [0]
    assert (books.fresh(one).next_sequence, books.fresh(other).next_sequence) == (8, 1)
    assert ledger.check() == []


def test_a_message_that_is_found_again_for_another_queue_is_one_message(books: Books) -> None:
    one, other = books.queue("one"), books.queue("other")
    ledger = books.ledger
    with a_round(ledger):
        file = a_file(ledger)
        for queue in (one, other):
            ledger.restore_messages([found(bytes(16), file, 64, (queue, 0))])
        ledger.set_file_state(file, FileState.SEALED)
    row = ledger.file(file)
    assert row is not None
    assert (len(ledger.live(file)), row.valid) == (1, 100)
    assert ledger.check() == []
    with a_round(ledger):
        ledger.remove_items(ledger.page(one.inside, 0, 9))
    assert state_of(ledger, file) is FileState.SEALED
    with a_round(ledger):
        ledger.remove_items(ledger.page(other.inside, 0, 9))
    assert state_of(ledger, file) is FileState.DOOMED
    assert ledger.check() == []


def test_a_queue_goes_on_above_what_was_found_and_above_what_was_reserved(books: Books) -> None:
    queue = books.queue()
    ledger = books.ledger
    with a_round(ledger):
        ledger.settle_registry([queue.queue_id])
    with a_round(ledger):
        ledger.restore_numbers(
            queue.queue_id, version=4, next_sequence=SEQUENCE_BLOCK, purged_below=3
        )
    row = books.fresh(queue)
    assert (row.next_sequence, row.reserved_below) == (SEQUENCE_BLOCK, 3 * SEQUENCE_BLOCK)
    assert (row.purged_below, row.version) == (3, 4)
    assert [due.queue_id for due in ledger.registry_due(9)] == [queue.queue_id]
    with a_round(ledger):
        ledger.restore_numbers(queue.queue_id, version=2, next_sequence=5, purged_below=1)
        file = a_file(ledger)
        ledger.restore_messages([found(bytes(16), file, 64, (row, 2 * SEQUENCE_BLOCK + 1))])
    row = books.fresh(queue)
    assert (row.next_sequence, row.reserved_below) == (2 * SEQUENCE_BLOCK + 2, 4 * SEQUENCE_BLOCK)
    assert (row.purged_below, row.version) == (3, 4)
    assert ledger.check() == []


def test_a_file_that_was_found_keeps_its_number_and_later_ones_are_above_it(books: Books) -> None:
    ledger = books.ledger
    with a_round(ledger):
        for number in (7, 3):
            ledger.restore_file(number)
    assert state_of(ledger, 7) is FileState.MOVING
    with a_round(ledger):
        assert ledger.add_file(FileState.MOVING) == 8
