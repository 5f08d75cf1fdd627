"""Wait for room in the byte budget that all streams share. What fits is decided in core/window.py."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count

from bottomless_server.uploader.core.window import Budget


class ByteBudget:
    """The budget with its waiters; tickets are given out here."""

    def __init__(self, size_max: int) -> None:
        self._budget = Budget(size_max)
        self._tickets = count()
        self._waiters: dict[int, asyncio.Future[None]] = {}

    @property
    def size(self) -> int:
        return self._budget.size

    @property
    def waiting_count(self) -> int:
        return self._budget.waiting_count

    async def take(self, size: int) -> int:
        """Wait until `size` bytes are free and hold them under the ticket returned.

        Cancelling gives up the place in the queue, and the bytes if they were just granted.
        """
        ticket = next(self._tickets)
        granted = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = granted
        self._grant(self._budget.ask(ticket, size))
        try:
            await granted
        except asyncio.CancelledError:
            self.free(ticket)
            raise
        return ticket

    def take_last(self, size: int) -> int | None:
        """Hold `size` bytes under the ticket returned if they are free now and nobody waits; else None.

        Whoever asks again and again in this way goes after all that wait.
        """
        if self._budget.waiting_count:
            return None
        ticket = self.add(0)
        if self._budget.grow(ticket, size):
            return ticket
        self.free(ticket)
        return None

    @asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes while this is entered, which waits until they are free."""
        ticket = await self.take(size)
        try:
            yield
        finally:
            self.free(ticket)

    def add(self, size: int) -> int:
        """Hold bytes that are there already, without waiting."""
        ticket = next(self._tickets)
        self.charge(ticket, size)
        return ticket

    def charge(self, ticket: int, size: int) -> None:
        self._grant(self._budget.charge(ticket, size))

    def grow(self, ticket: int, size: int) -> bool:
        """Let a ticket hold so much, if that is free now; returns whether it does."""
        return self._budget.grow(ticket, size)

    def free(self, ticket: int) -> None:
        self._waiters.pop(ticket, None)
        self._grant(self._budget.free(ticket))

    def _grant(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            waiter = self._waiters.pop(ticket, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
