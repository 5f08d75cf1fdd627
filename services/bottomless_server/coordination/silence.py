"""How long anybody waits for a store that says nothing, to anybody in this process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LATE_SECONDS: Final = 0.5
"""A timer that fires so late tells that this process stood still: the store may have answered."""


class Silence:
    """Knows when the store was heard of last, and ends waits for one that says nothing."""

    def __init__(self, seconds: float, first_seconds: float) -> None:
        """`first_seconds`: how long it may be silent before it has said anything."""
        self._seconds = seconds
        self._first_seconds = first_seconds
        self._heard_at: float | None = None

    def hear(self) -> None:
        """Note that the store has said something."""
        self._heard_at = asyncio.get_running_loop().time()

    @contextmanager
    def ending(self, wait: asyncio.Timeout) -> Iterator[None]:
        """End a wait, for the length of a block, once the store has been silent for too long.

        A store that is slow with one answer, and not with others, is waited for on.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        timer: list[asyncio.TimerHandle] = []

        def borne_from(began: float) -> float:
            heard_at = self._heard_at
            if heard_at is None:
                return began + self._first_seconds
            return max(began, heard_at) + self._seconds

        def look(due: float) -> None:
            now = loop.time()
            until = borne_from(now if now - due > _LATE_SECONDS else began)
            if until > now:
                timer[0] = loop.call_at(until, look, until)
            elif not wait.expired():
                ends = wait.when()
                wait.reschedule(now if ends is None else min(ends, now))

        first = borne_from(began)
        timer.append(loop.call_at(first, look, first))
        try:
            yield
        finally:
            timer[0].cancel()
