"""A program on a whole store of queues: rounds on the real ledger and real message files, beside all that moves
and removes these. It writes what it asks for before each round, and what it heard after it.

So whoever finds its files after a kill or a loss of power knows what must be there, what must not, and
what may be either.
"""

import itertools
import json
import os
import random
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bottomless.errors import Corrupt, StoreError
from bottomless.formats.envelope import decode_envelope, encode_envelope
from bottomless.formats.message_file import (
    HEADER_SIZE,
    Finding,
    check_file_header,
    decode_record,
    encode_record,
    reads_of,
    scan,
)
from bottomless.model.queue import QueueMessage, QueuePlace
from bottomless.model.record import Content
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.changes.receive import Receive, Received
from bottomless_server.queues.changes.settle import ack
from bottomless_server.queues.changes.upkeep import Upkeep
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.ledger.base import LedgerFailed, Message
from bottomless_server.queues.ledger.sqlite import SqliteLedger
from bottomless_server.queues.rounds.memory_files import MemoryRegistry
from bottomless_server.queues.rounds.round_files import RoundFiles
from bottomless_server.queues.rounds.round_writer import Bounds, RoundWriter
from bottomless_server.queues.rounds.work import Change
from bottomless_server.queues.store.bodies import Bodies, BodyPlace
from bottomless_server.queues.store.compaction import compact
from bottomless_server.queues.store.descriptors import Descriptors
from bottomless_server.queues.store.pins import Pins
from bottomless_server.queues.store.removal import remove_doomed
from bottomless_server.queues.store.rewriting import rewrite
from bottomless_server.queues.store.start import StartReport, start_store
from bottomless_server.queues.store.steps import Done, InRound, OnDisk, Step
from support.ledgers import STORE_ID, id_of
from support.queue_changes import Do, PublishRecords, wanted

ANSWERS: Final = "answers"
MESSAGES: Final = "messages"
QUEUE: Final = id_of(1)
VISIBILITY_MS: Final = 5_000
BOUNDS: Final = Bounds(file_bytes_max=4_000, free_bytes_min=0, wal_bytes_max=60_000)
CACHE_BYTES: Final = 2**15


