"""Groups of tasks that leave no cancellation on whoever waits for them: `task_group`.

`asyncio.TaskGroup` cancels the task that it belongs to when one of its tasks fails, so that this
does not go on with what was to be done meanwhile. It takes the cancellation back, but not where
the task had come to the end of the group already and only waited for the others. Then the task
stays counted as cancelled (`asyncio.Task.cancelling`) for as long as it lives. A loop that lives
as long as its service meets that one day, and with the Python of Debian 12, 3.11.2, the next
`asyncio.timeout` of that loop to be over ends the loop, as if somebody had cancelled it.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class TaskGroup:
    """The tasks of one group, all of which end before it does."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._running: set[asyncio.Task[Any]] = set()
        """Tasks that have not ended yet, as far as the group knows."""

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task, which is cancelled if another one fails."""
        task = self._group.create_task(work)
        self._running.add(task)
        # The group asked first, and so it hears before this does.
        task.add_done_callback(self._running.discard)
        return task

    async def all_ended(self) -> None:
        """Wait until the group has heard of the end of each task."""
        while self._running:
            await asyncio.wait(self._running)


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """Begin tasks, and wait for all of them at the end, as `asyncio.TaskGroup` does.

    Raises:
        ExceptionGroup: tasks, or what stands in the group, have failed; the others were cancelled.
    """
    async with asyncio.TaskGroup() as group:
        tasks = TaskGroup(group)
        yield tasks
        # Here, and not as the group ends: only a cancellation that meets this task before that end
        # is taken back.
        await tasks.all_ended()
