"""A directory that may hang, as a network mount does whose server is gone: it is away then.

A call of the file system cannot be ended. So its thread is left alone, and whoever waits is told after a
while that the drive does not answer. Where several calls hang, no further one is made until one of them
has come back: so a mount never has more of its threads than it may, and nobody waits for what is known to
hang. Each directory has threads of its own, so the others go on in any case. A thread whose caller was
cancelled counts as soon as it would have been too late for that one, too.

After a crash nothing differs: whoever was told that a call hangs knows nothing of what became of it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from bottomless.drives.base import Body, Drive, DriveAmbiguous, DriveUnavailable, Location
from bottomless.errors import StoreError
from bottomless.guards import guard
from bottomless.model.object_facts import ObjectFacts

HANGING_MAX: Final = 4
"""Calls that may hang at once: half of the threads of a directory."""
ANSWER_SECONDS: Final = 60.0
"""How long a look, a read or a deletion may take; the largest object that is read takes seconds."""
PUT_SECONDS: Final = 900.0
"""How long a put may take: as long as one is tried at all."""

_T = TypeVar("_T")


@runtime_checkable
class _LeavesCalls(Protocol):
    """A drive whose calls go on where their callers are cancelled."""

    @property
    def left_calls(self) -> tuple[float, ...]: ...

    @property
    def left_puts(self) -> tuple[float, ...]: ...


class AnsweringDrive:
    """A drive of which every call ends, whether it answers or not."""

    def __init__(
        self,
        drive: Drive,
        answer_seconds: float = ANSWER_SECONDS,
        put_seconds: float = PUT_SECONDS,
    ) -> None:
        self._drive = drive
        self._answer_seconds = answer_seconds
        self._put_seconds = put_seconds
        self._hanging: set[asyncio.Task[Any]] = set()

    @property
    def hanging_count(self) -> int:
        """How many calls have not come back in time, whether somebody waits for them or was cancelled."""
        return len(self._hanging) + self._left_count()

    def _left_count(self) -> int:
        if not isinstance(self._drive, _LeavesCalls):
            return 0
        now = asyncio.get_running_loop().time()
        late = sum(now - began >= self._answer_seconds for began in self._drive.left_calls)
        # A slow disk is not one that hangs, whether somebody waits for what is put or not.
        return late + sum(now - began >= self._put_seconds for began in self._drive.left_puts)

    @property
    def location(self) -> Location:
        return self._drive.location

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        try:
            await self._in_time(self._drive.put(object_key, body, crc), self._put_seconds)
        except _Hangs as error:
            raise DriveAmbiguous("the drive does not answer a put") from error

    async def get(
        self, object_key: str, start: int = 0, size: int | None = None
    ) -> bytes | memoryview:
        return await self._in_time(self._drive.get(object_key, start, size), self._answer_seconds)

    async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
        asked = self._drive.head(object_key, checksum=checksum)
        return await self._in_time(asked, self._answer_seconds)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        listing = aiter(self._drive.list(prefix, after))

        async def following() -> ObjectFacts | None:
            return await anext(listing, None)

        rests = False
        try:
            while (facts := await self._in_time(following(), self._answer_seconds)) is not None:
                rests = True
                yield facts
                rests = False
        finally:
            # One that hangs is still in use, and ends by itself when its call comes back.
            if rests and isinstance(listing, AsyncGenerator):
                await listing.aclose()

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        return await self._in_time(self._drive.delete(object_keys), self._answer_seconds)

    async def tidy(self, prefix: str) -> None:
        await self._in_time(self._drive.tidy(prefix), self._answer_seconds)

    @property
    def has_own_clock(self) -> bool:
        return self._drive.has_own_clock

    async def clock(self) -> int:
        return await self._drive.clock()

    async def aclose(self) -> None:
        await self._drive.aclose()

    async def _in_time(self, call: Coroutine[Any, Any, _T], seconds: float) -> _T:
        """What a call returns, or raises.

        Raises:
            DriveUnavailable: it hangs, or so many do that it was not made.
        """
        if not may_ask(self.hanging_count):
            call.close()
            raise DriveUnavailable("the drive does not answer: calls of before hang")
        task = asyncio.ensure_future(call)
        task.add_done_callback(self._came_back)
        try:
            await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            # Its end is not waited for: a thread that hangs may never come to it.
            task.cancel()
            raise
        if task.done():
            return task.result()
        self._hanging.add(task)
        raise _Hangs("the drive does not answer")

    def _came_back(self, task: asyncio.Task[Any]) -> None:
        self._hanging.discard(task)
        if not task.cancelled():
            # Looked at, or the log would say that nobody did: whoever asked may not wait any more.
            task.exception()


class _Hangs(DriveUnavailable):
    """A call has not come back in time."""


@guard("no more calls than may hang")
def may_ask(hanging: int) -> bool:
    """Whether a drive of which so many calls hang is asked for anything."""
    return hanging < HANGING_MAX


def answering(drive: Drive) -> Drive:
    """The drive, or one that ends each call if it is a directory."""
    return AnsweringDrive(drive) if drive.location.kind == "file" else drive
