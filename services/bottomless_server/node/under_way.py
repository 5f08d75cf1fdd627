"""Requests that are under way: a drain lets no new one in and waits for the others."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from bottomless.errors import Code, Unavailable


class RequestsUnderWay:
    """Counts requests, and knows whether the service takes new ones."""

    def __init__(self) -> None:
        self._accepting = False
        self._count = 0
        self._idle = asyncio.Event()
        self._draining = asyncio.Event()

    @property
    def count(self) -> int:
        """How many requests are under way now."""
        return self._count

    @property
    def accepting(self) -> bool:
        """Whether requests are let in."""
        return self._accepting

    def accept(self) -> None:
        """Let requests in from now on."""
        self._accepting = True

    def require_accepting(self) -> None:
        """Refuse a request before the start and in a drain.

        Raises:
            Unavailable: `draining`, outcome none.
        """
        if not self._accepting:
            raise Unavailable(
                "this node is about to stop", code=Code.DRAINING, retry_after_seconds=1
            )

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request for as long as the block lasts: a drain waits for its end."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Count a request until its `end`."""
        self._count += 1

    def end(self) -> None:
        """A request that was counted has ended."""
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def until_draining(self) -> None:
        """Return when a drain has begun: what only waits for something may end then."""
        await self._draining.wait()

    async def drain(self) -> None:
        """Let no new request in; returns when those that were counted have ended."""
        self._accepting = False
        self._draining.set()
        while self._count:
            self._idle.clear()
            await self._idle.wait()
