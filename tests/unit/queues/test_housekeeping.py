"""Files are removed and compacted in the background, beside readers, refusals and a stop."""

import asyncio
import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest
from support.waiting import eventually

from bottomless.errors import Overloaded
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.directory import housekeeping
from unit.queues.engine_harness import SETTINGS, TENANT, Engine, an_engine

SMALL = SETTINGS._replace(file_bytes_max=5_000)
BY_ITSELF = {"file_bytes_max": 5_000}


class Disk(RealFileCalls):
    """A disk that refuses to cut and to remove while it is told to."""

    def __init__(self) -> None:
        self.refuses: set[str] = set()
        self.refused = 0

    def _look(self, call: str) -> None:
        if call in self.refuses:
            self.refused += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def truncate(self, fd: int, size: int) -> None:
        self._look("truncate")
        super().truncate(fd, size)

    def unlink(self, path: Path) -> None:
        self._look("unlink")
        super().unlink(path)


async def fill(engine: Engine, count: int = 20) -> None:
    await engine.create("jobs")
    for number in range(count):
        await engine.publish("jobs", values=[bytes([number]) * 1_000])


async def ack_most(engine: Engine, kept: int) -> None:
    taken = await engine.receive("jobs", limit=100, visibility_ms=0)
    await engine.ack("jobs", [each for each in taken if each.sequence % kept])
    await engine.engine.upkeep()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "messages").iterdir())


@pytest.fixture
def no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not work the first time is not tried again as long as the test runs."""
    monkeypatch.setattr(housekeeping, "LATER_SECONDS", 1e9)


@pytest.mark.usefixtures("no_second_try")
async def test_it_happens_by_itself(tmp_path: Path) -> None:
    async with an_engine(tmp_path, **BY_ITSELF) as engine:
        await fill(engine)
        await ack_most(engine, 5)
        await eventually(lambda: engine.engine.figures().moved_bytes)
        await engine.ack("jobs", await engine.receive("jobs", limit=100))
        await eventually(lambda: len(names(tmp_path)) == 1)


async def test_files_that_are_not_left_alone_long_enough_are_left(tmp_path: Path) -> None:
    async with an_engine(tmp_path, **BY_ITSELF, compact_quiet_ms=10**9) as engine:
        await fill(engine)
        await ack_most(engine, 5)
        before = (await engine.engine.storage()).disk_bytes
        assert await engine.engine.tend() is False
        assert (await engine.engine.storage()).disk_bytes == before
        # An operator does not wait.
        assert await engine.engine.compact() > 0
        await engine.engine.tend()
        assert (await engine.engine.storage()).disk_bytes < before


async def test_an_operator_gets_back_what_is_no_candidate_too(tmp_path: Path) -> None:
    async with an_engine(tmp_path, **BY_ITSELF) as engine:
        await fill(engine)
        taken = await engine.receive("jobs", limit=100, visibility_ms=0)
        await engine.ack("jobs", [each for each in taken if each.sequence % 4 == 0])
        while await engine.engine.tend():
            pass
        before = await engine.engine.storage()
        assert await engine.engine.compact() == sum(
            row.valid + 64 < row.size for row in before.files[:-1]
        )
        await engine.engine.tend()
        after = await engine.engine.storage()
        assert after.disk_bytes < before.disk_bytes
        assert after.live_bytes == before.live_bytes
        await engine.engine.upkeep()
        assert len(await engine.drain("jobs")) == 15


async def test_a_disk_that_does_not_remove_or_cut_loses_nothing_and_is_tried_again(
    tmp_path: Path,
) -> None:
    disk = Disk()
    engine = Engine(tmp_path, SMALL, disk)
    await engine.open()
    await fill(engine)
    disk.refuses = {"truncate", "unlink"}
    await ack_most(engine, 5)
    await engine.engine.tend()
    refused = disk.refused
    assert refused > 0
    # It is not tried again at once, though others of its kind are looked at.
    await engine.engine.tend()
    assert disk.refused == refused
    disk.refuses = set()
    await engine.restart()
    while await engine.engine.tend():
        pass
    figures = await engine.engine.storage()
    assert figures.disk_bytes <= 2 * figures.live_bytes + 3 * 5_000
    assert len(await engine.drain("jobs")) == 4
    assert await engine.engine.check() == []
    await engine.close()


async def test_a_stop_in_the_middle_leaves_a_directory_that_is_opened_again(
    tmp_path: Path,
) -> None:
    engine = Engine(tmp_path, SMALL)
    await engine.open()
    await fill(engine)
    await ack_most(engine, 5)
    tending = asyncio.create_task(engine.engine.tend())
    await asyncio.sleep(0)
    await engine.close()
    await asyncio.wait([tending])
    tending.exception()
    await engine.open()
    assert engine.engine.start_report.damaged_count == 0
    assert len(await engine.drain("jobs")) == 4
    assert await engine.engine.check() == []
    await engine.close()


@pytest.mark.usefixtures("no_second_try")
async def test_the_space_of_a_deleted_queue_comes_back(tmp_path: Path) -> None:
    async with an_engine(tmp_path, **BY_ITSELF, sweep_count=3) as engine:
        await fill(engine)
        await engine.engine.delete_queue(TENANT, "jobs")
        await eventually(lambda: len(names(tmp_path)) == 1)


async def test_the_bound_of_the_disk_counts_and_files_go_while_compaction_takes_its_time(
    tmp_path: Path,
) -> None:
    slow = {**BY_ITSELF, "compact_bytes_per_second": 1, "disk_bytes_max": 40_000}
    async with an_engine(tmp_path, **slow) as engine:
        await fill(engine)
        await ack_most(engine, 5)
        await eventually(lambda: engine.engine.figures().moved_bytes)
        # Its pause is of a quarter of an hour at least.
        for _ in range(50):
            with suppress(Overloaded):
                await engine.publish("jobs", values=[bytes(1_000)])
        await eventually(lambda: engine.engine.figures().disk_bytes >= 40_000)
        with pytest.raises(Overloaded, match="as many bytes as they may have"):
            await engine.publish("jobs", values=[bytes(1_000)])
        await engine.drain("jobs")
        await eventually(lambda: len(names(tmp_path)) < 3)


@pytest.mark.parametrize("size", [100, 5_000_000])
async def test_bodies_of_any_size_come_and_go(tmp_path: Path, size: int) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        values = [bytes([number]) * size for number in range(3)]
        await engine.publish("jobs", values=values)
        assert await engine.drain("jobs") == values
        await engine.engine.tend()
        assert (await engine.engine.storage()).live_bytes == 0
