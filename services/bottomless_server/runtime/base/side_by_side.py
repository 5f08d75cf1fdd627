"""Do the same for many at once, with a bound: `side_by_side`."""

from collections.abc import Awaitable, Callable, Collection, Hashable
from typing import TypeVar

from bottomless_server.runtime.base.task_groups import task_group

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


async def side_by_side(
    keys: Collection[K], work: Callable[[K], Awaitable[T]], at_once: int
) -> dict[K, T | Exception]:
    """Do something for each key, for up to `at_once` of them at the same time.

    Returns what came of each, in the order of the keys: what was raised for one stands in the place of its
    result, and ends nothing of the others.
    """
    left, came_of = iter(keys), dict[K, T | Exception]()

    async def work_on() -> None:
        for key in left:
            try:
                came_of[key] = await work(key)
            except Exception as error:  # noqa: BLE001  whoever asked decides what it means
                came_of[key] = error

    count = min(at_once, len(keys))
    if count <= 1:
        await work_on()
    else:
        async with task_group() as group:
            for _ in range(count):
                group.create_task(work_on())
    return {key: came_of[key] for key in keys}
