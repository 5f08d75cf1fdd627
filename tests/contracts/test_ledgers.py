"""What the ledger of queues promises, on SQLite and in memory.

Every round of these tests ends with a look at everything that rows say of each other.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ledgers import LEDGERS, STORE_ID, Books, a_round, id_of, open_ledger, sequences

from bottomless_server.queues.core.states import FileState, ItemState, QueueState
from bottomless_server.queues.ledger.base import (
    SEQUENCE_BLOCK,
    FileRow,
    Item,
    Ledger,
    LedgerFailed,
    Move,
    NewMessage,
    Seen,
    Sums,
    Totals,
)


@pytest.fixture(params=LEDGERS)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    found = open_ledger(request.param, tmp_path)
    yield found
    found.close()


@pytest.fixture
def books(ledger: Ledger) -> Books:
    return Books(ledger)


# Rounds


def test_a_new_ledger_has_a_row_of_its_store(ledger: Ledger) -> None:
    row = ledger.store()
    assert (row.store_id, row.round, row.clean, row.clock) == (STORE_ID, 0, True, 0)
    assert (row.next_file, row.last_v1_file) == (0, None)
    assert (ledger.files(), ledger.targets(), ledger.next_due()) == ([], [], None)


def test_rounds_have_numbers_that_count_up_with_each_commit(ledger: Ledger) -> None:
    with a_round(ledger) as first:
        pass
    ledger.begin()
    ledger.rollback()
    with a_round(ledger) as second:
        pass
    assert (first, second, ledger.store().round) == (1, 2, 2)


def test_what_was_rolled_back_leaves_nothing(books: Books) -> None:
    queue = books.queue()
    books.publish(queue)
    before = (books.fresh(queue), books.ledger.files(), books.ledger.store())

    books.ledger.begin()
    books.add(queue)
    books.ledger.remove_items(books.ledger.page(queue.inside, 0, 1))
    books.ledger.add_file(FileState.MOVING)
    books.ledger.set_clock(99)
    books.ledger.rollback()

    assert (books.fresh(queue), books.ledger.files(), books.ledger.store()) == before
    assert books.ledger.check() == []


def test_a_change_that_is_undone_leaves_those_before_and_after_it(books: Books) -> None:
    queue = books.queue()
    ledger = books.ledger
    ledger.begin()
    ledger.savepoint()
    books.add(queue, priority=1)
    ledger.keep()
    ledger.savepoint()
    end = books.end
    books.add(queue, priority=2)
    ledger.undo()
    books.end = end
    ledger.savepoint()
    books.add(queue, priority=3)
    ledger.keep()
    ledger.commit()

    there = ledger.page(queue.inside, 0, 9)
    assert [(each.item.sequence, each.item.priority) for each in there] == [(0, 1), (1, 3)]
    assert books.fresh(queue).next_sequence == 2
    assert ledger.check() == []


def test_nothing_changes_outside_a_round(books: Books) -> None:
    queue = books.queue()
    with pytest.raises(AssertionError):
        books.ledger.purge(queue.queue_id)
    with pytest.raises(AssertionError):
        books.ledger.set_clock(5)
    with pytest.raises(AssertionError):
        books.ledger.forget_seen(5, 5)
    assert books.ledger.store().clock == 0


def test_what_was_committed_is_there_after_it_was_opened_anew(books: Books) -> None:
    queue = books.queue()
    books.publish(queue)
    ledger = books.ledger
    ledger.begin()
    books.add(queue)
    ledger.reopen()

    assert books.sequences(queue) == [0]
    assert ledger.store().round == 3
    assert ledger.check() == []
    with a_round(ledger) as number:
        pass
    assert number == 4


def test_a_checkpoint_changes_nothing(books: Books) -> None:
    queue = books.queue()
    books.publish(queue)
    before = books.fresh(queue)
    books.ledger.checkpoint()
    assert books.ledger.log_size == 0
    assert (books.fresh(queue), books.sequences(queue)) == (before, [0])


def test_the_clock_never_goes_back(ledger: Ledger) -> None:
    for clock in (7, 3, 9):
        with a_round(ledger):
            ledger.set_clock(clock)
    assert ledger.store().clock == 9


def test_what_there_is_once_is_kept(ledger: Ledger) -> None:
    with a_round(ledger):
        ledger.set_clean(clean=False)
        ledger.set_last_v1_file(12)
    assert (ledger.store().clean, ledger.store().last_v1_file) == (False, 12)
    with a_round(ledger):
        ledger.set_clean(clean=True)
        ledger.set_last_v1_file(None)
    assert (ledger.store().clean, ledger.store().last_v1_file) == (True, None)


def test_a_closed_ledger_answers_nothing(ledger: Ledger) -> None:
    ledger.close()
    with pytest.raises(LedgerFailed):
        ledger.store()


# Files


def test_the_number_of_a_file_is_given_once(ledger: Ledger) -> None:
    with a_round(ledger):
        assert [ledger.add_file(FileState.MOVING) for _ in range(2)] == [0, 1]
    with a_round(ledger):
        ledger.remove_file(1)
    with a_round(ledger):
        assert ledger.add_file(FileState.OPEN) == 2
        ledger.set_file_size(2, 64)
    assert ledger.file(1) is None
    assert ledger.files() == [
        FileRow(0, 0, 0, FileState.MOVING),
        FileRow(2, 64, 0, FileState.OPEN),
    ]


def test_bytes_of_a_file_are_valid_while_a_queue_needs_its_message(books: Books) -> None:
    one, two = books.queue("one"), books.queue("two")
    books.publish(one, two, size=300)
    books.publish(one, size=40)
    assert books.ledger.file(books.file) == FileRow(0, 404, 340, FileState.OPEN)

    books.remove(one, 0)
    assert books.ledger.file(books.file) == FileRow(0, 404, 340, FileState.OPEN)
    books.remove(two, 0)
    assert books.ledger.file(books.file) == FileRow(0, 404, 40, FileState.OPEN)


def test_both_items_of_a_message_may_go_at_once(books: Books) -> None:
    one, two = books.queue("one"), books.queue("two")
    books.publish(one, two)
    books.publish(one, two)
    ledger = books.ledger
    with a_round(ledger):
        there = [*ledger.page(one.inside, 0, 9), *ledger.page(two.inside, 0, 1)]
        ledger.remove_items(there)
    assert ledger.file(books.file) == FileRow(0, 264, 100, FileState.OPEN)
    assert books.sequences(two) == [1]


def test_a_sealed_file_is_doomed_in_the_round_that_takes_its_last_message(books: Books) -> None:
    queue = books.queue()
    for _ in range(2):
        books.publish(queue)
    first = books.file
    second = books.next_file()
    books.publish(queue)

    books.remove(queue, 0)
    assert states(books) == {first: FileState.SEALED, second: FileState.OPEN}
    books.remove(queue, 1, 2)
    assert states(books) == {first: FileState.DOOMED, second: FileState.OPEN}
    with a_round(books.ledger):
        then = books.ledger.set_file_state(second, FileState.SEALED)
    assert then is FileState.DOOMED


def test_a_file_that_compaction_is_at_work_on_is_not_doomed_under_its_hands(books: Books) -> None:
    queue = books.queue()
    books.publish(queue)
    with a_round(books.ledger):
        books.ledger.set_file_state(books.file, FileState.MOVING)
    books.remove(queue, 0)
    assert states(books) == {0: FileState.MOVING}
    with a_round(books.ledger):
        assert books.ledger.set_file_state(0, FileState.SEALED) is FileState.DOOMED


def states(books: Books) -> dict[int, FileState]:
    return {row.number: row.state for row in books.ledger.files()}


def test_live_messages_of_a_file_come_by_their_positions(books: Books) -> None:
    queue = books.queue()
    for size in (10, 20, 30):
        books.publish(queue, size=size)
    books.remove(queue, 1)
    live = books.ledger.live(books.file)
    assert [(each.position, each.size) for each in live] == [(64, 10), (94, 30)]


def test_messages_move_within_a_file_and_those_that_are_gone_do_not(books: Books) -> None:
    queue = books.queue()
    for _ in range(3):
        books.publish(queue)
    first, second, third = books.ledger.live(books.file)
    books.remove(queue, 0, 1)
    with a_round(books.ledger):
        moved = books.ledger.move(
            [
                Move(third.msg_id, 0, third.position, 0, first.position),
                Move(second.msg_id, 0, second.position, 0, 500),
                Move(second.msg_id, 0, third.position, 0, 600),
            ]
        )
    assert moved == 1
    assert [each.position for each in books.ledger.live(0)] == [first.position]


def test_messages_move_to_another_file_with_their_bytes(books: Books) -> None:
    queue = books.queue()
    for size in (10, 20):
        books.publish(queue, size=size)
    old = books.file
    new = books.next_file()
    first, second = books.ledger.live(old)
    with a_round(books.ledger):
        books.ledger.set_file_size(new, 94)
        moves = [
            Move(first.msg_id, old, first.position, new, 64),
            Move(second.msg_id, old, second.position, new, 74),
        ]
        assert books.ledger.move(moves) == 2
    assert books.ledger.files() == [
        FileRow(old, 94, 0, FileState.DOOMED),
        FileRow(new, 94, 30, FileState.OPEN),
    ]


def test_a_file_with_messages_keeps_its_row(books: Books) -> None:
    books.publish(books.queue())
    with pytest.raises(AssertionError), a_round(books.ledger):
        books.ledger.remove_file(0)
    assert states(books) == {0: FileState.OPEN}


# Queues


def test_a_queue_is_found_by_its_id_its_name_and_its_number(books: Books) -> None:
    row = books.queue("jobs")
    ledger = books.ledger
    assert (row.version, row.state, row.next_sequence) == (1, QueueState.LIVE, 0)
    assert (row.reserved_below, row.sums, row.totals) == (SEQUENCE_BLOCK, Sums(), Totals())
    assert ledger.queue(row.queue_id) == ledger.queue_named("default", "jobs") == row
    assert ledger.queue_inside(row.inside) == row
    assert ledger.queue_named("other", "jobs") is None
    assert ledger.queue(id_of(999)) is None


def test_a_name_is_taken_within_one_tenant(books: Books) -> None:
    books.queue("jobs")
    other = books.queue("jobs", tenant="other")
    assert books.ledger.queue_named("other", "jobs") == other


@pytest.mark.parametrize(
    "asked", [[], [3], [2, 3, 4, 5], [9, 0], [0, 2**63 - 1], [7, 8, 9, 10, 11], [5, 5, 4]]
)
def test_items_are_found_by_their_sequences_however_they_lie(
    books: Books, asked: list[int]
) -> None:
    queue, other = books.queue("a"), books.queue("b")
    for _ in range(10):
        books.publish(queue, other)
    books.remove(queue, 4)
    found = books.ledger.items(queue.inside, asked)
    assert {each.item.inside for each in found.values()} <= {queue.inside}
    there = {number: number for number in asked if number < 10 and number != 4}
    assert {number: each.item.sequence for number, each in found.items()} == there


def test_sums_of_all_queues_are_those_of_the_live_ones(books: Books) -> None:
    assert books.ledger.sums() == Sums()
    first, second, gone = books.queue("a"), books.queue("b"), books.queue("c", "other")
    books.publish(first, size=100)
    books.publish(first, second, size=50)
    books.publish(second, due_at=9, size=10)
    books.publish(gone)
    books.take(first, 1, until=9)
    with a_round(books.ledger):
        books.ledger.delete_queue(gone.queue_id)
    assert books.ledger.sums() == Sums(ready=2, in_flight=1, delayed=1, bytes=210)


def test_queues_are_listed_by_their_names_a_page_at_a_time(books: Books) -> None:
    for name in ("c", "a", "b"):
        books.queue(name)
    books.queue("d", tenant="other")
    pages = [books.ledger.queues("default", after, 2) for after in ("", "b", "c")]
    assert [[row.name for row in page] for page in pages] == [["a", "b"], ["c"], []]
    assert books.ledger.queue_count("default") == 3


def test_a_changed_configuration_has_the_next_version_and_is_due(books: Books) -> None:
    row = books.queue()
    settle(books)
    with a_round(books.ledger):
        books.ledger.set_config(row.queue_id, '{"delay_ms":1}')
    fresh = books.fresh(row)
    assert (fresh.version, fresh.config) == (2, '{"delay_ms":1}')
    assert [each.queue_id for each in books.ledger.registry_due(9)] == [row.queue_id]


def settle(books: Books) -> None:
    with a_round(books.ledger):
        due = books.ledger.registry_due(100)
        books.ledger.settle_registry([row.queue_id for row in due])
    assert books.ledger.registry_due(1) == []


def test_sequences_are_not_used_before_they_are_reserved(books: Books) -> None:
    row = books.queue()
    settle(books)
    with a_round(books.ledger):
        books.ledger.reserve(row.queue_id, 3 * SEQUENCE_BLOCK)
    with a_round(books.ledger):
        books.ledger.reserve(row.queue_id, SEQUENCE_BLOCK)
    (due,) = books.ledger.registry_due(9)
    assert due.reserved_below == 3 * SEQUENCE_BLOCK


def test_a_purge_takes_everything_at_once_and_the_space_comes_back_in_steps(books: Books) -> None:
    row = books.queue()
    ledger = books.ledger
    for _ in range(5):
        books.publish(row)
    books.take(row, 2, until=50)
    settle(books)
    with a_round(ledger):
        assert ledger.purge(row.queue_id) == 5

    after = books.fresh(row)
    assert (after.sums, after.purged_below, after.next_sequence) == (Sums(), 5, 5)
    assert after.inside != row.inside
    assert ledger.queue_inside(row.inside) is None
    assert ledger.ready(after.inside, 9) == []
    assert [each.queue_id for each in ledger.registry_due(9)] == [row.queue_id]
    assert ledger.file(0) == FileRow(0, 564, 500, FileState.OPEN)

    assert books.publish(row) == [5]
    swept = []
    for _ in range(4):
        with a_round(ledger):
            swept.append(ledger.sweep(2))
    assert swept == [2, 2, 1, 0]
    assert ledger.file(0) == FileRow(0, 664, 100, FileState.OPEN)
    assert books.sequences(row) == [5]


def test_a_deleted_queue_frees_its_name_at_once(books: Books) -> None:
    row = books.queue("jobs")
    books.publish(row)
    settle(books)
    with a_round(books.ledger):
        books.ledger.delete_queue(row.queue_id)
    assert books.ledger.queue_named("default", "jobs") is None
    again = books.queue("jobs")
    assert again.inside != row.inside

    gone = books.fresh(row)
    assert (gone.state, gone.sums, gone.purged_below) == (QueueState.DELETED, Sums(), 1)
    settle(books)
    assert books.ledger.queue(row.queue_id) is None
    with a_round(books.ledger):
        assert books.ledger.sweep(9) == 1
    assert books.ledger.file(0) == FileRow(0, 164, 0, FileState.OPEN)


def test_doomed_items_of_several_queues_are_swept_together(books: Books) -> None:
    one, two = books.queue("one"), books.queue("two")
    books.publish(one, two)
    books.publish(two)
    with a_round(books.ledger):
        books.ledger.delete_queue(one.queue_id)
        books.ledger.purge(two.queue_id)
    with a_round(books.ledger):
        assert books.ledger.sweep(9) == 3
    assert books.ledger.live(0) == []


def test_totals_add_up(books: Books) -> None:
    row = books.queue()
    for totals in (Totals(published=3, acked=1), Totals(published=2, expired=4)):
        with a_round(books.ledger):
            books.ledger.add_totals(row.queue_id, totals)
    assert books.fresh(row).totals == Totals(published=5, acked=1, expired=4)


# Items


def test_ready_items_come_by_priority_and_then_by_sequence(books: Books) -> None:
    row = books.queue()
    for priority in (0, 5, 0, 9, 5):
        books.publish(row, priority=priority)
    books.publish(row, due_at=90)
    assert sequences(books.ledger.ready(row.inside, 9)) == [3, 1, 4, 0, 2]
    assert sequences(books.ledger.ready(row.inside, 2)) == [3, 1]
    assert books.fresh(row).sums == Sums(ready=5, delayed=1, bytes=600)


def test_what_was_taken_is_not_ready_and_knows_its_deliveries(books: Books) -> None:
    row = books.queue()
    for _ in range(3):
        books.publish(row)
    books.take(row, 2, until=50)
    assert sequences(books.ledger.ready(row.inside, 9)) == [2]
    assert books.fresh(row).sums == Sums(ready=1, in_flight=2, bytes=300)
    item = books.ledger.items(row.inside, [0, 7])[0].item
    assert (item.state, item.due_at, item.deliveries) == (ItemState.IN_FLIGHT, 50, 1)


def test_what_comes_back_keeps_its_place(books: Books) -> None:
    row = books.queue()
    for _ in range(3):
        books.publish(row)
    books.take(row, 1, until=50)
    ledger = books.ledger
    with a_round(ledger):
        back = ledger.due(50, 9)
        ledger.change_items(
            [(each, each.item._replace(state=ItemState.READY, due_at=None)) for each in back]
        )
    assert sequences(ledger.ready(row.inside, 9)) == [0, 1, 2]
    assert books.fresh(row).sums == Sums(ready=3, bytes=300)


def test_what_is_due_comes_in_the_order_of_its_time_whatever_queue_it_is_in(books: Books) -> None:
    one, two = books.queue("one"), books.queue("two")
    for queue, due_at in ((one, 30), (two, 10), (one, 20), (two, 40)):
        books.publish(queue, due_at=due_at)
    ledger = books.ledger
    assert [each.item.due_at for each in ledger.due(30, 9)] == [10, 20, 30]
    assert [each.item.due_at for each in ledger.due(30, 2)] == [10, 20]
    assert (ledger.due(9, 9), ledger.next_due()) == ([], 10)


def test_what_expires_is_found_unless_it_is_in_flight_or_damaged(books: Books) -> None:
    row = books.queue()
    books.publish(row, expires_at=20)
    books.publish(row, expires_at=10, due_at=99)
    books.publish(row, expires_at=30)
    books.publish(row)
    ledger = books.ledger
    assert sequences(ledger.expired(20, 9)) == [1, 0]
    assert (sequences(ledger.expired(20, 1)), ledger.expired(9, 9)) == ([1], [])
    assert ledger.next_due() == 10

    books.take(row, 1, until=70)
    with a_round(ledger):
        (third,) = ledger.items(row.inside, [2]).values()
        ledger.change_items([(third, third.item._replace(state=ItemState.DAMAGED))])
    assert sequences(ledger.expired(99, 9)) == [1]
    assert sequences(ledger.damaged(row.inside, 9)) == [2]
    assert books.fresh(row).sums == Sums(1, 1, 1, 1, 400)
    books.remove(row, 1)
    assert ledger.next_due() == 70


def test_items_are_listed_by_their_sequences(books: Books) -> None:
    row = books.queue()
    for _ in range(4):
        books.publish(row)
    books.remove(row, 1)
    assert sequences(books.ledger.page(row.inside, 1, 2)) == [2, 3]
    assert sequences(books.ledger.page(row.inside, 0, 2)) == [0, 2]


def test_items_of_a_file_are_found_while_they_are_not_damaged(books: Books) -> None:
    one, two = books.queue("one"), books.queue("two")
    books.publish(one, two)
    first = books.file
    books.next_file()
    books.publish(one)
    ledger = books.ledger
    assert sorted(each.item.inside for each in ledger.items_in_file(first, 9)) == [1, 2]
    assert len(ledger.items_in_file(first, 1)) == 1
    with a_round(ledger):
        there = ledger.items_in_file(first, 9)
        ledger.change_items([(each, each.item._replace(state=ItemState.DAMAGED)) for each in there])
    assert ledger.items_in_file(first, 9) == []


def test_sequences_have_no_hole(books: Books) -> None:
    row = books.queue()
    books.publish(row)
    stale = row
    with pytest.raises((AssertionError, LedgerFailed)), a_round(books.ledger):
        books.ledger.add_messages([message_at(books, stale.inside, 2)])
    assert books.fresh(row).next_sequence == 1


def test_no_two_messages_have_one_place(books: Books) -> None:
    row = books.queue()
    books.publish(row)
    books.end = 64
    with pytest.raises((AssertionError, LedgerFailed)):
        books.publish(row)
    assert books.sequences(row) == [0]


def message_at(books: Books, inside: int, sequence: int) -> NewMessage:
    item = Item(inside, sequence, ItemState.READY, 0, None, None, 5, 0, None)
    return NewMessage(id_of(77), books.file, 5_000, 10, [item])


# Repeats


def test_a_publish_is_remembered_by_its_queue_until_its_time_is_over(books: Books) -> None:
    one, two = books.queue("one"), books.queue("two")
    seen = [
        Seen(id_of(n), id_of(70), n, id_of(n), 1, until) for n, until in enumerate((30, 10, 20))
    ]
    ledger = books.ledger
    with a_round(ledger):
        for each in seen:
            ledger.remember(one.queue_id, each)
        ledger.remember(two.queue_id, seen[0])
    assert ledger.seen(one.queue_id, id_of(1)) == seen[1]
    assert ledger.seen(two.queue_id, id_of(1)) is None
    assert (books.fresh(one).remembered, books.fresh(two).remembered) == (3, 1)

    with a_round(ledger):
        assert ledger.forget_seen(20, 1) == 1
    assert ledger.seen(one.queue_id, id_of(1)) is None
    with a_round(ledger):
        assert ledger.forget_seen(20, 9) == 1
    with a_round(ledger):
        assert ledger.forget_seen(20, 9) == 0
    assert (books.fresh(one).remembered, books.fresh(two).remembered) == (1, 1)


def test_a_later_publish_under_a_key_takes_the_place_of_the_one_before(books: Books) -> None:
    row = books.queue()
    for body in (7, 8):
        with a_round(books.ledger):
            seen = Seen(id_of(1), id_of(body), body, id_of(3), 1, 10)
            books.ledger.remember(row.queue_id, seen)
    assert books.ledger.seen(row.queue_id, id_of(1)) == seen
    assert books.fresh(row).remembered == 1


def test_what_a_deleted_queue_remembers_is_forgotten_in_its_time(books: Books) -> None:
    row = books.queue()
    with a_round(books.ledger):
        books.ledger.remember(row.queue_id, Seen(id_of(1), id_of(2), 0, id_of(3), 1, 10))
        books.ledger.delete_queue(row.queue_id)
    settle(books)
    with a_round(books.ledger):
        assert books.ledger.forget_seen(10, 9) == 1


# Outgoing


def test_an_item_that_leaves_keeps_its_bytes_until_it_has_arrived(books: Books) -> None:
    row = books.queue()
    for _ in range(2):
        books.publish(row)
    ledger = books.ledger
    with a_round(ledger):
        target = ledger.target("default", "stream", "dead")
        ledger.send_out(target.id, [(each, b"why") for each in ledger.page(row.inside, 0, 9)])
    assert books.fresh(row).sums == Sums()
    assert ledger.file(0) == FileRow(0, 264, 200, FileState.OPEN)
    first, second = ledger.outgoing(target.id, 9)
    assert (first.number, second.number, first.origin) == (1, 2, b"why")
    assert ledger.outgoing_counts() == {target.id: 2}

    with a_round(ledger):
        ledger.remove_outgoing(target.id, [1])
    assert ledger.file(0) == FileRow(0, 264, 100, FileState.OPEN)
    assert ledger.outgoing(target.id, 9) == [second]
    with a_round(ledger):
        ledger.remove_outgoing(target.id, [2])
    assert (ledger.live(0), ledger.outgoing_counts()) == ([], {})


def test_a_message_that_leaves_two_queues_goes_with_the_last_of_them(books: Books) -> None:
    one, two = books.queue("one"), books.queue("two")
    books.publish(one, two)
    ledger = books.ledger
    with a_round(ledger):
        target = ledger.target("default", "queue", "dead").id
        ledger.send_out(target, [(each, b"a") for each in ledger.page(one.inside, 0, 9)])
    books.remove(two, 0)
    assert len(ledger.live(0)) == 1
    with a_round(ledger):
        ledger.remove_outgoing(target, [1])
    assert ledger.live(0) == []


def test_a_target_stays_and_its_numbers_go_on(books: Books) -> None:
    ledger = books.ledger
    with a_round(ledger):
        one = ledger.target("default", "stream", "dead")
        two = ledger.target("default", "queue", "dead")
        assert ledger.target("default", "stream", "dead") == one
    assert ledger.targets() == [one, two]
    for number in (50, 20):
        with a_round(ledger):
            ledger.set_next_number(one.id, number)
    assert [target.next_number for target in ledger.targets()] == [50, 1]


def test_a_row_that_steps_aside_comes_after_the_others(books: Books) -> None:
    row = books.queue()
    for _ in range(3):
        books.publish(row)
    ledger = books.ledger
    with a_round(ledger):
        target = ledger.target("default", "stream", "dead").id
        ledger.send_out(target, [(each, b"") for each in ledger.page(row.inside, 0, 9)])
    with a_round(ledger):
        assert ledger.renumber(target, 1) == 4
    assert [each.number for each in ledger.outgoing(target, 9)] == [2, 3, 4]
    assert [each.message.position for each in ledger.outgoing(target, 9)] == [164, 264, 64]
    assert [each.number for each in ledger.outgoing(target, 2)] == [2, 3]
