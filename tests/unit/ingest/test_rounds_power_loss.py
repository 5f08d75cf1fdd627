"""Rounds of several streams on a disk that fails and loses its power: what was acknowledged is there.

The simulation has all of this too, but its streams are few, and what a failed sync has lost is mostly
in the object store before the power goes. Here nothing is uploaded, and the power goes often.
"""

import asyncio
import errno
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from support.guards import remove
from support.power_loss import OWN, SILENT, PowerLossDisk

from bottomless.errors import Corrupt
from bottomless.model.names import StreamId
from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless_server.ingest.log.core import round_shares
from bottomless_server.ingest.log.core.batcher import seal_round
from bottomless_server.ingest.log.recovery import recover
from bottomless_server.ingest.log.rounds import RoundWriter
from bottomless_server.ingest.log.segments import (
    LogBroken,
    RollBounds,
    SegmentLog,
    WriteRefused,
)
from bottomless_server.ingest.log.whole_syncs import WholeSyncs
from bottomless_server.ingest.records.intake import Append
from bottomless_server.node.core.file_systems import FileSystem

IDS: Final = [StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c{number:02x}") for number in range(4)]
ROLL: Final = RollBounds(size_max=700, age_ms_max=10**9, chunk_count_max=10**6)
"""Of some rounds each, so that segments are begun among faults too."""
FAULTS: Final = ("pwritev", "fdatasync", "syncfs", "create", "truncate")
SEEDS: Final = range(6)


class Node:
    """Four streams on one disk, in one life after the other; one thread writes, in a fixed order."""

    def __init__(self, directory: Path, lies_on: FileSystem, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = PowerLossDisk(directory, lies_on=lies_on)
        self.executor = ThreadPoolExecutor(1)
        self.acknowledged = dict.fromkeys(IDS, 0)
        self.logs: dict[StreamId, SegmentLog] = {}
        self._directory = directory
        for stream_id in IDS:
            self.disk.make_dir(directory / stream_id)
        self.disk.fsync_dir(directory)
        self.begin()

    def begin(self) -> None:
        """A life: what lies on the disk is recovered."""
        self.logs.clear()
        whole = WholeSyncs(self.disk, self._directory, "auto")
        self.writer = RoundWriter(self.executor, 1, whole)
        self.writer.open()
        for stream_id in IDS:
            self.open(stream_id, None)

    def open(self, stream_id: StreamId, cut_at: tuple[int, int] | None) -> None:
        path = self._directory / stream_id
        found = recover(self.disk, path, stream_id, 0, cut_at)
        assert found.next_offset >= self.acknowledged[stream_id]
        self.logs[stream_id] = SegmentLog(
            self.disk,
            path,
            stream_id,
            ROLL,
            segments=found.segments,
            next_offset=found.next_offset,
            last_timestamp=found.last_timestamp,
        )

    async def append(self, stream_id: StreamId) -> None:
        log = self.logs[stream_id]
        rows = Rows([self.chance.randbytes(40)], [Content.BYTES])
        sealed = seal_round(
            [Append(1, rows.size, 7, rows)],
            next_offset=log.synced_next,
            timestamp=log.last_timestamp + 1,
            epoch=3,
            chunk_size_max=8_192,
        )
        try:
            log.extend(await self.writer.write(log, sealed, 3, 0, lambda: None))
            self.acknowledged[stream_id] = log.synced_next
        except WriteRefused:
            pass
        except LogBroken:
            # As the owner of the stream does: what the next opening reads is cut at this place.
            log.close()
            while True:
                try:
                    self.open(stream_id, log.synced_place())
                    break
                except OSError:
                    self.disk.before = _nothing

    def break_disk(self) -> None:
        left, call_at = self.chance.randint(1, 12), self.chance.sample(FAULTS, 2)
        number = self.chance.choice((errno.EIO, errno.ENOSPC))

        def before(call: str, path: Path) -> None:
            nonlocal left
            if call in call_at and (call == "syncfs" or path.suffix == ".segment"):
                left -= 1
                if left < 2:
                    self.disk.before = before if left else _nothing
                    raise OSError(number, os.strerror(number))

        self.disk.before = before

    async def live(self) -> None:
        for _ in range(30):
            what = self.chance.random()
            if what < 0.35:
                self.break_disk()
            if what < 0.9:
                some = self.chance.sample(IDS, self.chance.randint(1, len(IDS)))
                await asyncio.gather(*map(self.append, some))
                continue
            self.disk.before = _nothing
            if what < 0.97:
                self.disk.lose_power(self.chance)
            else:
                self.disk.end_processes()
            self.begin()
        self.disk.before = _nothing
        self.disk.lose_power(self.chance)
        self.begin()


def _nothing(_: str, __: Path) -> None:
    pass


@pytest.fixture
def synced_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_shares, "ALL_FROM", 2)
    monkeypatch.setattr(round_shares, "SLOW_SECONDS", 10**6)
    monkeypatch.setattr(round_shares, "PAUSE_SECONDS", 0.0)


async def run(directory: Path, lies_on: FileSystem) -> int:
    """How many records were acknowledged over all seeds; each of them was there in the end."""
    acknowledged = 0
    for seed in SEEDS:
        node = Node(directory, lies_on, seed)
        try:
            await node.live()
        finally:
            node.executor.shutdown()
        acknowledged += sum(node.acknowledged.values())
    return acknowledged


@pytest.mark.usefixtures("synced_for_few")
@pytest.mark.parametrize("lies_on", [OWN, SILENT], ids=["xfs", "ext4"])
async def test_what_was_acknowledged_outlives_failing_syncs_and_losses_of_power(
    tmp_path: Path, lies_on: FileSystem
) -> None:
    """The tests of decision 48 took it for granted that a sync of an ext4 tells of each loss."""
    assert await run(tmp_path, lies_on) > 10 * len(SEEDS)


@pytest.mark.usefixtures("synced_for_few")
@pytest.mark.parametrize(
    ("name", "lies_on"),
    [
        ("file systems whose sync of everything tells of each loss", SILENT),
        ("the sync of each file after one of all that failed", OWN),
    ],
)
async def test_without_a_guard_something_acknowledged_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, lies_on: FileSystem
) -> None:
    remove(monkeypatch, name, lambda *_: True)

    # It is gone, or lies after a part that is gone.
    with pytest.raises((AssertionError, Corrupt)):
        await run(tmp_path, lies_on)
