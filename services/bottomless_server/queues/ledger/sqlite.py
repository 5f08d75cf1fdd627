"""The ledger on SQLite: one statement for each row at most, and one for each sum that changes.

base.py says what each method promises, database.py how a round becomes durable, statements.py what
the tables are.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bottomless.guards import guard
from bottomless_server.queues.core.states import FileState, QueueState, state_without
from bottomless_server.queues.ledger import statements as sql
from bottomless_server.queues.ledger.base import (
    FORGET_LATE_MS,
    ID_SIZE,
    SEQUENCE_BLOCK,
    FileRow,
    Item,
    Message,
    Move,
    NewMessage,
    Outgoing,
    QueueRow,
    Seen,
    Stored,
    Sums,
    Target,
    Totals,
    reserved_above,
)
from bottomless_server.queues.ledger.sqlite_rounds import SqliteRounds
from bottomless_server.queues.ledger.sqlite_rows import (
    Deltas,
    file_of,
    outgoing_of,
    queue_of,
    queue_or_none,
    stored_of,
)


class SqliteLedger(SqliteRounds):
    """A ledger in a file; base.py says what it does. Its first thread is its only one."""

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
        return None if row is None else file_of(row)

    def files(self) -> list[FileRow]:
        return [file_of(row) for row in self._db.rows(sql.FILES)]

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
        return queue_or_none(self._db.row(sql.QUEUE, (queue_id,)))

    def queue_named(self, tenant: str, name: str) -> QueueRow | None:
        return queue_or_none(self._db.row(sql.QUEUE_NAMED, (tenant, name)))

    def queue_inside(self, inside: int) -> QueueRow | None:
        return queue_or_none(self._db.row(sql.QUEUE_INSIDE, (inside,)))

    def queues(self, tenant: str, after: str, count: int) -> list[QueueRow]:
        rows = self._db.rows(sql.QUEUES, (tenant, after, count))
        return [queue_of(row) for row in rows]

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
        return [queue_of(row) for row in self._db.rows(sql.REGISTRY_DUES, (count,))]

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
        sums = Deltas()
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
        sums = Deltas()
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
        sums = Deltas()
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
        sums = Deltas()
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
        return [stored_of(row) for row in self._db.rows(statement, parameters)]

    def _apply(self, sums: "Deltas") -> None:
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
        return [outgoing_of(row) for row in self._db.rows(sql.OUTGOING, (target, count))]

    def renumber(self, target: int, number: int) -> int:
        fresh = int(self._number(sql.TARGET_TAKE, (1, target)))
        self._change(sql.OUTGOING_RENUMBER, (fresh, target, number))
        return fresh

    def remove_outgoing(self, target: int, numbers: Sequence[int]) -> None:
        there = [self._db.row(sql.OUTGOING_ONE, (target, number)) for number in numbers]
        assert None not in there, "an outgoing row is not there"
        self._change_many(sql.OUTGOING_REMOVE, [(target, number) for number in numbers])
        self._change(sql.TARGET_MORE, (-len(numbers), target))
        self._let_go([outgoing_of(row).message for row in there])

    def outgoing_counts(self) -> Mapping[int, int]:
        return dict(self._db.rows(sql.OUTGOING_COUNTS))

    # For tests and operators

    def check(self) -> list[str]:
        return [
            f"{what}: {row}" for what, each in sql.CHECKS.items() for row in self._db.rows(each)
        ]
