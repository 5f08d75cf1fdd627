"""Blocks: pieces of objects of one fixed size, fetched once for all readers of the process.

A GET brings one block, or a run of some: core/runs.py says when. A run is kept whole. While one is
given out to somebody who reads on, the next one is fetched: runs_ahead.py.

On the record's path: after roots.py found the fragment, before fragments.py verifies
what was read.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from bottomless.drives.base import Drive
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless_server.drives.table import DriveTable
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.core.chunk_runs import JOINED_SIZE
from bottomless_server.reader.core.runs import KeptRun, Run, next_is_due, read_on, runs_of
from bottomless_server.reader.patience import patiently
from bottomless_server.reader.runs_ahead import RunName, RunsAhead

RUN_BLOCK_COUNT: Final = 4
"""Blocks of a run; the last of an object has up to half as many more."""
_RUNS_KEPT_MIN: Final = 8
"""A cache that keeps fewer runs gets none: it would lose them before they are read to their end."""


class NextObject(NamedTuple):
    """The object that holds what comes after another one."""

    object_key: str
    size: int
    drive: int = DEFAULT_NUMBER


class ReadsOn(NamedTuple):
    """How far somebody goes who reads on in an object."""

    end: int
    """The position in the object at which what it wants ends."""
    after: NextObject | None
    """Where it goes on from the object's end."""


