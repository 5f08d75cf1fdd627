"""Bounds that are counts: so many streams and keys of a tenant, so many consumers of a stream.

They hold exactly, whatever comes at once and to however many processes: the EXEC that enters
a member has watched and counted the index (`Room`). Such an EXEC fails where another member
entered meanwhile. So who enters the same index from this process stands in line, and only
those of other processes can make an attempt fail.

Nothing is written here: after a crash a member is in its index or it is not.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bottomless.errors import Code, Overloaded
from bottomless_server.coordination.base import Coordination, IndexFull, Room
from bottomless_server.manifest.common.lines import Lines


class Quotas:
    """One for all indexes of a process."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._lines = Lines("creating something")
        """The lines, by index."""

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
            CoordinationConflict: others were entering all the time.
        """
        try:
            if is_in:
                yield
                return
            # A full index costs its refused requests no place in the line.
            await self.check(room, sentence)
            async with self._lines.turn(room.redis_key):
                yield
        except IndexFull as error:
            raise _exceeded(room, sentence) from error

    def __len__(self) -> int:
        return len(self._lines)


def _exceeded(room: Room, sentence: str) -> Overloaded:
    return Overloaded(
        sentence,
        code=Code.QUOTA_EXCEEDED,
        retry_after_seconds=60,
        facts={"limit": room.count_max},
    )
