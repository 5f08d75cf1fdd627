"""The ledger on SQLite: one statement for each row at most, and one for each sum that changes.

base.py says what each method promises, database.py how a round becomes durable, statements.py what
the tables are.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bottomless.guards import guard
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.queues.core.states import FileState, ItemState, QueueState, state_without
from bottomless_server.queues.ledger import statements as sql
from bottomless_server.queues.ledger.base import (
    FORGET_LATE_MS,
    FORMAT,
    ID_SIZE,
    SEQUENCE_BLOCK,
    FileRow,
    Item,
    LedgerDamaged,
    LedgerFailed,
    LedgerNotServed,
    Message,
    Move,
    NewMessage,
    Outgoing,
    QueueRow,
    Seen,
    Stored,
    StoreRow,
    Sums,
    Target,
    Totals,
    reserved_above,
)
from bottomless_server.queues.ledger.database import Database

_ITEM_STATES: Final = tuple(ItemState)
_ITEM_SIZE: Final = len(Item._fields)
_BYTES: Final = len(_ITEM_STATES)
"""Place of the bytes in a change of sums, after a count for each state."""


class SqliteLedger:
    """A ledger in a file; base.py says what it does. Its first thread is its only one."""

    def __init__(
        self, path: Path, files: FileCalls, store_id: bytes, *, cache_bytes: int = 2**22
    ) -> None:
        """Open a ledger; one that is not there is made under `store_id`.

        Raises:
            LedgerDamaged: it is damaged, or no ledger.
            LedgerNotServed: it is of a later release.
            LedgerFailed: the disk fails, or another process has it.
        """
        assert len(store_id) == ID_SIZE
        self._db = Database(path, files, cache_bytes, sql.SCHEMA)
        try:
            self._find_store(store_id)
        except LedgerFailed:
            # Nobody else gets in while this one has it.
            with suppress(LedgerFailed):
                self._db.close()
            raise

    def _find_store(self, store_id: bytes) -> None:
        row = self._db.row(sql.STORE)
        if row is None:
            self._db.begin()
            self._db.run(sql.STORE_MAKE, (FORMAT, store_id))
            self._db.commit()
        elif row[0] > FORMAT:
            raise LedgerNotServed(f"the ledger has format {row[0]}")
        elif row[0] < FORMAT:
            # All of it is one transaction: after a crash it is there, or is done by the next start.
            self._db.begin()
            for statement in sql.TO_FORMAT_2:
                self._db.run(statement)
            self._db.commit()

    # Rounds

    def begin(self) -> int:
        self._db.begin()
        return int(self._number(sql.ROUND))

    def savepoint(self) -> None:
        self._db.savepoint()

    def keep(self) -> None:
        self._db.keep()

    def undo(self) -> None:
        self._db.undo()

    def commit(self) -> None:
        self._db.commit()

    def rollback(self) -> None:
        self._db.rollback()

    def reopen(self) -> None:
        self._db.reopen()

    def checkpoint(self) -> None:
        self._db.checkpoint()

    @property
    def log_size(self) -> int:
        return self._db.log_size

    def close(self) -> None:
        self._db.close()

    # The store

    def store(self) -> StoreRow:
        row = self._db.row(sql.STORE)
        if row is None:
            raise LedgerDamaged("the ledger has no row of its store")
        _, store_id, number, clean, *rest = row
        return StoreRow(store_id, number, bool(clean), *rest)

    def set_store_id(self, store_id: bytes) -> None:
        assert len(store_id) == ID_SIZE
        self._change(sql.SET_STORE_ID, (store_id,))

    def set_clean(self, *, clean: bool) -> None:
        self._change(sql.SET_CLEAN, (int(clean),))

    def set_clock(self, clock: int) -> None:
        self._change(sql.SET_CLOCK, (clock,))

    def set_last_v1_file(self, number: int | None) -> None:
        self._change(sql.SET_LAST_V1_FILE, (number,))

    # Files

    def add_file(self, state: FileState) -> int:
        assert state in (FileState.OPEN, FileState.MOVING)
        number = int(self._number(sql.TAKE_FILE))
        self._change(sql.FILE_MAKE, (number, state))
        return number

    def restore_file(self, number: int) -> None:
        self._change(sql.RAISE_FILE, (number + 1,))
        self._change(sql.FILE_MAKE, (number, FileState.MOVING))

    def file(self, number: int) -> FileRow | None:
        row = self._db.row(sql.FILE, (number,))
        return None if row is None else _file(row)

    def files(self) -> list[FileRow]:
        return [_file(row) for row in self._db.rows(sql.FILES)]

    def set_file_size(self, number: int, size: int) -> None:
        self._change(sql.FILE_SIZE, (size, number))

    def set_file_state(self, number: int, state: FileState) -> FileState:
        row = self.file(number)
        assert row is not None, f"there is no file {number}"
        then = state_without(state, row.valid)
        self._change(sql.FILE_STATE, (then, number))
        return then

    def remove_file(self, number: int) -> None:
        row = self.file(number)
        assert row is not None, f"there is no file {number}"
        assert row.valid == 0, f"messages are in file {number}"
        self._change(sql.FILE_REMOVE, (number,))

    def live(self, number: int) -> list[Message]:
        return [Message(*row) for row in self._db.rows(sql.MESSAGES_IN, (number,))]

    def move(self, moves: Sequence[Move]) -> int:
        assert self._db.in_round
        moved = 0
        less: Counter[int] = Counter()
        more: Counter[int] = Counter()
        for move in moves:
            to = (move.new_file, move.new_position)
            row = self._db.row(sql.MESSAGE_MOVE, (*to, move.file, move.position, move.msg_id))
            if row is not None:
                moved += 1
                if move.new_file != move.file:
                    more[move.new_file] += row[0]
                    less[move.file] += row[0]
        self._add_valid(more)
        self._take_valid(less)
        return moved

    def _add_valid(self, bytes_of: Mapping[int, int]) -> None:
        for number, size in bytes_of.items():
            self._change(sql.FILE_MORE, (size, number))

    def _take_valid(self, bytes_of: Mapping[int, int]) -> None:
        for number, size in bytes_of.items():
            self._change(sql.FILE_LESS, (size, number))

    # Queues

    def create_queue(self, queue_id: bytes, tenant: str, name: str, config: str) -> QueueRow:
        assert len(queue_id) == ID_SIZE
        inside = self._number(sql.TAKE_INSIDE)
        values = (queue_id, tenant, name, config, inside, SEQUENCE_BLOCK)
        self._change(sql.QUEUE_MAKE, values)
        self._db.run(sql.REGISTRY_DUE, (queue_id,))
        return self._queue_there(queue_id)

    def restore_numbers(
        self, queue_id: bytes, *, version: int, next_sequence: int, purged_below: int
    ) -> None:
        reserved = reserved_above(next_sequence)
        values = (next_sequence, reserved, purged_below, version, queue_id)
        self._change(sql.QUEUE_RESTORE, values)
        self._db.run(sql.REGISTRY_DUE, (queue_id,))

    def queue(self, queue_id: bytes) -> QueueRow | None:
        return _queue(self._db.row(sql.QUEUE, (queue_id,)))

    def queue_named(self, tenant: str, name: str) -> QueueRow | None:
        return _queue(self._db.row(sql.QUEUE_NAMED, (tenant, name)))

    def queue_inside(self, inside: int) -> QueueRow | None:
        return _queue(self._db.row(sql.QUEUE_INSIDE, (inside,)))

    def queues(self, tenant: str, after: str, count: int) -> list[QueueRow]:
        rows = self._db.rows(sql.QUEUES, (tenant, after, count))
        return [_queue_of(row) for row in rows]

    def queue_count(self, tenant: str) -> int:
        return int(self._number(sql.QUEUE_COUNT, (tenant,)))

    def sums(self) -> Sums:
        row = self._db.row(sql.QUEUES_SUMS)
        assert row is not None
        return Sums(*row)

    def set_config(self, queue_id: bytes, config: str) -> None:
        self._change(sql.QUEUE_CONFIG, (config, queue_id))
        self._db.run(sql.REGISTRY_DUE, (queue_id,))

    def reserve(self, queue_id: bytes, below: int) -> None:
        self._change(sql.QUEUE_RESERVE, (below, queue_id))
        self._db.run(sql.REGISTRY_DUE, (queue_id,))

    def purge(self, queue_id: bytes) -> int:
        queue = self._queue_there(queue_id)
        self._change(sql.QUEUE_PURGE, (self._number(sql.TAKE_INSIDE), queue_id))
        self._doom(queue)
        return queue.sums.item_count

    def delete_queue(self, queue_id: bytes) -> None:
        queue = self._queue_there(queue_id)
        self._change(sql.QUEUE_DELETE, (queue_id,))
        self._doom(queue)

    def _doom(self, queue: QueueRow) -> None:
        self._change(sql.DOOM, (queue.inside,))
        self._db.run(sql.REGISTRY_DUE, (queue.queue_id,))

    def sweep(self, count: int) -> int:
        removed = 0
        while removed < count:
            inside = self._number(sql.DOOMED)
            if inside is None:
                break
            there = self.page(inside, 0, count - removed)
            self.remove_items(there)
            removed += len(there)
            if removed < count:
                self._change(sql.DOOMED_REMOVE, (inside,))
        return removed

    def add_totals(self, queue_id: bytes, totals: Totals) -> None:
        self._db.run(sql.QUEUE_TOTALS, (*totals, queue_id))

    def registry_due(self, count: int) -> list[QueueRow]:
        return [_queue_of(row) for row in self._db.rows(sql.REGISTRY_DUES, (count,))]

    def settle_registry(self, queue_ids: Iterable[bytes]) -> None:
        assert self._db.in_round
        ids = [(queue_id,) for queue_id in queue_ids]
        self._db.run_many(sql.REGISTRY_SETTLE, ids)
        self._db.run_many(sql.QUEUE_REMOVE, ids)

    def _queue_there(self, queue_id: bytes) -> QueueRow:
        row = self.queue(queue_id)
        assert row is not None, "there is no such queue"
        assert row.state is QueueState.LIVE, "the queue is deleted"
        return row

    # Items

    def add_messages(self, messages: Sequence[NewMessage]) -> None:
        assert self._db.in_round
        first = (self._number(sql.MESSAGE_LAST) or 0) + 1
        rows, items = [], []
        valid: Counter[int] = Counter()
        sums = _Deltas()
        sequences: dict[int, list[int]] = defaultdict(list)
        for number, (msg_id, file, position, size, of_queues) in enumerate(messages, first):
            assert of_queues, "a message is in one queue at least"
            rows.append((number, msg_id, file, position, size, len(of_queues)))
            valid[file] += size
            for item in of_queues:
                inside, sequence, state = item[:3]
                items.append((inside, sequence, number, *item[2:]))
                sums.add(inside, state, size)
                sequences[inside].append(sequence)
        for inside, given in sequences.items():
            assert given == list(range(given[0], given[0] + len(given))), "sequences have a hole"
            self._change(sql.QUEUE_MORE, (len(given), inside, given[0]))
        self._add_valid(valid)
        self._db.run_many(sql.MESSAGE_MAKE, rows)
        self._db.run_many(sql.ITEM_MAKE, items)
        self._apply(sums)

    def restore_messages(self, messages: Sequence[NewMessage]) -> None:
        assert self._db.in_round
        items = []
        valid: Counter[int] = Counter()
        sums = _Deltas()
        ends: dict[int, int] = {}
        for msg_id, file, position, size, of_queues in messages:
            assert of_queues, "a message is in one queue at least"
            there = self._db.row(sql.MESSAGE_AT, (file, position, msg_id, size))
            number = None if there is None else there[0]
            if number is None:
                number = (self._number(sql.MESSAGE_LAST) or 0) + 1
                row = (number, msg_id, file, position, size, len(of_queues))
                self._change(sql.MESSAGE_MAKE, row)
                valid[file] += size
            else:
                self._change(sql.MESSAGE_MORE, (len(of_queues), number))
            for inside, sequence, state, *rest in of_queues:
                items.append((inside, sequence, number, state, *rest))
                sums.add(inside, state, size)
                ends[inside] = max(ends.get(inside, 0), sequence + 1)
        for inside, end in ends.items():
            self._change(sql.QUEUE_RAISE, (end, reserved_above(end), inside))
        self._add_valid(valid)
        self._db.run_many(sql.ITEM_MAKE, items)
        self._apply(sums)

    def ready(self, inside: int, count: int) -> list[Stored]:
        return self._stored(sql.ITEMS_READY, (inside, count))

    def items(self, inside: int, sequences: Sequence[int]) -> dict[int, Stored]:
        wanted = set(sequences)
        # What was delivered together is acknowledged together, most often: then one look finds all.
        if wanted and max(wanted) - min(wanted) < 2 * len(wanted):
            there = self._stored(sql.ITEMS_BETWEEN, (inside, min(wanted), max(wanted)))
        else:
            there = [
                stored
                for sequence in wanted
                for stored in self._stored(sql.ITEM, (inside, sequence))
            ]
        return {each.item.sequence: each for each in there if each.item.sequence in wanted}

    def page(self, inside: int, at_least: int, count: int) -> list[Stored]:
        return self._stored(sql.ITEMS_FROM, (inside, at_least, count))

    def damaged(self, inside: int, count: int) -> list[Stored]:
        return self._stored(sql.ITEMS_DAMAGED, (inside, count))

    def items_in_file(self, number: int, count: int) -> list[Stored]:
        return self._stored(sql.ITEMS_IN_FILE, (number, count))

    def due(self, now: int, count: int) -> list[Stored]:
        return self._stored(sql.ITEMS_DUE, (now, count))

    def expired(self, now: int, count: int) -> list[Stored]:
        return self._stored(sql.ITEMS_EXPIRED, (now, count))

    def next_due(self) -> int | None:
        times = [self._number(sql.NEXT_DUE), self._number(sql.NEXT_EXPIRES)]
        forgotten = self._number(sql.NEXT_FORGOTTEN)
        times.append(None if forgotten is None else forgotten + FORGET_LATE_MS)
        return min((time for time in times if time is not None), default=None)

    def change_items(self, changes: Sequence[tuple[Stored, Item]]) -> None:
        sums = _Deltas()
        rows = []
        for (old, message), new in changes:
            if old.state is not new.state:
                sums.add(old.inside, old.state, message.size, -1)
                sums.add(old.inside, new.state, message.size)
            rows.append((new.state, new.due_at, new.deliveries, old.inside, old.sequence))
        self._change_many(sql.ITEM_CHANGE, rows)
        self._apply(sums)

    def expire_later(self, stored: Sequence[Stored], at: int) -> None:
        rows = [(at, item.inside, item.sequence) for item, _ in stored]
        self._change_many(sql.ITEM_EXPIRES, rows)

    def remove_items(self, stored: Sequence[Stored]) -> None:
        self._take_items(stored)
        self._let_go([message for _, message in stored])

    def _take_items(self, stored: Sequence[Stored]) -> None:
        sums = _Deltas()
        for item, message in stored:
            sums.add(item.inside, item.state, message.size, -1)
        keys = [(item.inside, item.sequence) for item, _ in stored]
        self._change_many(sql.ITEM_REMOVE, keys)
        self._apply(sums)

    def _let_go(self, messages: Sequence[Message]) -> None:
        """Take one reference of each; a message without one goes, and its bytes are a hole."""
        gone = {message.id: message for message in messages}
        for number in self._named_still(Counter(message.id for message in messages)):
            del gone[number]
        valid: Counter[int] = Counter()
        for message in gone.values():
            valid[message.file] += message.size
        self._take_valid(valid)

    @guard("a message is there while an item or an outgoing row names it")
    def _named_still(self, counts: Mapping[int, int]) -> Iterator[int]:
        """Take so many references of messages, and remove those that have no other; gives the rest."""
        last = list(counts.items())
        if self._db.run_many(sql.MESSAGE_LAST_REF, last) == len(last):
            return
        for number, count in last:
            if self._db.row(sql.MESSAGE_REFS, (number,)) is not None:
                self._change(sql.MESSAGE_LESS, (count, number))
                yield number

    def _stored(self, statement: str, parameters: Sequence[Any]) -> list[Stored]:
        return [_stored_of(row) for row in self._db.rows(statement, parameters)]

    def _apply(self, sums: "_Deltas") -> None:
        # Of items that are doomed nobody keeps sums, and no row is there to change.
        self._db.run_many(
            sql.QUEUE_SUMS, [(*each, inside) for inside, each in sums.of.items() if any(each)]
        )

    # Repeats

    def seen(self, queue_id: bytes, key_hash: bytes) -> Seen | None:
        row = self._db.row(sql.SEEN, (queue_id, key_hash))
        return None if row is None else Seen(*row)

    def remember(self, queue_id: bytes, seen: Seen) -> None:
        assert self._db.in_round, "nothing changes outside a round"
        fewer = self._db.run(sql.SEEN_REMOVE, (queue_id, seen.key_hash))
        self._change(sql.SEEN_MAKE, (queue_id, *seen))
        self._change(sql.QUEUE_REMEMBERED, (1 - fewer, queue_id))

    def forget_seen(self, now: int, count: int) -> int:
        assert self._db.in_round
        old = self._db.rows(sql.SEEN_OLD, (now, count))
        self._change_many(sql.SEEN_REMOVE, old)
        fewer = Counter(queue_id for queue_id, _ in old)
        # The queue may be deleted, and its row gone.
        self._db.run_many(
            sql.QUEUE_REMEMBERED, [(-less, queue_id) for queue_id, less in fewer.items()]
        )
        return len(old)

    # Outgoing

    def target(self, tenant: str, kind: str, name: str) -> Target:
        row = self._db.row(sql.TARGET, (tenant, kind, name))
        if row is None:
            self._change(sql.TARGET_MAKE, (tenant, kind, name))
            row = self._db.row(sql.TARGET, (tenant, kind, name))
        return Target(*row)

    def targets(self) -> list[Target]:
        return [Target(*row) for row in self._db.rows(sql.TARGETS)]

    def set_next_number(self, target: int, number: int) -> None:
        self._change(sql.TARGET_NUMBER, (number, target))

    def send_out(self, target: int, items: Sequence[tuple[Stored, bytes]]) -> None:
        if not items:
            return
        # The message is not let go: its outgoing row takes over what the item held.
        self._take_items([stored for stored, _ in items])
        first = self._number(sql.TARGET_TAKE, (len(items), target))
        rows = [
            (target, number, stored.message.id, origin)
            for number, (stored, origin) in enumerate(items, first)
        ]
        self._db.run_many(sql.OUTGOING_MAKE, rows)
        self._change(sql.TARGET_MORE, (len(items), target))

    def outgoing(self, target: int, count: int) -> list[Outgoing]:
        return [_outgoing(row) for row in self._db.rows(sql.OUTGOING, (target, count))]

    def renumber(self, target: int, number: int) -> int:
        fresh = int(self._number(sql.TARGET_TAKE, (1, target)))
        self._change(sql.OUTGOING_RENUMBER, (fresh, target, number))
        return fresh

    def remove_outgoing(self, target: int, numbers: Sequence[int]) -> None:
        there = [self._db.row(sql.OUTGOING_ONE, (target, number)) for number in numbers]
        assert None not in there, "an outgoing row is not there"
        self._change_many(sql.OUTGOING_REMOVE, [(target, number) for number in numbers])
        self._change(sql.TARGET_MORE, (-len(numbers), target))
        self._let_go([_outgoing(row).message for row in there])

    def outgoing_counts(self) -> Mapping[int, int]:
        return dict(self._db.rows(sql.OUTGOING_COUNTS))

    # For tests and operators

    def check(self) -> list[str]:
        return [
            f"{what}: {row}" for what, each in sql.CHECKS.items() for row in self._db.rows(each)
        ]

    def _change(self, statement: str, parameters: Sequence[Any]) -> None:
        assert self._db.in_round, "nothing changes outside a round"
        changed = self._db.run(statement, parameters)
        assert changed == 1, f"{changed} rows, not 1: {statement}"

    def _change_many(self, statement: str, parameters: Sequence[Sequence[Any]]) -> None:
        assert self._db.in_round, "nothing changes outside a round"
        if parameters:
            changed = self._db.run_many(statement, parameters)
            assert changed == len(parameters), f"{changed} rows: {statement}"

    def _number(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        row = self._db.row(statement, parameters)
        assert row is not None, f"no row: {statement}"
        return row[0]


class _Deltas:
    """What sums change by, of each `inside`: a count for each state, then bytes."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[int, list[int]] = {}

    def add(self, inside: int, state: ItemState, size: int, count: int = 1) -> None:
        of = self.of.get(inside)
        if of is None:
            of = self.of[inside] = [0] * (_BYTES + 1)
        of[state] += count
        of[_BYTES] += count * size


def _file(row: Any) -> FileRow:
    number, size, valid, state = row
    return FileRow(number, size, valid, FileState(state))


def _queue(row: Any) -> QueueRow | None:
    return None if row is None else _queue_of(row)


def _queue_of(row: Any) -> QueueRow:
    queue_id, tenant, name, config, version, state, *numbers = row
    inside, next_sequence, reserved_below, purged_below, remembered, *counts = numbers
    return QueueRow(
        queue_id=queue_id,
        tenant=tenant,
        name=name,
        config=config,
        version=version,
        state=QueueState(state),
        inside=inside,
        next_sequence=next_sequence,
        reserved_below=reserved_below,
        purged_below=purged_below,
        remembered=remembered,
        sums=Sums(*counts[: len(Sums._fields)]),
        totals=Totals(*counts[len(Sums._fields) :]),
    )


def _stored_of(row: Any) -> Stored:
    # A row has the columns of an item without its message, and then those of the message.
    item = Item(row[0], row[1], _ITEM_STATES[row[2]], *row[3:_ITEM_SIZE])
    return Stored(item, Message(*row[_ITEM_SIZE:]))


def _outgoing(row: Any) -> Outgoing:
    target, number, origin, *message = row
    return Outgoing(target, number, origin, Message(*message))
