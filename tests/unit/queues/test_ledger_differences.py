"""The ledger on SQLite beside the one in memory, which counts everything anew: any calls, one result.

The one in memory is the plain list of this model. Each step is a round, or a change in one; after each
of them both show the same, and each looks at everything that its rows say of each other.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.ledgers import STORE_ID, id_of, in_flight

from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.ledger.base import (
    FileRow,
    Item,
    Ledger,
    Move,
    NewMessage,
    Seen,
    Stored,
)
from bottomless_server.queues.ledger.memory import MemoryLedger
from bottomless_server.queues.ledger.sqlite import SqliteLedger

TIMES = st.integers(1, 40)
COUNTS = st.integers(1, 4)
NAMES = st.sampled_from(["a", "b", "c"])
PICKS = st.integers(0, 50)
EXAMPLES = int(os.environ.get("BOTTOMLESS_TEST_PROPERTIES", "5"))


class Both(RuleBasedStateMachine):
    """Calls go to both. A round stays open for some steps, and a change within it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        path = Path(self.directory.name) / "ledger.db"
        self.sqlite = SqliteLedger(path, RealFileCalls(), STORE_ID)
        self.memory = MemoryLedger(STORE_ID)
        self.both: tuple[Ledger, Ledger] = (self.sqlite, self.memory)
        self.depth = 0
        self.count = 0
        self.call("begin")
        self.call("add_file", FileState.OPEN)
        self.call("create_queue", id_of(1000), "t", "a", "{}")
        self.call("commit")

    def teardown(self) -> None:
        self.sqlite.close()
        self.directory.cleanup()

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        ours, model = (getattr(ledger, name)(*arguments, **named) for ledger in self.both)
        assert ours == model, (name, arguments)
        return ours

    def pick(self, found: list[Any], number: int) -> Any:
        return found[number % len(found)] if found else None

    def queues(self) -> list[Any]:
        rows: list[Any] = self.call("queues", "t", "", 9)
        return rows

    def items(self) -> list[Stored]:
        return [each for row in self.queues() for each in self.call("page", row.inside, 0, 99)]

    def open_file(self) -> FileRow:
        rows: list[FileRow] = self.call("files")
        return next(row for row in rows if row.state is FileState.OPEN)

    # Rounds

    @precondition(lambda self: self.depth == 0)
    @rule()
    def begin(self) -> None:
        self.call("begin")
        self.depth = 1

    @precondition(lambda self: self.depth == 1)
    @rule(end=st.sampled_from(["commit", "commit", "commit", "rollback", "reopen"]))
    def end_round(self, end: str) -> None:
        self.call(end)
        self.depth = 0
        assert self.sqlite.check() == []
        assert self.memory.check() == []

    @precondition(lambda self: self.depth == 1)
    @rule()
    def savepoint(self) -> None:
        self.call("savepoint")
        self.depth = 2

    @precondition(lambda self: self.depth == 2)
    @rule(end=st.sampled_from(["keep", "keep", "undo"]))
    def end_change(self, end: str) -> None:
        self.call(end)
        self.depth = 1

    @precondition(lambda self: self.depth == 0)
    @rule()
    def checkpoint(self) -> None:
        self.call("checkpoint")

    # Changes

    @precondition(lambda self: self.depth)
    @rule(name=NAMES)
    def create(self, name: str) -> None:
        if self.call("queue_named", "t", name) is None:
            self.count += 1
            self.call("create_queue", id_of(1000 + self.count), "t", name, "{}")

    @precondition(lambda self: self.depth)
    @rule(number=PICKS, deletes=st.booleans())
    def purge(self, number: int, *, deletes: bool) -> None:
        if row := self.pick(self.queues(), number):
            self.call("delete_queue" if deletes else "purge", row.queue_id)

    @precondition(lambda self: self.depth)
    @rule(
        count=COUNTS,
        number=PICKS,
        priority=st.integers(0, 9),
        due_at=st.none() | TIMES,
        expires_at=st.none() | TIMES,
    )
    def publish(
        self, count: int, number: int, priority: int, due_at: int | None, expires_at: int | None
    ) -> None:
        rows = self.queues()
        rows = rows[number % len(rows) :] if rows else []
        state = ItemState.READY if due_at is None else ItemState.DELAYED
        file, end = self.open_file().number, max(self.open_file().size, 64)
        messages = []
        for step in range(count if rows else 0):
            self.count += 1
            size = 10 + number
            items = [
                Item(
                    row.inside, row.next_sequence + step, state, priority, due_at, expires_at,
                    5, 0, None,
                )
                for row in rows
            ]  # fmt: skip
            messages.append(NewMessage(id_of(self.count), file, end, size, items))
            end += size
        self.call("add_messages", messages)
        self.call("set_file_size", file, end)

    @precondition(lambda self: self.depth)
    @rule(number=PICKS, count=COUNTS, until=TIMES)
    def receive(self, number: int, count: int, until: int) -> None:
        if row := self.pick(self.queues(), number):
            found = self.call("ready", row.inside, count)
            self.call("change_items", [(each, in_flight(each.item, until)) for each in found])

    @precondition(lambda self: self.depth)
    @rule(now=TIMES, count=COUNTS)
    def come_back(self, now: int, count: int) -> None:
        # Which of several with one time come first is left open.
        found = [ledger.due(now, count) for ledger in self.both]
        times = [[each.item.due_at for each in of] for of in found]
        assert times[0] == times[1]
        back = [(each, each.item._replace(state=ItemState.READY, due_at=None)) for each in found[0]]
        self.call("change_items", back)

    @precondition(lambda self: self.depth)
    @rule(now=TIMES, count=COUNTS, goes_out=st.booleans())
    def expire(self, now: int, count: int, *, goes_out: bool) -> None:
        found = [ledger.expired(now, count) for ledger in self.both]
        times = [[each.item.expires_at for each in of] for of in found]
        assert times[0] == times[1]
        if goes_out:
            target = self.call("target", "t", "stream", "dead").id
            self.call("send_out", target, [(each, b"expired") for each in found[0]])
        else:
            self.call("remove_items", found[0])

    @precondition(lambda self: self.depth)
    @rule(numbers=st.lists(PICKS, max_size=4))
    def remove(self, numbers: list[int]) -> None:
        found = self.items()
        picked = {number % len(found) for number in numbers} if found else set()
        self.call("remove_items", [found[number] for number in sorted(picked)])

    @precondition(lambda self: self.depth)
    @rule(number=PICKS)
    def damage(self, number: int) -> None:
        if found := self.pick(self.items(), number):
            bad = found.item._replace(state=ItemState.DAMAGED, due_at=None)
            self.call("change_items", [(found, bad)])

    @precondition(lambda self: self.depth)
    @rule(count=COUNTS)
    def arrive(self, count: int) -> None:
        for target in self.call("targets"):
            rows = self.call("outgoing", target.id, count)
            self.call("remove_outgoing", target.id, [row.number for row in rows])

    @precondition(lambda self: self.depth)
    @rule()
    def step_aside(self) -> None:
        for target in self.call("targets"):
            for row in self.call("outgoing", target.id, 1):
                self.call("renumber", target.id, row.number)

    @precondition(lambda self: self.depth)
    @rule(count=COUNTS)
    def sweep(self, count: int) -> None:
        # Which of those that are doomed go first is left open, until all have gone.
        self.call("sweep", 1000 if count > 1 else 0)

    @precondition(lambda self: self.depth)
    @rule(number=PICKS, until=TIMES, now=st.none() | TIMES)
    def repeats(self, number: int, until: int, now: int | None) -> None:
        if now is not None:
            self.call("forget_seen", now, 99)
        row = self.pick(self.queues(), number)
        if row:
            self.call("seen", row.queue_id, id_of(number))
            self.call(
                "remember", row.queue_id, Seen(id_of(number), id_of(1), 0, id_of(2), 1, until)
            )

    @precondition(lambda self: self.depth)
    @rule()
    def next_file(self) -> None:
        self.call("set_file_state", self.open_file().number, FileState.SEALED)
        self.call("add_file", FileState.OPEN)

    @precondition(lambda self: self.depth)
    @rule(number=PICKS)
    def rewrite(self, number: int) -> None:
        sealed = [row for row in self.call("files") if row.state is FileState.SEALED]
        if row := self.pick(sealed, number):
            new = self.call("add_file", FileState.MOVING)
            moves, end = [], 64
            for message in self.call("live", row.number):
                moves.append(Move(message.msg_id, row.number, message.position, new, end))
                end += message.size
            assert self.call("move", moves) == len(moves)
            self.call("set_file_size", new, end)
            self.call("set_file_state", new, FileState.SEALED)

    @precondition(lambda self: self.depth)
    @rule()
    def reclaim(self) -> None:
        for row in self.call("files"):
            if row.state is FileState.DOOMED:
                self.call("remove_file", row.number)
        self.call("settle_registry", [row.queue_id for row in self.call("registry_due", 99)])

    @invariant()
    def both_show_the_same(self) -> None:
        for call in ("store", "files", "targets", "next_due", "outgoing_counts", "sums"):
            self.call(call)
        for row in self.queues():
            self.call("page", row.inside, 0, 99)
            self.call("ready", row.inside, 99)
            self.call("damaged", row.inside, 99)
        for file in self.call("files"):
            self.call("live", file.number)
        for target in self.call("targets"):
            self.call("outgoing", target.id, 99)


TestBoth = Both.TestCase
TestBoth.settings = settings(max_examples=EXAMPLES, stateful_step_count=60)
