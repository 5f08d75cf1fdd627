"""Rounds on a disk that forgets what was not synced, and of which any call fails, once or for good."""

import errno
import os
import random
from pathlib import Path
from typing import Final

import pytest
from support.ledgers import STORE_ID, id_of
from support.power_loss import PowerLossDisk
from support.queue_changes import CreateQueue, Publish, Take, wanted

from bottomless.formats.message_file import HEADER_SIZE, check_file_header
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.ledger.base import Ledger
from bottomless_server.queues.ledger.memory import MemoryLedger
from bottomless_server.queues.ledger.sqlite import SqliteLedger
from bottomless_server.queues.rounds.memory_files import MemoryRegistry
from bottomless_server.queues.rounds.round_files import RoundFiles
from bottomless_server.queues.rounds.round_writer import Bounds, RoundWriter
from bottomless_server.queues.store.names import path_of
from bottomless_server.queues.store.pins import Pins
from bottomless_server.queues.store.start import start_store

ROOT: Final = Path("/queues/messages")
QUEUE: Final = id_of(1)
BOUNDS: Final = Bounds(file_bytes_max=HEADER_SIZE + 40, free_bytes_min=0)
VALUES: Final = [b"value %02d" % number for number in range(12)]


class OnDisk:
    def __init__(self) -> None:
        self.disk = PowerLossDisk(ROOT)
        self.ledger = MemoryLedger(STORE_ID)
        self.pins = Pins()
        files = RoundFiles(self.disk, ROOT, self.pins, lambda _: 2**40)
        self.writer = RoundWriter(self.ledger, files, MemoryRegistry(), lambda: 5, BOUNDS)
        assert self.writer.round(wanted(CreateQueue(QUEUE, "jobs"))) is not None

    def publish(self, *values: bytes) -> list[bytes]:
        """Publish in one round; returns those that were answered as stored."""
        ended = self.writer.round(wanted(*(Publish(QUEUE, value) for value in values)))
        assert ended is not None
        verdicts = zip(values, ended.verdicts, strict=True)
        return [value for value, verdict in verdicts if verdict.error is None]

    def stored(self) -> list[bytes]:
        """What the ledger says, as it lies on the disk."""
        row = self.ledger.queue(QUEUE)
        assert row is not None
        found = []
        for _, message in self.ledger.page(row.inside, 0, 100):
            fd = self.disk.open(path_of(ROOT, message.file))
            check_file_header(self.disk.pread(fd, HEADER_SIZE, 0))
            found.append(self.disk.pread(fd, message.size, message.position))
            self.disk.close(fd)
        return found


def a_story(store: OnDisk) -> list[bytes]:
    stored = []
    for first in range(0, len(VALUES), 3):
        stored += store.publish(*VALUES[first : first + 3])
    return stored


def count_calls() -> int:
    store = OnDisk()
    calls = []
    store.disk.before = lambda call, _: calls.append(call)
    assert a_story(store) == VALUES == store.stored()
    return len(calls)


CALL_COUNT: Final = count_calls()


@pytest.mark.parametrize("lasts", [1, 2, 3])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_whatever_call_fails_what_was_answered_is_there_after_a_loss_of_power(
    number: int, lasts: int
) -> None:
    refused = 0
    for fails_at in range(CALL_COUNT):
        store = OnDisk()
        calls = 0

        def fail(call: str, path: Path, fails_at: int = fails_at) -> None:
            nonlocal calls
            calls += 1
            if fails_at < calls <= fails_at + lasts and call != "pread":
                raise OSError(number, os.strerror(number), str(path))

        store.disk.before = fail
        stored = a_story(store)
        refused += len(VALUES) - len(stored)
        store.disk.before = lambda *_: None
        assert store.stored() == stored
        store.disk.lose_power(random.Random(fails_at))
        start_store(store.disk, ROOT, store.ledger)
        assert store.stored() == stored
        assert store.ledger.check() == []
    assert refused >= CALL_COUNT // 2


def test_a_pin_is_held_from_the_round_until_it_is_released() -> None:
    store = OnDisk()
    store.publish(b"one")
    assert store.writer.round(wanted(Take(QUEUE, pins=True))) is not None
    assert (store.pins.count, store.pins.is_free(0, 2)) == (1, True)
    files = RoundFiles(store.disk, ROOT, store.pins)
    pin = files.pin(0, 3)
    pin.release()
    pin.release()
    assert store.pins.count == 1


def test_rounds_on_the_real_disk_and_the_real_ledger(tmp_path: Path) -> None:
    files = RealFileCalls()
    messages = tmp_path / "messages"
    messages.mkdir()
    ledger: Ledger = SqliteLedger(tmp_path / "ledger.db", files, STORE_ID)
    parts = RoundFiles(files, messages, Pins())
    bounds = BOUNDS._replace(free_bytes_min=1)
    writer = RoundWriter(ledger, parts, MemoryRegistry(), lambda: 5, bounds)
    assert writer.round(wanted(CreateQueue(QUEUE, "jobs"))) is not None
    for first in range(0, len(VALUES), 4):
        ended = writer.round(wanted(*(Publish(QUEUE, v) for v in VALUES[first : first + 4])))
        assert ended is not None
        assert [verdict.error for verdict in ended.verdicts] == [None] * 4
    writer.close(clean=True)

    ledger = SqliteLedger(tmp_path / "ledger.db", files, STORE_ID)
    assert ledger.store().clean
    row = ledger.queue(QUEUE)
    assert row is not None
    there = [message for _, message in ledger.page(row.inside, 0, 100)]
    data = {each.file: path_of(messages, each.file).read_bytes() for each in there}
    assert [data[each.file][each.position :][: each.size] for each in there] == VALUES
    assert [len(data[number]) - HEADER_SIZE for number in sorted(data)] == [40, 40, 16]
    ledger.close()