class Blocks:
    """Ranges of objects, through the cache. Objects are immutable, so nothing goes stale.

    `drive` is everywhere the number of the drive on which an object lies. What is kept is kept by
    the key alone: no key is on two drives, or its bytes are the same there.
    """

    def __init__(
        self,
        drive: Drive,
        cache: SharedCache,
        block_size: int,
        fetch_count_max: int,
        *,
        ahead_size_max: int = 0,
        drives: DriveTable | None = None,
        note: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """`ahead_size_max` is what may be fetched for one reader before it asks; none where that is
        less than a run. Without a table of drives all objects are on `drive`. `note` is told the key,
        the drive and the bytes of all that was fetched."""
        self._drives = drives or DriveTable.of_one(drive)
        self._note = note
        self._cache = cache
        self._block_size = block_size
        run_size = RUN_BLOCK_COUNT * block_size
        self._run_size = run_size if cache.budget >= _RUNS_KEPT_MIN * run_size else 0
        """0: there are none."""
        goes_ahead = bool(self._run_size) and ahead_size_max >= self._run_size
        self._ahead = RunsAhead(cache, self._run_size if goes_ahead else 0)
        self._fetch_count_max = fetch_count_max
        self._room = asyncio.Semaphore(fetch_count_max)
        self._turn = asyncio.Lock()
        self._taken_count = 0
        self.fetch_count = 0
        """GETs sent so far."""
        self.fetched_size = 0
        """Bytes that came of them."""

    async def read(
        self,
        object_key: str,
        start: int,
        size: int,
        object_size: int | None = None,
        *,
        follows: bool = False,
        reads_on: ReadsOn | None = None,
        drive: int = DEFAULT_NUMBER,
    ) -> memoryview:
        """Bytes of an object, fewer where it ends before; a view where one block or run holds them
        all. Runs are read only of an object whose size is given; `follows`: see `read_on`. Nothing
        is fetched ahead where nobody says how far it `reads_on`.

        Raises:
            ObjectMissing, DriveUnavailable, DriveRefused
        """
        assert size > 0
        end = start + size
        if object_size is None or not self._run_size or end > object_size:
            parts = [self._by_blocks(object_key, start, end, drive)]
        else:
            runs = runs_of(start, size, object_size, self._run_size)
            parts = [
                self._of_run(
                    object_key, object_size, run, _Span(start, end, follows, drive), reads_on
                )
                if self._takes_whole(object_key, run, start, end, follows and run is runs[0])
                else self._by_blocks(object_key, max(start, run.start), min(end, run.end), drive)
                for run in runs
            ]
        if len(parts) == 1:
            views = await parts[0]
        else:
            views = [view for found in await asyncio.gather(*parts) for view in found]
        return views[0] if len(views) == 1 else memoryview(b"".join(views))

    async def read_once(
        self,
        object_key: str,
        start: int,
        size: int,
        object_size: int,
        *,
        reads_on: bool,
        alone: bool = False,
        drive: int = DEFAULT_NUMBER,
    ) -> memoryview:
        """Bytes that are kept in another form by whoever asks: only they are fetched, unless they
        are here already, or the object is one that is read whole now, or no larger than a block.

        Where they are probably all that is wanted (`alone`), only of a small object more is fetched.

        Raises:
            ObjectMissing, DriveUnavailable, DriveRefused
        """
        last = runs_of(start, size, object_size, self._run_size or object_size)[0]
        fetched_whole = min(self._block_size, JOINED_SIZE) if alone else self._block_size
        whole = object_size <= fetched_whole or (reads_on and last.start == 0)
        if whole or self._knows(object_key, start, size, last):
            return await self.read(
                object_key, start, size, object_size, follows=reads_on, drive=drive
            )
        return memoryview(await patiently(lambda: self.fetch(object_key, start, size, drive)))

    async def fetch(
        self, object_key: str, start: int, size: int, drive: int = DEFAULT_NUMBER
    ) -> bytes | memoryview:
        """Bytes of an object as the store sends them now, for a caller who verifies them elsewhere.

        Past the cache: nobody would drop what turned out to be bad there, so the same damage
        would meet every repeat.
        """
        async with self._taken(size):
            self.fetch_count += 1
            data = await self._drives.of(drive).get(object_key, start, size)
        self.fetched_size += len(data)
        if self._note is not None:
            self._note(object_key, drive, len(data))
        return data

    def holds(self, object_key: str, start: int, size: int) -> bool:
        """Whether a range that `read` gets block by block is here, or on its way."""
        numbers = self._numbers(start, size)
        return all(self._cache.knows(("block", object_key, number)) for number in numbers)

    def drop(self, object_key: str, start: int, size: int, object_size: int | None = None) -> None:
        """Forget the blocks and runs of a range, which turned out to be bad."""
        for number in self._numbers(start, size):
            self._cache.drop(("block", object_key, number))
        if object_size is not None and self._run_size:
            for run in runs_of(start, size, object_size, self._run_size):
                self._cache.drop(RunName("run", object_key, run.start))

    @asynccontextmanager
    async def _taken(self, size: int) -> AsyncIterator[None]:
        """Room for a GET of so many bytes: as much as for the blocks that they are."""
        places = min(-(-size // self._block_size), self._fetch_count_max)
        taken = 0
        try:
            # In turn: two that each hold a half of the room would wait for each other.
            async with self._turn:
                while taken < places:
                    await self._room.acquire()
                    taken += 1
                    self._taken_count += 1
            yield
        finally:
            self._taken_count -= taken
            for _ in range(taken):
                self._room.release()

    def _takes_whole(self, object_key: str, run: Run, start: int, end: int, follows: bool) -> bool:
        """Whether a run is read as one: it is here or coming, or nothing of it is and that is best."""
        if self._cache.knows(RunName("run", object_key, run.start)):
            return True
        if not read_on(run, start, end, follows=follows):
            return False
        blocks = self._numbers(run.start, run.end - run.start)
        return not any(self._cache.knows(("block", object_key, number)) for number in blocks)

    def _knows(self, object_key: str, start: int, size: int, run: Run) -> bool:
        if self._cache.knows(RunName("run", object_key, run.start)):
            return True
        return self.holds(object_key, start, size)

    async def _of_run(
        self, object_key: str, object_size: int, run: Run, span: "_Span", reads_on: ReadsOn | None
    ) -> list[memoryview]:
        name = RunName("run", object_key, run.start)
        kept = await patiently(
            lambda: self._cache.get(name, lambda: self._fetch_run(object_key, run, span.drive), len)
        )
        start, end = max(span.start, run.start), min(span.end, run.end)
        came = self._ahead.take(name) or span.start < run.start
        came = came or (span.follows and run.start == 0)
        goes_on = kept.read(start, end, came=came)
        if next_is_due(run, end) and reads_on is not None:
            coming = self._next(NextObject(object_key, object_size, span.drive), run, reads_on)
            if coming is not None:
                self._go_ahead(kept, *coming, goes_on=goes_on)
        return [kept.data[start - run.start : end - run.start]]

    async def _fetch_run(self, object_key: str, run: Run, drive: int) -> KeptRun:
        size = run.end - run.start
        return KeptRun(memoryview(await self.fetch(object_key, run.start, size, drive)))

    def _next(self, read: NextObject, run: Run, reads_on: ReadsOn) -> tuple[NextObject, Run] | None:
        """The object and the run with which whoever reads goes on after this run, if it does."""
        if run.end < read.size:
            if reads_on.end <= run.end:
                return None
            return read, runs_of(run.end, 1, read.size, self._run_size)[0]
        if reads_on.after is None:
            return None
        return reads_on.after, runs_of(0, 1, reads_on.after.size, self._run_size)[0]

    def _go_ahead(
        self, kept: KeptRun, following: NextObject, coming: Run, *, goes_on: bool
    ) -> None:
        """Begin to fetch the run after `kept` for somebody who `goes_on`, if nothing of it is here,
        and enough room is left for what is asked for now.

        Once: a run that could not be fetched, or did not stay here, is left to who comes to it.
        """
        key = following.object_key
        name = RunName("run", key, coming.start)
        if kept.went_ahead or self._cache.knows(name):
            self._ahead.want(name, reads_on=goes_on)
            return
        size = coming.end - coming.start
        blocks = self._numbers(coming.start, size)
        promised = self._taken_count + self._ahead.place_count
        if (
            not goes_on
            or promised + len(blocks) + RUN_BLOCK_COUNT > self._fetch_count_max
            or any(self._cache.knows(("block", key, number)) for number in blocks)
        ):
            return
        kept.went_ahead = self._ahead.begin(
            name, size, len(blocks), lambda: self._fetch_run(key, coming, following.drive)
        )

    async def _by_blocks(
        self, object_key: str, start: int, end: int, drive: int
    ) -> list[memoryview]:
        numbers = self._numbers(start, end - start)
        if len(numbers) == 1:
            blocks = [await self._block(object_key, numbers[0], drive)]
        else:
            blocks = await asyncio.gather(
                *(self._block(object_key, number, drive) for number in numbers)
            )
        # Of the blocks at the edges most may lie outside of the range.
        views = [memoryview(block) for block in blocks]
        views[-1] = views[-1][: end - numbers[-1] * self._block_size]
        views[0] = views[0][start - numbers[0] * self._block_size :]
        return views

    def _numbers(self, start: int, size: int) -> range:
        assert size > 0
        return range(start // self._block_size, (start + size - 1) // self._block_size + 1)

    async def _block(self, object_key: str, number: int, drive: int) -> bytes | memoryview:
        async def fetch() -> bytes | memoryview:
            return await self.fetch(object_key, number * self._block_size, self._block_size, drive)

        # Outside of the cache: who joined what another began tries again for as long as it may.
        return await patiently(lambda: self._cache.get(("block", object_key, number), fetch, len))


class _Span(NamedTuple):
    """A range of an object that is asked for."""

    start: int
    end: int
    follows: bool
    drive: int
