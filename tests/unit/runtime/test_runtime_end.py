"""Tasks end when they are ended, also such as lose their first cancellation."""

import ast
import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bottomless_server.runtime.base.end import end_tasks

SERVICES = Path(__file__).parents[3] / "services" / "bottomless_server"

ALLOWED: dict[tuple[str, str], str] = {
    ("coordination/silence.py", "ending"): "a timer, no task",
    (
        "drives/answering.py",
        "_in_time",
    ): "one call of a drive: it ends by itself, or its thread hangs, and none can wait for that",
    (
        "drives/s3_multipart.py",
        "_send_parts",
    ): "each has a time limit, and `end_tasks` is floors above",
    (
        "ingest/leaderless/answers.py",
        "give_up",
    ): "each asks for a limited time, and answers at its end",
    ("ingest/replicas/replicator.py", "_set_timer"): "a timer, no task",
    ("manifest/common/held_lease.py", "_renew"): "again and again, until the work has ended",
    (
        "node/directory_watch.py",
        "_end_without",
    ): "the process ends then, and waits for nobody",
    ("queues/outgoing/outgoing.py", "_stop_timer"): "a timer, no task",
    ("queues/rounds/rounds.py", "_stop_timer"): "a timer, no task",
    ("reader/follow_answer.py", "_wait"): "one read, which has a time limit",
    ("runtime/base/end.py", "end_tasks"): "this is it",
    ("runtime/base/shared_hops.py", "_settle"): "an answer that somebody waits for, no task",
    ("runtime/base/single_flight.py", "_give_up"): "nobody waits for it, and it ends by itself",
    ("runtime/base/single_flight.py", "stop_timer"): "a timer, no task",
    ("runtime/http/in_flight.py", "cut"): "one read each, which has a time limit",
    ("runtime/listener/listeners.py", "open"): "waits for an event only",
    ("runtime/process/service.py", "_unless"): "waits for an event only",
    ("stores/joined_calls.py", "_make"): "an answer that somebody waits for, no task",
}
"""Functions that cancel by themselves, and why nothing goes on for ever where that is lost."""


def cancelling_functions(source: str) -> Iterator[str]:
    """Names of the functions in which something is cancelled."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef) and any(
            isinstance(one, ast.Attribute) and one.attr == "cancel" for one in ast.walk(function)
        ):
            yield function.name


def test_whoever_cancels_a_task_goes_through_the_helper() -> None:
    found = {
        (path.relative_to(SERVICES).as_posix(), name)
        for path in SERVICES.rglob("*.py")
        for name in cancelling_functions(path.read_text())
    }

    assert found - ALLOWED.keys() == set(), "use end_tasks() of runtime/base/end.py"
    assert ALLOWED.keys() - found == set(), "nobody has to allow what is not there any more"


def test_a_cancellation_without_the_helper_is_found() -> None:
    assert list(cancelling_functions("async def stop(self):\n self.task.cancel()")) == ["stop"]


class Loses:
    """A loop that takes its first cancellations for something else."""

    def __init__(self, count: int) -> None:
        self.lost = 0
        self.count = count
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self.lost == self.count:
                    raise
                self.lost += 1


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_task_that_loses_cancellations_ends(count: int) -> None:
    """A loop was cancelled once and waited for without an end; it had lost that cancellation."""
    loops = [Loses(count), Loses(0)]
    await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await end_tasks(*(loop.task for loop in loops), again_seconds=0)

    assert all(loop.task.cancelled() for loop in loops)
    assert loops[0].lost == count


async def test_one_that_cleans_up_is_given_time() -> None:
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(100):
                await asyncio.sleep(0)
            cleaned.set()

    task = asyncio.create_task(work())
    await begun.wait()
    await end_tasks(task, again_seconds=3_600)

    assert cleaned.is_set()


async def test_who_is_cancelled_meanwhile_hears_of_it_once_they_have_ended() -> None:
    """The renewal of a lease would go on for ever if the work that holds it went away alone."""
    loop = Loses(1)
    await asyncio.sleep(0)
    ending = asyncio.create_task(end_tasks(loop.task, again_seconds=3_600))
    while not loop.lost:
        await asyncio.sleep(0)
    # Which makes it cancel again at once.
    ending.cancel()
    async with asyncio.timeout(60):
        with contextlib.suppress(asyncio.CancelledError):
            await ending

    assert ending.cancelled()
    assert loop.task.cancelled()


async def test_what_they_raise_is_dropped_and_not_told_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails() -> None:
        raise RuntimeError

    tasks = [asyncio.create_task(fails()), asyncio.create_task(asyncio.sleep(3_600))]
    await end_tasks()
    await end_tasks(*tasks)
    assert all(task.done() for task in tasks)
    del tasks

    assert caplog.text == ""