def body_of(number: int) -> bytes:
    """The body of a message: of any size, and often with what looks like a record of another one."""
    chance = random.Random(number)
    data = chance.randbytes(chance.choice((0, 3, 60, 250, 480, 512, 1_000)))
    if chance.random() < 0.4:
        fake = encode_record(id_of(number // 2), [b"never published"], checksum=True)
        return data + b"".join(fake) + data[:7]
    return data


def record_of(number: int, now: int) -> list[bytes | memoryview]:
    """The record of a message, as queues store it."""
    place = QueuePlace(QUEUE, number)
    message = QueueMessage(Content.BYTES, 0, now, None, (place,), (), body_of(number))
    return encode_record(id_of(number), encode_envelope(message), checksum=True)


@dataclass
class Known:
    """What may be asked of the files of the program, by what it wrote until then."""

    stored: set[int] = field(default_factory=set)
    """Messages that were answered as stored, and of which nobody asked that they go."""
    gone: set[int] = field(default_factory=set)
    """Messages that must not be there."""
    either: set[int] = field(default_factory=set)
    """Messages that may be there or not."""

    doubtful: set[int] = field(default_factory=set)
    """Those of which nobody knew it already when a purge was asked for that is not answered yet."""

    def ask(self, event: Any) -> None:
        leaving = set(event["ack"])
        if event["purges"]:
            self.doubtful = set(self.either)
            leaving = self.stored | self.either
        self.either.update(event["publish"])
        self.either |= leaving
        self.stored -= leaving

    def hear(self, event: Any) -> None:
        if event["purges"]:
            kept = event["outcome"]["ack"] == "none"
            event = {**event, "ack": self.either - self.doubtful if kept else set(self.either)}
        of = {"publish": (self.stored, self.gone), "ack": (self.gone, self.stored)}
        for what, (done, refused) in of.items():
            if event["outcome"][what] in ("stored", "none"):
                ids = set(event[what])
                self.either -= ids
                (done if event["outcome"][what] == "stored" else refused).update(ids)

    @classmethod
    def of(cls, data: bytes) -> "Known":
        known = cls()
        for line in data.splitlines():
            event = json.loads(line)
            if "outcome" in event:
                known.hear(event)
            else:
                known.ask(event)
        return known


class Store:
    """The whole store in a directory, for one life."""

    def __init__(self, directory: Path, clock: int) -> None:
        """Start it.

        Raises:
            LedgerFailed, OSError: the disk did not let it start; nothing is open.
        """
        files = self.files = RealFileCalls()
        self.messages = directory / MESSAGES
        self.ledger = SqliteLedger(
            directory / "ledger.db", files, STORE_ID, cache_bytes=CACHE_BYTES
        )
        self.now = clock
        try:
            self.report: StartReport = start_store(files, self.messages, self.ledger)
            self.pins = Pins()
            self.descriptors = Descriptors(files, 4)
            self.bodies = Bodies(files, self.messages, self.descriptors)
            self.writer = RoundWriter(
                self.ledger,
                RoundFiles(files, self.messages, self.pins),
                MemoryRegistry(),
                lambda: self.now,
                BOUNDS,
            )
        except BaseException:
            self.ledger.close()
            raise

    def round(self, *changes: Change) -> list[Any]:
        """Answers, and outcomes in the place of errors."""
        ended = self.writer.round(wanted(*changes))
        while ended is None:
            ended = self.writer.settle()
        if not self.writer.in_doubt and self.writer.log_is_long:
            self.writer.tidy()
        while self.writer.in_doubt:
            self.writer.settle()
        return [
            verdict.answer if verdict.error is None else _outcome(verdict.error)
            for verdict in ended.verdicts
        ]

    def in_round(self, step: InRound) -> Done:
        """A round for a step, as often as it takes."""
        while True:
            (answer,) = self.round(Do(step.change))
            if not isinstance(answer, str):
                return Done(*answer)

    def live(self) -> list[Message]:
        row = self.ledger.queue(QUEUE)
        there = [] if row is None else self.ledger.page(row.inside, 0, 1_000_000)
        assert all(each.item.state is not ItemState.DAMAGED for each in there)
        return [each.message for each in there]

    def read(self, message: Message) -> bytes:
        place = BodyPlace(message.msg_id, message.file, message.position, message.size)
        return bytes(decode_envelope(self.bodies.read(place).body).value)

    def check(self, known: Known) -> None:
        """What was answered is true: through the ledger, and by the files alone."""
        assert self.ledger.check() == []
        assert (self.report.damaged_count, self.report.lost) == (0, ())
        live = {number_of(message.msg_id): message for message in self.live()}
        assert known.stored <= live.keys(), sorted(known.stored - live.keys())
        assert live.keys() <= known.stored | known.either, sorted(live.keys() - known.stored)
        shown = self._shown()
        for number, message in live.items():
            assert self.read(message) == body_of(number)
            assert shown.get(message.msg_id) == body_of(number), "the files alone show it"

    def _shown(self) -> dict[bytes, bytes]:
        """What a ledger that is made anew from the files would know."""
        shown: dict[bytes, bytes] = {}
        rows = {row.number: row for row in self.ledger.files()}
        for path in sorted(self.messages.iterdir(), key=lambda path: int(path.stem)):
            data = path.read_bytes()
            state = rows[int(path.stem)].state
            assert state is FileState.DOOMED or len(data) == rows[int(path.stem)].size
            check_file_header(data[:HEADER_SIZE])
            for found in scan(reads_of(data), len(data)):
                assert found.what in (Finding.HOLE, Finding.MESSAGE, Finding.REPEATED), (
                    path,
                    found,
                )
                if found.what is Finding.MESSAGE:
                    record = data[found.position : found.position + found.size]
                    shown[found.msg_id] = bytes(decode_envelope(decode_record(record).body).value)
                    assert shown[found.msg_id] == body_of(number_of(found.msg_id))
        return shown

    def close(self, *, clean: bool) -> None:
        self.descriptors.close()
        self.writer.close(clean=clean)


def number_of(msg_id: bytes) -> int:
    return int.from_bytes(msg_id, "big")


def _outcome(error: Exception) -> str:
    assert isinstance(error, StoreError), error
    return str(error.outcome)


class Program:
    """Rounds, and beside them one piece of work at a time that takes several steps."""

    def __init__(self, directory: Path, first: int) -> None:
        self.directory = directory
        self.answers = os.open(directory / ANSWERS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.chance = random.Random(first)
        self.ids = itertools.count(first)
        self.clock = first * 100
        self.held: list[Received] = []
        self.work: Generator[Step, Any, Any] | None = None
        self.sent: Any = None
        self.error: Exception | None = None
        self.store = self._started()

    def _started(self) -> Store:
        while True:
            try:
                store = Store(self.directory, self.clock)
            except (LedgerFailed, OSError):
                continue
            if store.ledger.queue(QUEUE) is None:
                store.round(Do(lambda ledger: ledger.create_queue(QUEUE, "default", "jobs", "{}")))
                if store.ledger.queue(QUEUE) is None:
                    store.close(clean=False)
                    continue
            return store

    def run(self, count: int) -> None:
        for number in range(count):
            self.clock += 1_000
            self.store.now = self.clock
            if self.chance.random() < 0.05:
                self._purge()
            self._round()
            for _ in range(self.chance.randrange(4)):
                self._step()
            if number % 25 == 24:
                self._restart()
        self._close()

    def _round(self) -> None:
        ids = list(itertools.islice(self.ids, self.chance.randrange(7)))
        records = {id_of(each): record_of(each, self.clock) for each in ids}
        taken = [each for received in self.held for each in received.deliveries]
        acked = self.chance.sample(taken, len(taken) * 3 // 4)
        leaving = [number_of(each.message.msg_id) for each in acked]
        asked = {"publish": ids, "ack": leaving, "purges": False}
        self._let_go()
        self._say(asked)
        published, received, settled, _ = self.store.round(
            PublishRecords(QUEUE, records),
            Receive(QUEUE, 12, 4_000, VISIBILITY_MS),
            ack(QUEUE, [each.receipt for each in acked]),
            Upkeep(),
        )
        if not isinstance(received, str):
            self.held.append(received)
        outcomes = {
            what: answer if isinstance(answer, str) else "stored"
            for what, answer in (("publish", published), ("ack", settled))
        }
        self._say({**asked, "outcome": outcomes})

    def _purge(self) -> None:
        self._let_go()
        asked = {"publish": [], "ack": [], "purges": True}
        self._say(asked)
        (purged,) = self.store.round(Do(lambda ledger: ledger.purge(QUEUE)))
        outcome = purged if isinstance(purged, str) else "stored"
        self._say({**asked, "outcome": {"publish": "stored", "ack": outcome}})

    def _say(self, event: Any) -> None:
        os.write(self.answers, json.dumps(event).encode() + b"\n")

    def _let_go(self) -> None:
        """Consumers read what they were told, before they acknowledge it."""
        for received in self.held:
            for each in received.deliveries:
                assert self.store.read(each.message) == body_of(number_of(each.message.msg_id))
            received.release()
        self.held = []

    def _step(self) -> None:
        if self.work is None:
            self.work, self.sent, self.error = self._new_work(), None, None
            if self.work is None:
                return
        try:
            if self.error is not None:
                step = self.work.throw(self.error)
            else:
                step = self.work.send(self.sent)
        except StopIteration:
            self.work = None
            return
        except OSError:
            # A removal that the disk refused: it is tried again.
            self.work = None
            return
        self.sent = self.error = None
        if isinstance(step, InRound):
            self.sent = self.store.in_round(step)
        elif isinstance(step, OnDisk):
            try:
                self.sent = step.call()
            except (OSError, Corrupt) as failed:
                self.error = failed
        elif not self.store.pins.is_free(step.file, step.up_to):
            self._let_go()

    def _new_work(self) -> Generator[Step, Any, Any] | None:
        store = self.store
        rows = store.ledger.files()
        doomed = [row.number for row in rows if row.state is FileState.DOOMED]
        if doomed:
            return remove_doomed(store.files, store.messages, doomed[0], store.descriptors)
        sealed = [row for row in rows if row.state is FileState.SEALED]
        worth = [row.number for row in sealed if row.valid < row.size * 0.8]
        if not worth:
            return None
        number = self.chance.choice(worth)
        if self.chance.random() < 0.6:
            return compact(store.files, store.messages, number, live_share=1.0, has_room=False)
        return rewrite(store.files, store.messages, number)

    def _restart(self) -> None:
        self._let_go()
        self._close()
        self.work = None
        self.store = self._started()

    def _close(self) -> None:
        # Nobody says that a store is in order whose files are being moved. Of a COMMIT that fails at
        # the end nobody knows more than after a death.
        with suppress(LedgerFailed):
            self.store.close(clean=self.work is None)


def run(directory: Path, count: int, first: int) -> None:
    """Do so many rounds in a directory that has one for messages. Of programs in one directory each
    needs a `first`, of which messages, chance and time begin, that is higher by twenty times the
    rounds of the one before at least.
    """
    Program(directory, first).run(count)


def look(directory: Path, written: bytes) -> None:
    """Start what was left in a directory, and check it by what the program wrote."""
    known = Known.of(written)
    store = Store(directory, 0)
    store.check(known)
    store.close(clean=False)
