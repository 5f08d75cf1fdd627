"""Bounds that are counts: so many streams and keys of a tenant, so many consumers of a stream.

They hold exactly, whatever comes at once and to however many processes: the EXEC that enters
a member has watched and counted the index (`Room`). Such an EXEC fails where another member
entered meanwhile. So who enters the same index from this process stands in line, and only
those of other processes can make an attempt fail.

Nothing is written here: after a crash a member is in its index or it is not.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from bottomless.errors import Code, Overloaded, Unavailable
from bottomless_server.coordination.base import Coordination, IndexFull, Room

TURN_SECONDS: Final = 10.0
"""Longest wait in line: as long as the one who is first waits for the coordination store."""


class Quotas:
    """One for all indexes of a process."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._lines: dict[str, _Line] = {}
        """Only of indexes that somebody is entering: bounded by the requests in flight."""

    async def check(self, room: Room, sentence: str) -> None:
        """Refuse what has no room now. It may have none later either: nothing is kept.

        Raises:
            Overloaded: `quota-exceeded`, with `sentence`.
        """
        count = await self._coordination.member_count(room.redis_key)
        if count + room.others >= room.count_max:
            raise _exceeded(room, sentence)

    @asynccontextmanager
    async def entering(
        self, room: Room, sentence: str, *, is_in: bool = False
    ) -> AsyncIterator[None]:
        """Around a transaction with `room`. Who `is_in` already neither asks nor waits.

        Raises:
            Overloaded: `quota-exceeded`, with `sentence`.
            Unavailable: others were entering all the time.
        """
        try:
            if is_in:
                yield
                return
            # A full index costs its refused requests no place in the line.
            await self.check(room, sentence)
            async with self._turn(room.redis_key):
                yield
        except IndexFull as error:
            raise _exceeded(room, sentence) from error

    @asynccontextmanager
    async def _turn(self, index: str) -> AsyncIterator[None]:
        line = self._lines.setdefault(index, _Line())
        line.count += 1
        try:
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await line.lock.acquire()
            except TimeoutError as error:
                raise Unavailable(
                    "too many others are creating something at this time; try again",
                    code=Code.COORDINATION_UNAVAILABLE,
                    retry_after_seconds=1,
                ) from error
            try:
                yield
            finally:
                line.lock.release()
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[index]

    def __len__(self) -> int:
        return len(self._lines)


class _Line:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0
        """How many wait in this line, with the one whose turn it is."""


def _exceeded(room: Room, sentence: str) -> Overloaded:
    return Overloaded(
        sentence,
        code=Code.QUOTA_EXCEEDED,
        retry_after_seconds=60,
        facts={"limit": room.count_max},
    )
