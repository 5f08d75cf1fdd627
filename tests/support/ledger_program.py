"""A program of rounds on a ledger: what each of them does follows from its number and from what is there.

So a ledger that has come to a round says by itself everything that it should hold: the same program
on a ledger in memory. A process that runs it writes the number of each round that is committed, which is
what stands for an answer.
"""

import os
import random
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.core.states import FileState, ItemState, QueueState
from bottomless_server.queues.ledger.base import (
    Item,
    Ledger,
    LedgerFailed,
    NewMessage,
    Seen,
    Stored,
)
from bottomless_server.queues.ledger.memory import MemoryLedger
from bottomless_server.queues.ledger.sqlite import SqliteLedger
from support.ledgers import STORE_ID, id_of, in_flight

CACHE_BYTES: Final = 2**15
"""So little that SQLite would write pages of a round before its COMMIT, if it might (decision 89)."""
CHECKPOINT_EACH: Final = 9
MESSAGE_COUNT: Final = 12
FILE_SIZE_MAX: Final = 40_000
_MADE_AGAIN: Final = 10**12
ANSWERS: Final = "answers"
_ANSWER: Final = struct.Struct("<Q?")


class Answer(NamedTuple):
    """What was said of a round that was tried: each try has a number, which is the clock of its round."""

    attempt: int
    stored: bool


def answers_of(data: bytes) -> list[Answer]:
    return [Answer(*each) for each in _ANSWER.iter_unpack(data)]


def open_real(directory: Path) -> SqliteLedger:
    path = directory / "ledger.db"
    return SqliteLedger(path, RealFileCalls(), STORE_ID, cache_bytes=CACHE_BYTES)


def run_forever(directory: Path, answers: int, round_count: int = 2**40) -> None:
    """Do rounds from the last one on, and write the number of each after its COMMIT."""
    ledger = open_real(directory)
    for _ in range(round_count):
        number = do_round(ledger)
        os.write(answers, number.to_bytes(8, "big"))
        if number % CHECKPOINT_EACH == 0:
            ledger.checkpoint()
    ledger.close()


def run_among_faults(directory: Path, count: int) -> None:
    """Try rounds, and write an answer to each as the writer of rounds does: after an error the ledger
    is opened anew, as often as it takes, and says itself what became of the round.
    """
    answers = os.open(directory / ANSWERS, os.O_WRONLY | os.O_CREAT)
    ledger = _opened(directory)
    for attempt in range(1, count + 1):
        try:
            do_round(ledger, attempt)
            stored = True
        except LedgerFailed:
            _reopen(ledger)
            stored = ledger.store().clock == attempt
        os.write(answers, _ANSWER.pack(attempt, stored))
        if attempt % CHECKPOINT_EACH == 0:
            try:
                ledger.checkpoint()
            except LedgerFailed:
                _reopen(ledger)


def _opened(directory: Path) -> SqliteLedger:
    while True:
        try:
            return open_real(directory)
        except LedgerFailed:
            continue


def _reopen(ledger: Ledger) -> None:
    while True:
        try:
            ledger.reopen()
        except LedgerFailed:
            continue
        return


def do_round(ledger: Ledger, clock: int | None = None) -> int:
    """Do the next round; its number is its clock, unless there is another one."""
    number = ledger.begin()
    chance = random.Random(number)
    _make(ledger, number)
    for step in range(chance.randrange(1, 4)):
        ledger.savepoint()
        chance.choice([_publish, _publish, _receive, _ack, _send_out, _purge, _come_back])(
            ledger, number * 10 + step, chance
        )
        if chance.random() < 0.2:
            ledger.undo()
        else:
            ledger.keep()
    ledger.sweep(7)
    ledger.forget_seen(number - 20, 9)
    ledger.set_clock(number if clock is None else clock)
    for file in ledger.files():
        if file.state is FileState.DOOMED:
            ledger.remove_file(file.number)
    ledger.commit()
    return number


def _make(ledger: Ledger, number: int) -> None:
    if not ledger.files():
        ledger.add_file(FileState.OPEN)
    for name in ("a", "b"):
        if ledger.queue_named("t", name) is None:
            ledger.create_queue(id_of(number * 10 + ord(name)), "t", name, "{}")


