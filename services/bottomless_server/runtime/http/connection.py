"""Clients that stay for a while: how many there may be, and to notice when one goes away."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.types import Receive

from bottomless.errors import Overloaded
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.http.app import ClientGone

T = TypeVar("T")

_RETRY_AFTER_SECONDS = 1


class Places:
    """A bound on how many may be in at once."""

    def __init__(self, count_max: int, what: str) -> None:
        self._count_max = count_max
        self._what = what
        self.count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Be in.

        Raises:
            Overloaded: there is no place left.
        """
        if self.count >= self._count_max:
            raise Overloaded(
                f"there are too many {self._what} at once",
                facts={"limit": self._count_max},
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


async def gone(receive: Receive) -> None:
    """Return when the client has left; what it may still send of a body is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`, which is cancelled when the client leaves.

    Raises:
        ClientGone, and whatever `work` raises.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        await end_tasks(working, leaving)


async def require_connected(receive: Receive) -> None:
    """Return if nobody has heard that the client has left.

    Raises:
        ClientGone: it has.
    """
    leaving = asyncio.create_task(gone(receive))
    # One turn: what has been heard is told in it.
    await asyncio.sleep(0)
    has_left = leaving.done()
    await end_tasks(leaving)
    if has_left:
        raise ClientGone
