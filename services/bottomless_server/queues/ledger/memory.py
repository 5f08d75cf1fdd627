"""The ledger in memory: for tests and simulations. Nothing is durable.

It keeps as little as it can: references, bytes that are valid and sums are counted anew from the rows
each time, so they cannot be wrong, and the one on SQLite is held to them. base.py says what each
method does. `fail` is what it has beside: a call that the database refuses; `heal` ends that.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Generic, TypeVar

from bottomless_server.queues.core.states import FileState, ItemState, QueueState, state_without
from bottomless_server.queues.ledger.base import (
    FORGET_LATE_MS,
    SEQUENCE_BLOCK,
    FileRow,
    Item,
    LedgerFailed,
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

K = TypeVar("K")
V = TypeVar("V")
_TIMED: Final = (ItemState.READY, ItemState.DELAYED)
"""States in which an item can expire."""


class _Table(dict[K, V], Generic[K, V]):
    """Rows; what each was before a change goes into the journal, from which it is taken back."""

    def __init__(self, journal: "list[Callable[[], None]]") -> None:
        super().__init__()
        self._journal = journal

    def put(self, key: K, value: V) -> None:
        if key in self:
            old = self[key]
            self._journal.append(lambda: self.__setitem__(key, old))
        else:
            self._journal.append(lambda: self.__delitem__(key))
        self[key] = value

    def drop(self, key: K) -> V:
        old = self.pop(key)
        self._journal.append(lambda: self.__setitem__(key, old))
        return old


class _Fault:
    """A call that is refused, how often, and whether its work is done all the same."""

    def __init__(self, count: int, *, full: bool, lands: bool) -> None:
        self.left = count
        self.full = full
        self.lands = lands


class MemoryLedger:
    """A ledger whose rows are dictionaries."""

    def __init__(self, store_id: bytes) -> None:
        self._journal: list[Callable[[], None]] = []
        self._mark: int | None = None
        self._begun = False
        self._failed = False
        self._lands = False
        self._faults: dict[str, _Fault] = {}
        self._store: _Table[int, StoreRow] = _Table(self._journal)
        self._store[1] = StoreRow(store_id, 0, True, 0, 0, None)
        self._next_inside: _Table[int, int] = _Table(self._journal)
        self._next_inside[1] = 1
        self._files: _Table[int, FileRow] = _Table(self._journal)
        self._messages: _Table[int, Message] = _Table(self._journal)
        self._queues: _Table[bytes, QueueRow] = _Table(self._journal)
        self._items: _Table[tuple[int, int], tuple[Item, int]] = _Table(self._journal)
        self._seen: _Table[tuple[bytes, bytes], Seen] = _Table(self._journal)
        self._targets: _Table[int, Target] = _Table(self._journal)
        self._outgoing: _Table[tuple[int, int], tuple[int, bytes]] = _Table(self._journal)
        self._doomed: _Table[int, None] = _Table(self._journal)
        self._due: _Table[bytes, None] = _Table(self._journal)
        self.checkpoint_count = 0

    def fail(self, call: str, *, count: int = 1, full: bool = False, lands: bool = False) -> None:
        """Let the next calls of a method be refused; a commit that `lands` is there after `reopen`."""
        assert hasattr(self, call)
        self._faults[call] = _Fault(count, full=full, lands=lands)

    def heal(self) -> None:
        """Let no further call be refused."""
        self._faults.clear()

    def _enter(self, call: str, *, changes: bool = False) -> None:
        if self._failed:
            raise LedgerFailed("the round was ended by an error")
        assert self._begun or not changes, "nothing changes outside a round"
        fault = self._fault(call)
        if fault is not None:
            self._failed = True
            self._lands = fault.lands
            raise LedgerFailed("the database refused it", full=fault.full)

    def _fault(self, call: str) -> _Fault | None:
        fault = self._faults.get(call)
        if fault is not None:
            fault.left -= 1
            if not fault.left:
                del self._faults[call]
        return fault

    # Rounds

    def begin(self) -> int:
        assert not self._begun
        self._enter("begin")
        self._begun = True
        row = self._store[1]
        self._store.put(1, row._replace(round=row.round + 1))
        return row.round + 1

    def savepoint(self) -> None:
        self._enter("savepoint", changes=True)
        assert self._mark is None
        self._mark = len(self._journal)

    def keep(self) -> None:
        self._enter("keep", changes=True)
        assert self._mark is not None
        self._mark = None

    def undo(self) -> None:
        self._enter("undo", changes=True)
        assert self._mark is not None
        self._take_back(self._mark)
        self._mark = None

    def commit(self) -> None:
        self._enter("commit", changes=True)
        self._end(0, lands=True)

    def rollback(self) -> None:
        if self._fault("rollback") is not None:
            self._failed = True
            raise LedgerFailed("the database refused it")
        self._end(0, lands=False)
        self._failed = False

    def reopen(self) -> None:
        self._failed = True
        if self._fault("reopen") is not None:
            raise LedgerFailed("the database refused it")
        self._end(0, lands=self._lands)
        self._failed = self._lands = False

    def checkpoint(self) -> None:
        assert not self._begun
        self._enter("checkpoint")
        self.checkpoint_count += 1

    @property
    def log_size(self) -> int:
        return 0

    def close(self) -> None:
        self._end(0, lands=False)
        self._failed = True

    def _end(self, mark: int, *, lands: bool) -> None:
        if not lands:
            self._take_back(mark)
        self._journal.clear()
        self._mark = None
        self._begun = False

    def _take_back(self, mark: int) -> None:
        while len(self._journal) > mark:
            self._journal.pop()()

    # The store

    def store(self) -> StoreRow:
        self._enter("store")
        return self._store[1]

    def set_store_id(self, store_id: bytes) -> None:
        self._enter("set_store_id", changes=True)
        self._store.put(1, self._store[1]._replace(store_id=store_id))

    def set_clean(self, *, clean: bool) -> None:
        self._enter("set_clean", changes=True)
        self._store.put(1, self._store[1]._replace(clean=clean))

    def set_clock(self, clock: int) -> None:
        self._enter("set_clock", changes=True)
        row = self._store[1]
        self._store.put(1, row._replace(clock=max(row.clock, clock)))

    def set_last_v1_file(self, number: int | None) -> None:
        self._enter("set_last_v1_file", changes=True)
        self._store.put(1, self._store[1]._replace(last_v1_file=number))

    # Files

    def add_file(self, state: FileState) -> int:
        self._enter("add_file", changes=True)
        assert state in (FileState.OPEN, FileState.MOVING)
        row = self._store[1]
        self._store.put(1, row._replace(next_file=row.next_file + 1))
        self._files.put(row.next_file, FileRow(row.next_file, 0, 0, state))
        return row.next_file

    def restore_file(self, number: int) -> None:
        self._enter("restore_file", changes=True)
        assert number not in self._files
        row = self._store[1]
        self._store.put(1, row._replace(next_file=max(row.next_file, number + 1)))
        self._files.put(number, FileRow(number, 0, 0, FileState.MOVING))

    def file(self, number: int) -> FileRow | None:
        self._enter("file")
        row = self._files.get(number)
        if row is None:
            return None
        valid = sum(each.size for each in self._messages.values() if each.file == number)
        return row._replace(valid=valid)

    def files(self) -> list[FileRow]:
        found = [self.file(number) for number in sorted(self._files)]
        return [row for row in found if row is not None]

    def set_file_size(self, number: int, size: int) -> None:
        self._enter("set_file_size", changes=True)
        self._files.put(number, self._files[number]._replace(size=size))

    def set_file_state(self, number: int, state: FileState) -> FileState:
        self._enter("set_file_state", changes=True)
        self._files.put(number, self._files[number]._replace(state=state))
        self._doom_empty([number])
        return self._files[number].state

    def remove_file(self, number: int) -> None:
        self._enter("remove_file", changes=True)
        row = self.file(number)
        assert row is not None
        assert row.valid == 0
        self._files.drop(number)

    def live(self, number: int) -> list[Message]:
        self._enter("live")
        found = [message for message in self._messages.values() if message.file == number]
        return sorted(found, key=lambda message: message.position)

    def move(self, moves: Sequence[Move]) -> int:
        self._enter("move", changes=True)
        at = {(each.file, each.position, each.msg_id): each for each in self._messages.values()}
        moved = 0
        for move in moves:
            message = at.get((move.file, move.position, move.msg_id))
            if message is not None:
                assert self._files[move.new_file].state is not FileState.DOOMED
                fresh = message._replace(file=move.new_file, position=move.new_position)
                self._messages.put(message.id, fresh)
                moved += 1
        self._doom_empty({move.file for move in moves})
        return moved

    def _doom_empty(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            row = self.file(number)
            if row is not None and state_without(row.state, row.valid) is not row.state:
                self._files.put(number, row._replace(state=FileState.DOOMED))

    # Queues

    def create_queue(self, queue_id: bytes, tenant: str, name: str, config: str) -> QueueRow:
        self._enter("create_queue", changes=True)
        assert queue_id not in self._queues
        assert self.queue_named(tenant, name) is None
        row = QueueRow(
            queue_id, tenant, name, config, 1, QueueState.LIVE, self._take_inside(), 0,
            SEQUENCE_BLOCK, 0, 0, Sums(), Totals(),
        )  # fmt: skip
        self._queues.put(queue_id, row)
        self._due.put(queue_id, None)
        return row

    def restore_numbers(
        self, queue_id: bytes, *, version: int, next_sequence: int, purged_below: int
    ) -> None:
        self._enter("restore_numbers", changes=True)
        row = self._queues[queue_id]
        self._queues.put(
            queue_id,
            replace(
                row,
                next_sequence=max(row.next_sequence, next_sequence),
                reserved_below=max(row.reserved_below, reserved_above(next_sequence)),
                purged_below=max(row.purged_below, purged_below),
                version=max(row.version, version),
            ),
        )
        self._due.put(queue_id, None)

    def queue(self, queue_id: bytes) -> QueueRow | None:
        self._enter("queue")
        row = self._queues.get(queue_id)
        return None if row is None else self._counted(row)

    def queue_named(self, tenant: str, name: str) -> QueueRow | None:
        self._enter("queue_named")
        return next((row for row in self._live(tenant) if row.name == name), None)

    def queue_inside(self, inside: int) -> QueueRow | None:
        self._enter("queue_inside")
        return next((row for row in self._live() if row.inside == inside), None)

    def queues(self, tenant: str, after: str, count: int) -> list[QueueRow]:
        self._enter("queues")
        found = [row for row in self._live(tenant) if row.name > after]
        return sorted(found, key=lambda row: row.name)[:count]

    def queue_count(self, tenant: str) -> int:
        self._enter("queue_count")
        return len(self._live(tenant))

    def sums(self) -> Sums:
        self._enter("sums")
        rows = [self._counted(row) for row in self._queues.values()]
        live = [row.sums for row in rows if row.state is QueueState.LIVE]
        return Sums(*map(sum, zip(*live, strict=True))) if live else Sums()

    def set_config(self, queue_id: bytes, config: str) -> None:
        self._enter("set_config", changes=True)
        row = self._there(queue_id)
        self._queues.put(queue_id, replace(row, config=config, version=row.version + 1))
        self._due.put(queue_id, None)

    def reserve(self, queue_id: bytes, below: int) -> None:
        self._enter("reserve", changes=True)
        row = self._there(queue_id)
        self._queues.put(queue_id, replace(row, reserved_below=max(row.reserved_below, below)))
        self._due.put(queue_id, None)

    def purge(self, queue_id: bytes) -> int:
        self._enter("purge", changes=True)
        row = self._counted(self._there(queue_id))
        fresh = replace(row, inside=self._take_inside(), purged_below=row.next_sequence)
        self._queues.put(queue_id, fresh)
        self._doomed.put(row.inside, None)
        self._due.put(queue_id, None)
        return row.sums.item_count

    def delete_queue(self, queue_id: bytes) -> None:
        self._enter("delete_queue", changes=True)
        row = self._there(queue_id)
        gone = replace(row, state=QueueState.DELETED, purged_below=row.next_sequence)
        self._queues.put(queue_id, gone)
        self._doomed.put(row.inside, None)
        self._due.put(queue_id, None)

    def sweep(self, count: int) -> int:
        self._enter("sweep", changes=True)
        there = sorted(key for key in self._items if key[0] in self._doomed)[:count]
        self.remove_items([self._stored(*key) for key in there])
        if len(there) < count:
            for inside in list(self._doomed):
                self._doomed.drop(inside)
        return len(there)

    def add_totals(self, queue_id: bytes, totals: Totals) -> None:
        self._enter("add_totals", changes=True)
        row = self._queues.get(queue_id)
        if row is not None:
            added = Totals(*(a + b for a, b in zip(row.totals, totals, strict=True)))
            self._queues.put(queue_id, replace(row, totals=added))

    def registry_due(self, count: int) -> list[QueueRow]:
        self._enter("registry_due")
        return [self._counted(self._queues[queue_id]) for queue_id in sorted(self._due)[:count]]

    def settle_registry(self, queue_ids: Iterable[bytes]) -> None:
        self._enter("settle_registry", changes=True)
        for queue_id in queue_ids:
            if queue_id in self._due:
                self._due.drop(queue_id)
            if (row := self._queues.get(queue_id)) and row.state is QueueState.DELETED:
                self._queues.drop(queue_id)

    def _take_inside(self) -> int:
        inside = self._next_inside[1]
        self._next_inside.put(1, inside + 1)
        return inside

    def _live(self, tenant: str | None = None) -> list[QueueRow]:
        return [
            self._counted(row)
            for row in self._queues.values()
            if row.state is QueueState.LIVE and tenant in (None, row.tenant)
        ]

    def _there(self, queue_id: bytes) -> QueueRow:
        row = self._queues[queue_id]
        assert row.state is QueueState.LIVE
        return row

    def _counted(self, row: QueueRow) -> QueueRow:
        remembered = sum(queue_id == row.queue_id for queue_id, _ in self._seen)
        if row.state is QueueState.DELETED:
            return replace(row, sums=Sums(), remembered=remembered)
        counts: Counter[ItemState] = Counter()
        size = 0
        for item, message in self._items.values():
            if item.inside == row.inside:
                counts[item.state] += 1
                size += self._messages[message].size
        ready, in_flight, delayed, damaged = (counts[state] for state in ItemState)
        sums = Sums(ready, in_flight, delayed, damaged, size)
        return replace(row, remembered=remembered, sums=sums)

    # Items

    def add_messages(self, messages: Sequence[NewMessage]) -> None:
        self._enter("add_messages", changes=True)
        number = max(self._messages, default=0)
        for msg_id, file, position, size, items in messages:
            assert items
            assert self._files[file].state is not FileState.DOOMED
            assert not any(
                (each.file, each.position) == (file, position) for each in self._messages.values()
            )
            number += 1
            self._messages.put(number, Message(number, msg_id, file, position, size))
            for item in items:
                row = next(row for row in self._live() if row.inside == item.inside)
                assert item.sequence == row.next_sequence < row.reserved_below
                self._queues.put(row.queue_id, replace(row, next_sequence=item.sequence + 1))
                self._items.put((item.inside, item.sequence), (item, number))

    def restore_messages(self, messages: Sequence[NewMessage]) -> None:
        self._enter("restore_messages", changes=True)
        for msg_id, file, position, size, items in messages:
            assert items
            assert file in self._files
            number = next(
                (
                    each.id
                    for each in self._messages.values()
                    if each[1:] == (msg_id, file, position, size)
                ),
                None,
            )
            if number is None:
                number = max(self._messages, default=0) + 1
                self._messages.put(number, Message(number, msg_id, file, position, size))
            for item in items:
                assert (item.inside, item.sequence) not in self._items
                row = next(row for row in self._live() if row.inside == item.inside)
                end = item.sequence + 1
                self._queues.put(
                    row.queue_id,
                    replace(
                        row,
                        next_sequence=max(row.next_sequence, end),
                        reserved_below=max(row.reserved_below, reserved_above(end)),
                    ),
                )
                self._items.put((item.inside, item.sequence), (item, number))

    def ready(self, inside: int, count: int) -> list[Stored]:
        self._enter("ready")
        found = self._those(lambda item: item.inside == inside and item.state is ItemState.READY)
        found.sort(key=lambda stored: (-stored.item.priority, stored.item.sequence))
        return found[:count]

    def items(self, inside: int, sequences: Sequence[int]) -> dict[int, Stored]:
        self._enter("items")
        return {
            sequence: self._stored(inside, sequence)
            for sequence in sequences
            if (inside, sequence) in self._items
        }

    def page(self, inside: int, at_least: int, count: int) -> list[Stored]:
        self._enter("page")
        found = self._those(lambda item: item.inside == inside and item.sequence >= at_least)
        return found[:count]

    def damaged(self, inside: int, count: int) -> list[Stored]:
        self._enter("damaged")
        found = self._those(lambda item: item.inside == inside and item.state is ItemState.DAMAGED)
        return found[:count]

    def items_in_file(self, number: int, count: int) -> list[Stored]:
        self._enter("items_in_file")
        found = self._those(lambda item: item.state is not ItemState.DAMAGED)
        return [stored for stored in found if stored.message.file == number][:count]

    def due(self, now: int, count: int) -> list[Stored]:
        self._enter("due")
        found = self._those(lambda item: item.due_at is not None and item.due_at <= now)
        return sorted(found, key=lambda stored: stored.item.due_at or 0)[:count]

    def expired(self, now: int, count: int) -> list[Stored]:
        self._enter("expired")
        found = self._those(lambda item: _can_expire(item) and (item.expires_at or 0) <= now)
        return sorted(found, key=lambda stored: stored.item.expires_at or 0)[:count]

    def next_due(self) -> int | None:
        self._enter("next_due")
        items = [item for item, _ in self._items.values()]
        times = [item.due_at for item in items if item.due_at is not None]
        times += [item.expires_at or 0 for item in items if _can_expire(item)]
        times += [seen.until + FORGET_LATE_MS for seen in self._seen.values()]
        return min(times, default=None)

    def change_items(self, changes: Sequence[tuple[Stored, Item]]) -> None:
        self._enter("change_items", changes=True)
        for (old, message), new in changes:
            assert (new.due_at is None) == (new.state in (ItemState.READY, ItemState.DAMAGED))
            row, _ = self._items[old.inside, old.sequence]
            assert row == old
            fresh = old._replace(state=new.state, due_at=new.due_at, deliveries=new.deliveries)
            self._items.put((old.inside, old.sequence), (fresh, message.id))

    def expire_later(self, stored: Sequence[Stored], at: int) -> None:
        self._enter("expire_later", changes=True)
        for item, message in stored:
            fresh = item._replace(expires_at=at)
            self._items.put((item.inside, item.sequence), (fresh, message.id))

    def remove_items(self, stored: Sequence[Stored]) -> None:
        self._enter("remove_items", changes=True)
        for item, _ in stored:
            self._items.drop((item.inside, item.sequence))
        self._let_go(message for _, message in stored)

    def _let_go(self, messages: Iterable[Message]) -> None:
        needed = {message for _, message in self._items.values()}
        needed |= {message for message, _ in self._outgoing.values()}
        gone = {message.id: message for message in messages if message.id not in needed}
        for number in gone:
            self._messages.drop(number)
        self._doom_empty({message.file for message in gone.values()})

    def _stored(self, inside: int, sequence: int) -> Stored:
        item, message = self._items[inside, sequence]
        return Stored(item, self._messages[message])

    def _those(self, asked: Callable[[Item], bool]) -> list[Stored]:
        return [self._stored(*key) for key in sorted(self._items) if asked(self._items[key][0])]

    # Repeats

    def seen(self, queue_id: bytes, key_hash: bytes) -> Seen | None:
        self._enter("seen")
        return self._seen.get((queue_id, key_hash))

    def remember(self, queue_id: bytes, seen: Seen) -> None:
        self._enter("remember", changes=True)
        self._seen.put((queue_id, seen.key_hash), seen)

    def forget_seen(self, now: int, count: int) -> int:
        self._enter("forget_seen", changes=True)
        old = [(seen.until, key) for key, seen in self._seen.items() if seen.until <= now]
        for _, key in sorted(old)[:count]:
            self._seen.drop(key)
        return len(old[:count])

    # Outgoing

    def target(self, tenant: str, kind: str, name: str) -> Target:
        self._enter("target", changes=True)
        for target in self._targets.values():
            if (target.tenant, target.kind, target.name) == (tenant, kind, name):
                return target
        fresh = Target(len(self._targets) + 1, tenant, kind, name, 1)
        self._targets.put(fresh.id, fresh)
        return fresh

    def targets(self) -> list[Target]:
        self._enter("targets")
        return [self._targets[number] for number in sorted(self._targets)]

    def set_next_number(self, target: int, number: int) -> None:
        self._enter("set_next_number", changes=True)
        row = self._targets[target]
        self._targets.put(target, row._replace(next_number=max(row.next_number, number)))

    def send_out(self, target: int, items: Sequence[tuple[Stored, bytes]]) -> None:
        self._enter("send_out", changes=True)
        for (item, message), origin in items:
            self._items.drop((item.inside, item.sequence))
            self._outgoing.put((target, self._take_number(target)), (message.id, origin))

    def outgoing(self, target: int, count: int) -> list[Outgoing]:
        self._enter("outgoing")
        numbers = sorted(number for each, number in self._outgoing if each == target)
        return [self._out(target, number) for number in numbers[:count]]

    def renumber(self, target: int, number: int) -> int:
        self._enter("renumber", changes=True)
        row = self._outgoing.drop((target, number))
        fresh = self._take_number(target)
        self._outgoing.put((target, fresh), row)
        return fresh

    def remove_outgoing(self, target: int, numbers: Sequence[int]) -> None:
        self._enter("remove_outgoing", changes=True)
        rows = [self._out(target, number) for number in numbers]
        for number in numbers:
            self._outgoing.drop((target, number))
        self._let_go(row.message for row in rows)

    def outgoing_counts(self) -> Mapping[int, int]:
        self._enter("outgoing_counts")
        return dict(Counter(target for target, _ in self._outgoing))

    def _out(self, target: int, number: int) -> Outgoing:
        message, origin = self._outgoing[target, number]
        return Outgoing(target, number, origin, self._messages[message])

    def _take_number(self, target: int) -> int:
        row = self._targets[target]
        self._targets.put(target, row._replace(next_number=row.next_number + 1))
        return row.next_number

    # For tests and operators

    def check(self) -> list[str]:
        """What is counted anew each time is right; only what is kept can be wrong."""
        return [
            f"a message that does not lie in its file: {message}"
            for message in self._messages.values()
            if (file := self._files.get(message.file)) is None
            or (file.state is not FileState.DAMAGED and message.position + message.size > file.size)
        ]


def _can_expire(item: Item) -> bool:
    return item.expires_at is not None and item.state in _TIMED
