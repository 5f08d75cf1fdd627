"""Reads of the engine of queues that take long: who leaves meanwhile, and what waits for them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from bottomless.errors import NotFound, Overloaded
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.changes.moving import Redrive
from bottomless_server.queues.rounds.rounds import Rounds
from unit.queues.engine_harness import SETTINGS, TENANT, Engine


class SlowDisk(RealFileCalls):
    """A disk whose reads of message bodies wait while it is told to; headers are read at once."""

    def __init__(self) -> None:
        self.may_read = threading.Event()
        self.may_read.set()
        self.waiting = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if position and not self.may_read.is_set():
            self.waiting += 1
            self.may_read.wait()
        return super().pread(fd, size, position)


class Slow:
    def __init__(self, directory: Path) -> None:
        self.disk = SlowDisk()
        self.engine = Engine(directory, SETTINGS._replace(file_bytes_max=3_000), self.disk)

    async def begun(self, *, allowed: bool = True) -> "asyncio.Task[list[bytes]]":
        """A receive whose read is under way."""
        self.disk.may_read.clear()
        task = asyncio.create_task(self.engine.values("jobs", allowed=lambda: allowed))
        await eventually(lambda: self.disk.waiting)
        return task

    async def pins(self) -> int:
        return (await self.engine.engine.storage()).pins


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[Slow]:
    found = Slow(tmp_path)
    await found.engine.open()
    await found.engine.create("jobs")
    await found.engine.publish("jobs", values=[b"one"])
    yield found
    found.disk.may_read.set()
    await found.engine.close()


async def test_who_leaves_while_messages_are_read_takes_nothing(slow: Slow) -> None:
    task = await slow.begun()
    task.cancel()
    assert await slow.pins() == 1
    slow.disk.may_read.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await slow.engine.values("jobs", wait_ms=240_000) == [b"one"]
    assert await slow.pins() == 0


async def test_who_may_not_have_them_any_more_after_the_read_takes_nothing(slow: Slow) -> None:
    task = await slow.begun(allowed=False)
    slow.disk.may_read.set()
    assert await task == []
    assert await slow.engine.values("jobs", wait_ms=240_000) == [b"one"]


async def test_rounds_go_on_while_a_read_takes_long(slow: Slow) -> None:
    task = await slow.begun()
    await slow.engine.publish("jobs", values=[b"two"])
    assert (await slow.engine.describe("jobs")).sums.ready == 1
    slow.disk.may_read.set()
    assert await task == [b"one"]


async def test_a_file_is_removed_after_its_last_read_and_not_before(slow: Slow) -> None:
    task = await slow.begun()
    await slow.engine.engine.purge("default", "jobs")
    # Its file gets no more, and nothing of it is needed: so it is doomed.
    await slow.engine.publish("jobs", values=[bytes(5_000)])
    tending = asyncio.create_task(slow.engine.engine.tend())
    await slow.engine.engine.upkeep()
    there = slow.engine.directory / "messages" / "0.sqs"
    assert there.exists()
    slow.disk.may_read.set()
    # Whoever was told where it lies gets it, though its queue was purged meanwhile.
    assert await task == [b"one"]
    await tending
    await slow.engine.engine.tend()
    assert not there.exists()


async def test_a_stop_waits_for_what_is_read(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    await slow.engine.open()
    await slow.engine.create("jobs")
    await slow.engine.publish("jobs", values=[b"one"])
    task = await slow.begun()
    closing = asyncio.create_task(slow.engine.close())
    slow.disk.may_read.set()
    await closing
    assert await task == [b"one"]
    await slow.engine.open()
    assert slow.engine.engine.start_report.damaged_count == 0
    await slow.engine.close()


async def dead_letters(slow: Slow, *names: str) -> None:
    """One dead letter of each queue, in this order; nothing of them goes there any more."""
    for name in names:
        await slow.engine.create(name, message_ttl_ms=1, dead_letter={"queue": "dead"})
        await slow.engine.publish(name, values=[name.encode()])
        await slow.engine.pass_time(1)
        await slow.engine.arrived()


async def test_a_redrive_tells_what_has_moved_although_a_queue_was_deleted_meanwhile(
    slow: Slow,
) -> None:
    await slow.engine.create("dead")
    await dead_letters(slow, "a", "b")
    slow.disk.may_read.clear()
    redriving = asyncio.create_task(slow.engine.engine.redrive(TENANT, "dead"))
    await eventually(lambda: slow.disk.waiting)
    await slow.engine.engine.delete_queue(TENANT, "a")
    slow.disk.may_read.set()
    answer = await redriving
    assert (answer.moved, answer.left) == (1, 1)
    assert await slow.engine.values("b") == [b"b"]
    with pytest.raises(NotFound) as caught:
        await slow.engine.engine.redrive(TENANT, "dead")
    assert caught.value.facts == {"queue": "a"}


async def test_a_redrive_tells_what_has_moved_although_the_rest_was_refused(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds move a hundred messages each: the second one is refused."""
    await slow.engine.create("dead")
    await slow.engine.publish("dead", values=[b"x"] * 101)
    do, redrives = Rounds.do, list[Redrive]()

    async def refused(self: Rounds, change: Any) -> Any:
        if isinstance(change, Redrive):
            redrives.append(change)
            if len(redrives) == 2:
                raise Overloaded("too much waits")
        return await do(self, change)

    monkeypatch.setattr(Rounds, "do", refused)
    answer = await slow.engine.engine.redrive(TENANT, "dead", to="jobs")
    assert (answer.moved, answer.left) == (100, 1)
    assert (await slow.engine.describe("dead")).sums.ready == 1
    redrives[1:] = []
    with pytest.raises(Overloaded):
        await slow.engine.engine.redrive(TENANT, "dead", to="jobs")
