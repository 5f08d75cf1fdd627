"""The ledger in memory: for tests and simulations. Nothing is durable.

It keeps as little as it can: references, bytes that are valid and sums are counted anew from the rows
each time, so they cannot be wrong, and the one on SQLite is held to them. base.py says what each
method does. `fail` is what it has beside: a call that the database refuses; `heal` ends that.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from bottomless_server.queues.core.states import FileState, ItemState, QueueState
from bottomless_server.queues.ledger.base import (
    FORGET_LATE_MS,
    SEQUENCE_BLOCK,
    Item,
    Message,
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
from bottomless_server.queues.ledger.memory_file_rows import MemoryFileRows
from bottomless_server.queues.ledger.memory_rounds import Table

_TIMED: Final = (ItemState.READY, ItemState.DELAYED)
"""States in which an item can expire."""


class MemoryLedger(MemoryFileRows):
    """A ledger whose rows are dictionaries."""

    def __init__(self, store_id: bytes) -> None:
        super().__init__(store_id)
        self._next_inside: Table[int, int] = Table(self._journal)
        self._next_inside[1] = 1
        self._queues: Table[bytes, QueueRow] = Table(self._journal)
        self._items: Table[tuple[int, int], tuple[Item, int]] = Table(self._journal)
        self._seen: Table[tuple[bytes, bytes], Seen] = Table(self._journal)
        self._targets: Table[int, Target] = Table(self._journal)
        self._outgoing: Table[tuple[int, int], tuple[int, bytes]] = Table(self._journal)
        self._doomed: Table[int, None] = Table(self._journal)
        self._due: Table[bytes, None] = Table(self._journal)

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
