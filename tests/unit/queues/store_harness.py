"""A store on a disk that loses its power: rounds, compaction, and what is looked at after a crash."""

import copy
import random
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from support.power_loss import PowerLossDisk
from support.queue_changes import Do, PublishRecords, wanted

from bottomless.errors import Corrupt, Outcome, StoreError
from bottomless.formats.message_file import (
    HEADER_SIZE,
    Finding,
    check_file_header,
    decode_record,
    encode_record,
    reads_of,
    scan,
)
from bottomless_server.node.file_calls import read_file
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import Ledger, Message
from bottomless_server.queues.ledger.memory import MemoryLedger
from bottomless_server.queues.rounds.memory_files import MemoryRegistry
from bottomless_server.queues.rounds.round_files import RoundFiles
from bottomless_server.queues.rounds.round_writer import Bounds, RoundWriter
from bottomless_server.queues.rounds.work import Change
from bottomless_server.queues.store.bodies import Bodies, BodyPlace
from bottomless_server.queues.store.compaction import MisplacedRecord
from bottomless_server.queues.store.descriptors import Descriptors
from bottomless_server.queues.store.names import path_of
from bottomless_server.queues.store.pins import Pins
from bottomless_server.queues.store.start import StartReport, start_store
from bottomless_server.queues.store.steps import Done, InRound, OnDisk, Step
from unit.formats.examples import a_msg_id

STORE_ID: Final = bytes(range(16))
QUEUE_ID: Final = bytes(16)
ROOT: Final = Path("/queues/messages")
SIZE_MAX: Final = 1_000_000_000

T = TypeVar("T")


class PowerLost(BaseException):
    """The power is gone before the next file call, or before or after a COMMIT."""


class DyingLedger(MemoryLedger):
    """A ledger whose process may die before and after each COMMIT."""

    def __init__(self, tick: Callable[[], None]) -> None:
        super().__init__(STORE_ID)
        self.tick = tick

    def commit(self) -> None:
        self.tick()
        super().commit()
        self.tick()


