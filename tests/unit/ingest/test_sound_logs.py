"""Logs that were read whole, and how many are read at once."""

import asyncio
from concurrent.futures import Executor, Future
from typing import Any

from bottomless_server.ingest.local.sound_logs import READ_COUNT, SoundLogs
from unit.ingest.harness import STREAM


class Threads(Executor):
    """Calls that are under way until a test ends them."""

    def __init__(self) -> None:
        self.begun: list[Future[Any]] = []

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.begun.append(future)
        return future


async def until_begun(threads: Threads, count: int) -> None:
    """Return when so many calls were begun, and no other one is about to be."""
    async with asyncio.timeout(240):
        while len(threads.begun) < count:
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(threads.begun) == count


async def test_few_logs_are_read_at_once_so_that_rounds_have_threads() -> None:
    sound, threads = SoundLogs(), Threads()
    reading = [
        asyncio.create_task(sound.in_turn(threads, lambda: "read")) for _ in range(READ_COUNT + 2)
    ]
    await until_begun(threads, READ_COUNT)
    threads.begun[0].set_result("read")
    threads.begun[1].set_exception(OSError("the disk fails"))
    await until_begun(threads, READ_COUNT + 2)
    for one in threads.begun[2:]:
        one.set_result("read")
    outcomes = await asyncio.gather(*reading, return_exceptions=True)
    assert [str(one) for one in outcomes] == [
        "read",
        "the disk fails",
        *["read"] * READ_COUNT,
    ]


def test_a_log_is_known_until_damage_is_found() -> None:
    sound = SoundLogs()
    assert not sound.is_known(STREAM)
    sound.note(STREAM)
    assert sound.is_known(STREAM)
    sound.forget(STREAM)
    assert not sound.is_known(STREAM)