def _publish(ledger: Ledger, number: int, chance: random.Random) -> None:
    rows = ledger.queues("t", "", 9)[: chance.randrange(1, 3)]
    file = next(row for row in ledger.files() if row.state is FileState.OPEN)
    if file.size > FILE_SIZE_MAX:
        ledger.set_file_state(file.number, FileState.SEALED)
        ledger.add_file(FileState.OPEN)
        file = next(row for row in ledger.files() if row.state is FileState.OPEN)
    end = max(file.size, 64)
    messages = []
    for step in range(MESSAGE_COUNT):
        size = chance.randrange(21, 999)
        late = chance.random() < 0.2
        items = [
            Item(
                row.inside,
                row.next_sequence + step,
                ItemState.DELAYED if late else ItemState.READY,
                chance.randrange(10),
                number if late else None,
                number if chance.random() < 0.3 else None,
                number,
                0,
                b"o" * chance.randrange(40),
            )
            for row in rows
        ]
        messages.append(NewMessage(id_of(number * 100 + step), file.number, end, size, items))
        end += size
    ledger.add_messages(messages)
    ledger.set_file_size(file.number, end)
    seen = Seen(id_of(number), id_of(1), rows[0].next_sequence, id_of(2), 1, number // 10)
    ledger.remember(rows[0].queue_id, seen)


def _picked(ledger: Ledger, chance: random.Random, state: ItemState) -> list[Stored]:
    row = chance.choice(ledger.queues("t", "", 9))
    return [each for each in ledger.page(row.inside, 0, 60) if each.item.state is state]


def _receive(ledger: Ledger, number: int, chance: random.Random) -> None:
    row = chance.choice(ledger.queues("t", "", 9))
    found = ledger.ready(row.inside, 9)
    ledger.change_items([(each, in_flight(each.item, number + 200)) for each in found])


def _ack(ledger: Ledger, _: int, chance: random.Random) -> None:
    found = _picked(ledger, chance, ItemState.IN_FLIGHT)
    ledger.remove_items(chance.sample(found, len(found) * 2 // 3))


def _send_out(ledger: Ledger, number: int, chance: random.Random) -> None:
    target = ledger.target("t", "stream", "dead").id
    arrived = ledger.outgoing(target, 5)
    ledger.remove_outgoing(target, [row.number for row in arrived])
    found = _picked(ledger, chance, ItemState.READY)[:3]
    ledger.send_out(target, [(each, b"%d" % number) for each in found])


def _purge(ledger: Ledger, number: int, chance: random.Random) -> None:
    row = chance.choice(ledger.queues("t", "", 9))
    if chance.random() < 0.3:
        ledger.delete_queue(row.queue_id)
        ledger.settle_registry([row.queue_id])
        # Ids that no round gives to the queues with which it begins.
        _make(ledger, _MADE_AGAIN + number)
    elif chance.random() < 0.3:
        ledger.purge(row.queue_id)


def _come_back(ledger: Ledger, number: int, chance: random.Random) -> None:
    found = _picked(ledger, chance, ItemState.DELAYED)
    back = [each for each in found if each.item.due_at is not None and each.item.due_at <= number]
    ledger.change_items(
        [(each, each.item._replace(state=ItemState.READY, due_at=None)) for each in back]
    )


class Expected:
    """The same program in memory, as far as a ledger should have come."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger(STORE_ID)
        self._shown = {0: shown(self.ledger)}

    def at(self, number: int) -> list[Any]:
        while self.ledger.store().round < number:
            do_round(self.ledger)
            self._shown[self.ledger.store().round] = shown(self.ledger)
        return self._shown[number]


def shown(ledger: Ledger) -> list[Any]:
    """Everything that a ledger shows, but for what it has no order of."""
    rows = ledger.queues("t", "", 99)
    files = ledger.files()
    targets = ledger.targets()
    assert all(row.state is QueueState.LIVE for row in rows)
    return [
        ledger.store()._replace(clock=0),
        rows,
        [ledger.page(row.inside, 0, 10_000) for row in rows],
        [ledger.ready(row.inside, 10_000) for row in rows],
        files,
        [ledger.live(file.number) for file in files],
        targets,
        [ledger.outgoing(target.id, 10_000) for target in targets],
        ledger.next_due(),
        ledger.registry_due(99),
    ]
