"""Messages that lie one after the other are read at once, and one that is bad harms none beside it."""

import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.ledger.base import Message
from bottomless_server.queues.reading.reading import RUN_SIZE_MAX, runs_of
from unit.queues.engine_harness import SETTINGS, Engine


def a_message(file: int, position: int, size: int) -> Message:
    return Message(position, bytes(16), file, position, size)


def test_a_run_ends_at_another_file_at_a_gap_at_a_step_back_and_at_its_bound() -> None:
    half = RUN_SIZE_MAX // 2
    messages = [
        *(a_message(1, 64, 10), a_message(1, 74, 20), a_message(1, 94, 5)),
        *(a_message(2, 99, 10), a_message(2, 109, 1)),
        a_message(2, 111, 1),
        *(a_message(2, 64, half), a_message(2, 64 + half, half)),
        a_message(2, 64 + 2 * half, 1),
        a_message(3, 64, 2 * RUN_SIZE_MAX),
    ]
    assert [len(run) for run in runs_of(messages)] == [3, 2, 1, 2, 1, 1]
    assert [message for run in runs_of(messages) for message in run] == messages
    assert list(runs_of([])) == []


class CountedReads(RealFileCalls):
    def __init__(self) -> None:
        self.counted = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.counted += position > 0
        return super().pread(fd, size, position)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    found = Engine(tmp_path, SETTINGS, CountedReads())
    await found.open()
    await found.create("jobs")
    yield found
    await found.close()


async def test_what_was_published_together_is_read_at_once(engine: Engine) -> None:
    assert isinstance(engine.files, CountedReads)
    values = [b"%d" % number for number in range(50)]
    await engine.publish("jobs", values=values)
    engine.files.counted = 0
    assert await engine.values("jobs", limit=50) == values
    assert engine.files.counted == 1


async def test_one_damaged_message_holds_up_none_of_those_that_are_read_with_it(
    engine: Engine,
) -> None:
    values = [b"value-%d" % number for number in range(5)]
    await engine.publish("jobs", values=values)
    [path] = engine.directory.glob("messages/*.sqs")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"value-2", b"VALUE-2"))
    assert await engine.values("jobs") == [value for value in values if value != b"value-2"]
    assert (await engine.engine.describe_queue("default", "jobs")).sums.damaged == 1


async def test_messages_that_wait_are_nothing_that_python_keeps(engine: Engine) -> None:
    """Memory does not grow with them: what the ledger caches is bounded by its setting."""

    async def objects_with_more(count: int) -> int:
        for _ in range(count // 100):
            await engine.publish("jobs", values=[b"x"] * 100)
        gc.collect()
        return len(gc.get_objects())

    await objects_with_more(200)
    before = await objects_with_more(200)
    assert await objects_with_more(2_000) - before < 200
