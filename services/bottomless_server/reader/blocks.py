"""Blocks: pieces of objects of one fixed size, fetched once for all readers of the process.

A GET brings one block, or a run of some: core/runs.py says when. A run is kept whole.

On the record's path: after roots.py found the fragment, before fragments.py verifies
what was read.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from bottomless.drives.base import Drive
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.core.runs import Run, read_on, runs_of
from bottomless_server.reader.patience import patiently

RUN_BLOCK_COUNT: Final = 4
"""Blocks of a run; the last of an object has up to half as many more."""
_RUNS_KEPT_MIN: Final = 8
"""A cache that keeps fewer runs gets none: it would lose them before they are read to their end."""


class Blocks:
    """Ranges of objects, through the cache. Objects are immutable, so nothing goes stale."""

    def __init__(
        self, drive: Drive, cache: SharedCache, block_size: int, fetch_count_max: int
    ) -> None:
        self._drive = drive
        self._cache = cache
        self._block_size = block_size
        run_size = RUN_BLOCK_COUNT * block_size
        self._run_size = run_size if cache.budget >= _RUNS_KEPT_MIN * run_size else 0
        """0: there are none."""
        self._fetch_count_max = fetch_count_max
        self._room = asyncio.Semaphore(fetch_count_max)
        self._turn = asyncio.Lock()
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
    ) -> memoryview:
        """Bytes of an object, fewer where it ends before; a view where one block or run holds them
        all. Runs are read only of an object whose size is given; `follows`: see `read_on`.

        Raises:
            ObjectMissing, DriveUnavailable, DriveRefused
        """
        assert size > 0
        end = start + size
        if object_size is None or not self._run_size or end > object_size:
            parts = [self._by_blocks(object_key, start, end)]
        else:
            runs = runs_of(start, size, object_size, self._run_size)
            parts = [
                self._of_run(object_key, run, max(start, run.start), min(end, run.end))
                if self._takes_whole(object_key, run, start, end, follows and run is runs[0])
                else self._by_blocks(object_key, max(start, run.start), min(end, run.end))
                for run in runs
            ]
        if len(parts) == 1:
            views = await parts[0]
        else:
            views = [view for found in await asyncio.gather(*parts) for view in found]
        return views[0] if len(views) == 1 else memoryview(b"".join(views))

    async def read_once(
        self, object_key: str, start: int, size: int, object_size: int, *, reads_on: bool
    ) -> memoryview:
        """Bytes that are kept in another form by whoever asks: only they are fetched, unless they
        are here already, or the object is one that is read whole now, or no larger than a block.

        Raises:
            ObjectMissing, DriveUnavailable, DriveRefused
        """
        last = runs_of(start, size, object_size, self._run_size or object_size)[0]
        whole = object_size <= self._block_size or (reads_on and last.start == 0)
        if whole or self._knows(object_key, start, size, last):
            return await self.read(object_key, start, size, object_size, follows=reads_on)
        return memoryview(await patiently(lambda: self.fetch(object_key, start, size)))

    async def fetch(self, object_key: str, start: int, size: int) -> bytes | memoryview:
        """Bytes of an object as the store sends them now, for a caller who verifies them elsewhere.

        Past the cache: nobody would drop what turned out to be bad there, so the same damage
        would meet every repeat.
        """
        async with self._taken(size):
            self.fetch_count += 1
            data = await self._drive.get(object_key, start, size)
        self.fetched_size += len(data)
        return data

    def drop(self, object_key: str, start: int, size: int, object_size: int | None = None) -> None:
        """Forget the blocks and runs of a range, which turned out to be bad."""
        for number in self._numbers(start, size):
            self._cache.drop(("block", object_key, number))
        if object_size is not None and self._run_size:
            for run in runs_of(start, size, object_size, self._run_size):
                self._cache.drop(("run", object_key, run.start))

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
            yield
        finally:
            for _ in range(taken):
                self._room.release()

    def _takes_whole(self, object_key: str, run: Run, start: int, end: int, follows: bool) -> bool:
        """Whether a run is read as one: it is here or coming, or nothing of it is and that is best."""
        if self._cache.knows(("run", object_key, run.start)):
            return True
        if not read_on(run, start, end, follows=follows):
            return False
        blocks = self._numbers(run.start, run.end - run.start)
        return not any(self._cache.knows(("block", object_key, number)) for number in blocks)

    def _knows(self, object_key: str, start: int, size: int, run: Run) -> bool:
        if self._cache.knows(("run", object_key, run.start)):
            return True
        blocks = self._numbers(start, size)
        return all(self._cache.knows(("block", object_key, number)) for number in blocks)

    async def _of_run(self, object_key: str, run: Run, start: int, end: int) -> list[memoryview]:
        async def fetch() -> bytes | memoryview:
            return await self.fetch(object_key, run.start, run.end - run.start)

        name = ("run", object_key, run.start)
        data = await patiently(lambda: self._cache.get(name, fetch, len))
        return [memoryview(data)[start - run.start : end - run.start]]

    async def _by_blocks(self, object_key: str, start: int, end: int) -> list[memoryview]:
        numbers = self._numbers(start, end - start)
        if len(numbers) == 1:
            blocks = [await self._block(object_key, numbers[0])]
        else:
            blocks = await asyncio.gather(*(self._block(object_key, number) for number in numbers))
        # Of the blocks at the edges most may lie outside of the range.
        views = [memoryview(block) for block in blocks]
        views[-1] = views[-1][: end - numbers[-1] * self._block_size]
        views[0] = views[0][start - numbers[0] * self._block_size :]
        return views

    def _numbers(self, start: int, size: int) -> range:
        assert size > 0
        return range(start // self._block_size, (start + size - 1) // self._block_size + 1)

    async def _block(self, object_key: str, number: int) -> bytes | memoryview:
        async def fetch() -> bytes | memoryview:
            return await self.fetch(object_key, number * self._block_size, self._block_size)

        # Outside of the cache: who joined what another began tries again for as long as it may.
        return await patiently(lambda: self._cache.get(("block", object_key, number), fetch, len))
