"""Lines: who changes one thing in coordination stands in line for it, in this process.

An EXEC fails where another one changed the same meanwhile. In line only those of other processes can
make an attempt fail, so many at once come to an end, one after the other.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from bottomless_server.coordination.base import CoordinationConflict

TURN_SECONDS: Final = 10.0
"""Longest wait in line: as long as the one who is first waits for the coordination store."""


class Lines:
    """Lines by their names; only of names for which somebody waits, so bounded by the requests in flight."""

    def __init__(self, waiting_for: str) -> None:
        """`waiting_for` completes the sentence "too many others are ... at this time"."""
        self._waiting_for = waiting_for
        self._lines: dict[str, _Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Wait for its turn, which ends with the block.

        Raises:
            CoordinationConflict: it does not come within TURN_SECONDS; nothing was done.
        """
        line = self._lines.setdefault(name, _Line())
        line.count += 1
        try:
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await line.lock.acquire()
            except TimeoutError as error:
                raise CoordinationConflict(
                    f"too many others are {self._waiting_for} at this time; try again",
                    retry_after_seconds=1,
                ) from error
            try:
                yield
            finally:
                line.lock.release()
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[name]


class _Line:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0
        """How many wait in this line, with the one whose turn it is."""
