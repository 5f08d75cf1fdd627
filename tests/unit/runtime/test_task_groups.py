"""Whoever waited for a group of tasks is not counted as cancelled afterwards: its timeouts go on."""

import asyncio
import re
from pathlib import Path

import pytest

from bottomless_server.runtime.base.task_groups import task_group

SERVICES = Path(__file__).parents[3] / "services" / "bottomless_server"


class Broken(Exception):
    """What a task of these tests fails with."""


async def fails(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    raise Broken


async def lasts(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("lasts")


def cancellations_here() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5])
async def test_one_that_waits_at_the_end_while_a_task_fails_is_not_counted_as_cancelled(
    turns: int,
) -> None:
    """On Python 3.11.2 an uploader of a stream ended by the next timeout, without a word."""
    ended = list[str]()

    async def waits_at_the_end() -> None:
        async with task_group() as group:
            group.create_task(lasts(ended))
            group.create_task(fails(turns))
            await asyncio.sleep(0)

    with pytest.raises(ExceptionGroup) as failed:
        await waits_at_the_end()

    assert [type(error) for error in failed.value.exceptions] == [Broken]
    assert cancellations_here() == 0


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5])
async def test_one_that_is_still_at_its_own_work_is_cut_short_and_not_counted_either(
    turns: int,
) -> None:
    ended = list[str]()

    async def works() -> None:
        async with task_group() as group:
            group.create_task(lasts(ended))
            group.create_task(fails(turns))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup):
        await works()

    assert ended == ["lasts"]
    assert cancellations_here() == 0


async def test_what_fails_in_the_group_itself_ends_its_tasks() -> None:
    ended = list[str]()

    async def fails_itself() -> None:
        async with task_group() as group:
            group.create_task(lasts(ended))
            await asyncio.sleep(0)
            raise Broken

    with pytest.raises(ExceptionGroup) as failed:
        await fails_itself()

    assert [type(error) for error in failed.value.exceptions] == [Broken]
    assert ended == ["lasts"]
    assert cancellations_here() == 0


async def test_a_task_that_a_task_begins_is_waited_for_too() -> None:
    done = list[str]()

    async with task_group() as group:

        async def second() -> None:
            await asyncio.sleep(0)
            done.append("second")

        async def first() -> None:
            await asyncio.sleep(0)
            group.create_task(second())
            done.append("first")

        group.create_task(first())

    assert done == ["first", "second"]


async def test_a_cancellation_from_outside_reaches_the_tasks_and_goes_on() -> None:
    ended = list[str]()

    async def waits() -> None:
        async with task_group() as group:
            group.create_task(lasts(ended))

    task = asyncio.create_task(waits())
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert ended == ["lasts"]


def test_services_have_no_other_groups_of_tasks() -> None:
    found = [
        path.relative_to(SERVICES).as_posix()
        for path in SERVICES.rglob("*.py")
        if re.search(r"asyncio\.TaskGroup\(", path.read_text())
    ]

    assert found == ["runtime/base/task_groups.py"], "use task_group() of runtime/base"