class Store:
    """The store with its ledger and a queue; one life after the other."""

    def __init__(self, file_size_max: int = SIZE_MAX) -> None:
        self.disk = PowerLossDisk(ROOT, sector_size=512)
        self.ledger = DyingLedger(self._tick)
        self.registry = MemoryRegistry()
        self.bodies: dict[bytes, bytes] = {}
        """Of every message that was ever published, also without success."""
        self.file_size_max = file_size_max
        self.calls = 0
        self.dies_at: int | None = None
        """Number of the file call or COMMIT at which the power goes."""
        self.fault: Callable[[str, Path], None] = lambda *_: None
        self.started()
        self._round(lambda ledger: ledger.create_queue(QUEUE_ID, "default", "jobs", "{}"))

    def started(self) -> StartReport:
        """A life begins."""
        self.disk.before = self._before
        self.ledger.tick = self._tick
        self.pins = Pins()
        self.descriptors = Descriptors(self.disk, 2)
        self.reader = Bodies(self.disk, ROOT, self.descriptors)
        report = start_store(self.disk, ROOT, self.ledger)
        self._open_writer()
        return report

    def _open_writer(self) -> None:
        files = RoundFiles(self.disk, ROOT, self.pins, lambda _: 2**40)
        bounds = Bounds(file_bytes_max=self.file_size_max)
        self.writer = RoundWriter(self.ledger, files, self.registry, lambda: 5, bounds)

    def _before(self, call: str, path: Path) -> None:
        self._tick()
        self.fault(call, path)

    def _tick(self) -> None:
        if self.calls == self.dies_at:
            raise PowerLost
        self.calls += 1

    # Rounds

    def _round(self, change: Callable[[Ledger], T]) -> tuple[T, int]:
        found: tuple[T, int] = self._do(Do(change))
        return found

    def _do(self, change: Change) -> Any:
        ended = self.writer.round(wanted(change))
        assert ended is not None
        (verdict,) = ended.verdicts
        if verdict.error is not None:
            raise verdict.error
        return verdict.answer

    def publish(self, bodies: Iterable[bytes], *, checksum: bool = True) -> list[bytes] | None:
        """A round with messages; None if the disk did not take it."""
        records = {}
        for body in bodies:
            msg_id = a_msg_id(len(self.bodies))
            self.bodies[msg_id] = body
            records[msg_id] = encode_record(msg_id, [body], checksum=checksum)
        try:
            self._do(PublishRecords(QUEUE_ID, records))
        except StoreError as error:
            if error.outcome is not Outcome.NONE:
                raise
            return None
        return list(records)

    def ack(self, ids: Iterable[bytes]) -> None:
        """A round that takes the items of some messages away."""
        gone = set(ids)
        self._round(
            lambda ledger: ledger.remove_items(
                [one for one in self._items() if one.message.msg_id in gone]
            )
        )

    def purge(self) -> None:
        """Rounds that take all items away."""

        def everything(ledger: Any) -> None:
            ledger.purge(QUEUE_ID)
            ledger.sweep(1_000_000)

        self._round(everything)

    def _items(self) -> list[Any]:
        row = self.ledger.queue(QUEUE_ID)
        assert row is not None
        return self.ledger.page(row.inside, 0, 1_000_000)

    def live(self) -> list[Message]:
        return [one.message for one in self._items()]

    def seal(self) -> None:
        """The open file gets nothing more, and this life ends in order."""
        opened = [row.number for row in self.ledger.files() if row.state is FileState.OPEN]
        for number in opened:
            self._round(partial(MemoryLedger.set_file_state, number=number, state=FileState.SEALED))
        self._open_writer()

    def drive(
        self,
        steps: Generator[Step, Any, T],
        between: Callable[[], None] = lambda: None,
        wait: Callable[[], None] = lambda: None,
    ) -> T:
        """Do the steps, with anything between them; `wait` ends one reader that has a pin."""
        sent: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.throw(error) if error is not None else steps.send(sent)
            except StopIteration as end:
                result: T = end.value
                return result
            between()
            sent, error = None, None
            if isinstance(step, InRound):
                sent = Done(*self._round(step.change))
            elif isinstance(step, OnDisk):
                try:
                    sent = step.call()
                except (OSError, Corrupt, MisplacedRecord) as failed:
                    error = failed
            else:
                while not self.pins.is_free(step.file, step.up_to):
                    wait()

    # After a crash

    def died(self) -> None:
        """Nothing of this life goes on."""
        self.dies_at = None
        self.fault = lambda *_: None
        self.disk.end_processes()
        self.ledger.rollback()

    def after_power_loss(self, chance: random.Random) -> "Store":
        """A store of its own, as one of the many states in which the disk may be found now."""
        self.disk.before = lambda _, __: None
        self.ledger.tick = lambda: None
        other = copy.copy(self)
        other.disk, other.ledger = copy.deepcopy((self.disk, self.ledger))
        other.bodies = dict(self.bodies)
        other.disk.lose_power(chance)
        return other

    def check_files(self) -> None:
        """Without the ledger: files tile, and show each message that is needed, whole."""
        shown: dict[bytes, bytes] = {}
        rows = {row.number: row for row in self.ledger.files()}
        for name in sorted(self.disk.names(ROOT), key=lambda name: int(name.split(".")[0])):
            number = int(name.split(".")[0])
            data = read_file(self.disk, ROOT / name, SIZE_MAX)
            row = rows.get(number)
            if name.endswith(".new") or row is None:
                # Written by a round that nobody was told of.
                continue
            end = len(data) if row.state is not FileState.OPEN else row.size
            check_file_header(data[:HEADER_SIZE])
            for found in scan(reads_of(data), end):
                assert found.what not in (Finding.DAMAGED, Finding.LOST), (name, found)
                if found.what is Finding.MESSAGE:
                    record = data[found.position : found.position + found.size]
                    shown[found.msg_id] = bytes(decode_record(record).body)
        for message in self.live():
            assert shown.get(message.msg_id) == self.bodies[message.msg_id], "a file shows it"
        for msg_id, body in shown.items():
            assert self.bodies[msg_id] == body, "no message is shown as it never was"

    def check_ledger(self) -> None:
        """Through the ledger: each message that is needed is read, and the rows agree."""
        assert self.ledger.check() == []
        for message in self.live():
            assert self.read(message) == self.bodies[message.msg_id]

    def read(self, message: Message) -> bytes:
        place = BodyPlace(message.msg_id, message.file, message.position, message.size)
        return bytes(self.reader.read(place).body)

    def check_started(self) -> None:
        """A start finds everything that was needed, and nothing of it damaged."""
        report = self.started()
        assert report.damaged_count == 0
        assert report.lost == ()
        self.check_ledger()
        for row in self.ledger.files():
            if row.state is not FileState.DOOMED:
                fd = self.disk.open(path_of(ROOT, row.number))
                assert self.disk.size(fd) == row.size
                self.disk.close(fd)
