"""A writer of rounds on a ledger, files and a registry in memory, and what a loss of power leaves of them."""

from typing import Any

from support.ledgers import STORE_ID, id_of
from support.queue_changes import CreateQueue, wanted

from bottomless.errors import StoreError
from bottomless_server.queues.ledger.memory import MemoryLedger
from bottomless_server.queues.ports import FIRST_POSITION
from bottomless_server.queues.rounds.memory_files import MemoryFiles, MemoryRegistry
from bottomless_server.queues.rounds.round_writer import Bounds, RoundWriter
from bottomless_server.queues.rounds.work import Change, Ended

QUEUE = id_of(1)
Answer = Any


class RoundHarness:
    def __init__(self, file_bytes_max: int = 2**20) -> None:
        self.ledger = MemoryLedger(STORE_ID)
        self.files = MemoryFiles()
        self.registry = MemoryRegistry()
        self.now = 1_000
        self.skew: StoreError | None = None
        self.bounds = Bounds(file_bytes_max=file_bytes_max)
        self.writer = self.open()
        assert self.do(CreateQueue(QUEUE, "jobs"))

    def open(self) -> RoundWriter:
        return RoundWriter(self.ledger, self.files, self.registry, self.clock, self.bounds)

    def clock(self) -> int:
        if self.skew is not None:
            raise self.skew
        return self.now

    def round(self, *changes: Change) -> list[Answer]:
        """Answers of a round, and codes with outcomes in the place of errors."""
        ended = self.writer.round(wanted(*changes))
        assert ended is not None, "nobody knows what became of it"
        return told(ended)

    def do(self, change: Change) -> Answer:
        return self.round(change)[0]

    @property
    def ready(self) -> list[bytes]:
        """The values of ready messages, each where the ledger says that it is: durably."""
        row = self.ledger.queue(QUEUE)
        assert row is not None
        found = []
        for _, message in self.ledger.ready(row.inside, 1_000):
            data = self.files.kept[message.file]
            found.append(data[message.position : message.position + message.size])
        return found

    def check(self) -> None:
        """What a start would find: every file is as long as its row, and no other is there."""
        assert self.ledger.check() == []
        rows = {row.number: max(row.size, FIRST_POSITION) for row in self.ledger.files()}
        assert {number: len(data) for number, data in self.files.seen.items()} == rows
        assert self.files.seen == self.files.kept


def told(ended: Ended) -> list[Answer]:
    return [
        verdict.answer if verdict.error is None else said(verdict.error)
        for verdict in ended.verdicts
    ]


def said(error: Exception) -> Answer:
    if isinstance(error, StoreError):
        return (str(error.code), str(error.outcome))
    return type(error)
