"""Copy the fragments of a move to the drive that it goes to: step 3 of a move.

The manifest has entered the move, and names this process's session in it, before this begins; it is
told that all copies are there, and names them by one EXEC, after this has returned. Each object is read
whole, compared with what the manifest says of it, and put if absent.

After a crash at any moment some copies are on the drive, each whole, under keys that the move names and
no manifest does; another session makes the others, and finds these. An object that is there under the
key of a copy is looked at (stores/put_retries.py). Sources are only read: whether they go is decided by
who names the copies. So two sessions at one move do no harm: they put the same bytes under the same keys.

A copy that a drive is to blame for is not tried for long: while it is, it has a place that copies to other
drives wait for, and all of its move is tried again each minute. What was put before is not read once more
then. An object that is damaged or missing, on a drive that answers, keeps no other of its move from being
copied; the manifest is told of it.

Uploads go first: a copy takes memory only while no upload waits for some, and all copies together never
more than their share, since a drive that takes nothing keeps them waiting for as long as a put may take.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from cachetools import LRUCache

from bottomless.drives.base import (
    DriveAmbiguous,
    DriveFull,
    DriveRefused,
    DriveUnavailable,
    ObjectMissing,
)
from bottomless.errors import Corrupt, StoreError
from bottomless.formats.keys import FragmentPlace
from bottomless.model.limits import MIB
from bottomless_server.drives.table import DriveTable
from bottomless_server.runtime.base.task_groups import task_group
from bottomless_server.stores.put_retries import PUT_WAITS, PutWaits, put_object
from bottomless_server.uploader.budget import ByteBudget
from bottomless_server.uploader.core.moving import Copying, Pace, require_as_named

_ROOM_POLL_SECONDS: Final = 0.05
"""How late a copy sees that there is memory for it."""
_WAIT_SECONDS_MIN: Final = 0.001
"""A block that is due sooner goes at once."""
_ATTEMPT_COUNT: Final = 4
"""Attempts to put a copy, within some seconds."""
_SECONDS_MIN: Final = 60.0
_BYTES_PER_SECOND_MIN: Final = MIB
"""A copy that takes longer than so many seconds, and as many as it has of these bytes, has failed."""
_MADE_COUNT_MAX: Final = 4_096
"""Copies that a process remembers to have put; one that it has forgotten is read again."""


_INLINE_SIZE_MAX: Final = 1 << 20
"""The checksum of a larger object is computed in a thread: appends of the same process wait for no
copy. Of this size it takes 0.1 ms."""


async def _require_as_named(copying: Copying, data: bytes | memoryview) -> None:
    if len(data) <= _INLINE_SIZE_MAX:
        require_as_named(copying, data)
    else:
        await asyncio.to_thread(require_as_named, copying, data)


class HeldObject:
    """The bytes of an object as a source: a drive takes them block by block, and others have time in between.

    As parts in memory they would be summed, joined and handed to a socket as a whole, and appends of
    the same process would wait for that (docs/decisions/0183)."""

    def __init__(
        self,
        data: bytes | memoryview,
        pace: Pace,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """`pace` is that of this object alone: its blocks come no faster."""
        self._data = memoryview(data)
        self._pace = pace
        self._clock = clock
        self._sleep = sleep

    @property
    def size(self) -> int:
        return self._data.nbytes

    async def read_into(self, position: int, buffer: memoryview) -> None:
        """Copy bytes from `position` on, when they are due."""
        wait = self._pace.wait_of(len(buffer), self._clock())
        if wait >= _WAIT_SECONDS_MIN:
            await self._sleep(wait)
        buffer[:] = self._data[position : position + len(buffer)]


@dataclass
class Copied:
    """What became of the copies of a move."""

    made: list[Copying] = field(default_factory=list)
    """Each is durable on its drive."""
    damaged: list[Copying] = field(default_factory=list)
    """What has a source that is not what the manifest says, or is not there."""
    errors: list[StoreError] = field(default_factory=list)
    """The reasons why copies were not made: of `damaged`, and of those where another object has the key."""

    @property
    def size(self) -> int:
        """The bytes of what was made."""
        return sum(copying.size for copying in self.made)


@dataclass(frozen=True)
class Mover:
    """Copies objects, so many at a time and so fast, within the memory that it shares with uploads."""

    drives: DriveTable
    budget: ByteBudget
    share: ByteBudget
    """What copies may take of the budget; an object that is larger goes alone."""
    pace: Pace
    objects_in_flight: asyncio.Semaphore
    """Bounds the copies of all moves of this process that are under way."""
    clock: Callable[[], float]
    """Seconds of a clock that nobody sets."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    put_seconds: float = 900.0
    """How long one copy is tried to be put, at most."""
    put_waits: PutWaits = PUT_WAITS
    trouble: dict[int, StoreError] = field(default_factory=dict)
    """What failed last of drives, by their numbers, since somebody cleared it."""
    made: LRUCache[FragmentPlace, int] = field(default_factory=lambda: LRUCache(_MADE_COUNT_MAX))
    """The sizes of copies that this process has put, whole."""

    async def copy_all(self, copies: Sequence[Copying]) -> Copied:
        """Copy these objects, all but those that are damaged or missing.

        Raises:
            DriveUnavailable, DriveRefused, DriveFull, DriveAmbiguous: the same again is right, later.
        """
        copied = Copied()
        try:
            async with task_group() as group:
                for copying in copies:
                    group.create_task(self._copy(copying, copied))
        except ExceptionGroup as errors:
            # The others were cancelled for the first that failed.
            raise errors.exceptions[0] from errors
        return copied

    async def _copy(self, copying: Copying, copied: Copied) -> None:
        async with self.objects_in_flight:
            if not await self._is_made(copying):
                if wait := self.pace.wait_of(copying.size, self.clock()):
                    await self.sleep(wait)
                async with self._room(copying.size):
                    try:
                        data = await self._read(copying)
                        await _require_as_named(copying, data)
                    except (ObjectMissing, Corrupt) as error:
                        copied.damaged.append(copying)
                        copied.errors.append(error)
                        return
                    try:
                        await self._put(copying, data)
                    except Corrupt as error:
                        # Another move has another key.
                        copied.errors.append(error)
                        return
            copied.made.append(copying)

    async def _is_made(self, copying: Copying) -> bool:
        """Whether an earlier try of this process has put the copy, and it is there."""
        if self.made.get(copying.target) != copying.size:
            return False
        drive, object_key = copying.target
        with self._noted(drive):
            try:
                return (await self.drives.of(drive).head(object_key)).size == copying.size
            except ObjectMissing:
                return False

    async def _read(self, copying: Copying) -> bytes | memoryview:
        drive, object_key = copying.source
        with self._noted(drive):
            return await self.drives.of(drive).get(object_key)

    async def _put(self, copying: Copying, data: bytes | memoryview) -> None:
        drive, object_key = copying.target
        with self._noted(drive):
            await put_object(
                self.drives.of(drive),
                object_key,
                HeldObject(data, self.pace.of_one_object(), self.clock, self.sleep),
                copying.crc,
                deadline_seconds=min(
                    self.put_seconds, _SECONDS_MIN + copying.size / _BYTES_PER_SECOND_MIN
                ),
                waits=self.put_waits,
                attempt_count_max=_ATTEMPT_COUNT,
            )
        self.made[copying.target] = copying.size

    @contextmanager
    def _noted(self, drive: int) -> Iterator[None]:
        """Note that a drive failed; one object that is missing or damaged says nothing of the drive."""
        try:
            yield
        except (DriveUnavailable, DriveRefused, DriveFull, DriveAmbiguous) as error:
            self.trouble[drive] = error
            raise

    @asynccontextmanager
    async def _room(self, size: int) -> AsyncIterator[None]:
        async with self.share.holding(size):
            # Not in the queue of those who wait: an upload that comes later would wait for it.
            ticket = self.budget.take_last(size)
            while ticket is None:
                await asyncio.sleep(_ROOM_POLL_SECONDS)
                ticket = self.budget.take_last(size)
            try:
                yield
            finally:
                self.budget.free(ticket)
