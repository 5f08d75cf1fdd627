"""A store with files of version 1 on a disk that loses its power."""

import copy
import random
from pathlib import Path
from typing import Final

from support.classic_messages import a_term
from support.power_loss import PowerLossDisk

from bottomless.formats.envelope import decode_envelope
from bottomless.formats.rdq import encode_rdq_record
from bottomless_server.queues.core.start_plan import V1Files
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.ledger.base import Item, NewMessage, QueueRow, Stored
from bottomless_server.queues.ledger.memory import MemoryLedger
from bottomless_server.queues.store.alone import a_round
from bottomless_server.queues.store.bodies import Bodies, BodyPlace
from bottomless_server.queues.store.descriptors import Descriptors
from bottomless_server.queues.store.names import path_of
from bottomless_server.queues.store.start import StartReport, start_store
from unit.formats.examples import a_msg_id

ROOT: Final = Path("/queues/messages")
QUEUE_IDS: Final = (b"1" * 16, b"2" * 16)


class PowerLost(Exception):
    """The power is gone before a file call, or before or after a COMMIT."""


class DyingLedger(MemoryLedger):
    """A ledger whose COMMITs are moments at which the power may go."""

    tick = staticmethod(lambda: None)

    def commit(self) -> None:
        self.tick()
        super().commit()
        self.tick()


class OldStore:
    """Files of version 1 with messages in two queues; every third message is in both."""

    def __init__(self, file_count: int = 2, message_count: int = 6) -> None:
        self.disk = PowerLossDisk(ROOT, sector_size=512)
        self.ledger = DyingLedger(bytes(16))
        self.values: dict[bytes, bytes] = {}
        self.calls = 0
        self.dies_at: int | None = None
        self.rows = []
        for number, queue_id in enumerate(QUEUE_IDS):
            with a_round(self.ledger):
                row = self.ledger.create_queue(queue_id, "default", f"jobs-{number}", "{}")
            self.rows.append(row)
        for _ in range(file_count):
            self.add_file(message_count)
        with a_round(self.ledger):
            self.ledger.set_last_v1_file(file_count - 1)

    def add_file(self, message_count: int, *, bad: int | None = None) -> int:
        """A file whose messages are all needed; the term of the `bad` one is none."""
        data = b"a dead record, or what was one"
        with a_round(self.ledger):
            number = self.ledger.add_file(FileState.MOVING)
            for count in range(message_count):
                msg_id = a_msg_id(len(self.values))
                self.values[msg_id] = b"%d of file %d" % (count, number)
                term = b"\x83nothing" if count == bad else a_term(self.values[msg_id])
                record = encode_rdq_record(msg_id, term)
                queues = self.rows if count % 3 == 0 else self.rows[:1]
                items = [self._item(row, count) for row in queues]
                message = NewMessage(msg_id, number, len(data), len(record), items)
                self.ledger.restore_messages([message])
                data += record + bytes(3)
            self.ledger.set_file_size(number, len(data))
            self.ledger.set_file_state(number, FileState.SEALED)
        fd = self.disk.open(path_of(ROOT, number, is_version_1=True), create=True)
        self.disk.pwritev(fd, [data], 0)
        self.disk.fdatasync(fd)
        self.disk.close(fd)
        self.disk.fsync_dir(ROOT)
        return number

    def _item(self, row: QueueRow, priority: int) -> Item:
        sequence = self.fresh(row).next_sequence
        return Item(
            row.inside, sequence, ItemState.READY, priority % 10, None, None, 1_000, 0, None
        )

    def fresh(self, row: QueueRow) -> QueueRow:
        found = self.ledger.queue(row.queue_id)
        assert found is not None
        return found

    def items(self, number: int = 0) -> list[Stored]:
        return self.ledger.page(self.fresh(self.rows[number]).inside, 0, 1_000)

    def ack(self, *stored: Stored) -> None:
        with a_round(self.ledger):
            self.ledger.remove_items(stored)

    def start(self, v1_files: V1Files = V1Files.READ) -> StartReport:
        self.disk.before = lambda _, __: self._tick()
        self.ledger.tick = self._tick
        return start_store(self.disk, ROOT, self.ledger, v1_files=v1_files)

    def _tick(self) -> None:
        if self.calls == self.dies_at:
            raise PowerLost
        self.calls += 1

    def after_power_loss(self, chance: random.Random) -> "OldStore":
        """A store of its own, as one of the states in which it may be found."""
        self.disk.before = lambda _, __: None
        self.ledger.tick = lambda: None
        self.disk.end_processes()
        self.ledger.rollback()
        other = copy.copy(self)
        other.disk, other.ledger, other.rows = copy.deepcopy((self.disk, self.ledger, self.rows))
        other.disk.lose_power(chance)
        other.dies_at = None
        return other

    def names(self) -> list[str]:
        return sorted(self.disk.names(ROOT))

    def values_of(self, number: int = 0) -> list[bytes]:
        """What a consumer of one of the queues would get, in its order."""
        return [self.value(stored) for stored in self.items(number)]

    def value(self, stored: Stored) -> bytes:
        _, msg_id, *place = stored.message
        reader = Bodies(self.disk, ROOT, Descriptors(self.disk, 2))
        body = reader.read(BodyPlace(msg_id, *place)).body
        return bytes(decode_envelope(body).value)
