"""Blocks: pieces of objects of one fixed size, fetched once for all readers of the process.

On the record's path: after roots.py found the fragment, before fragments.py verifies
what was read.
"""

import asyncio

from bottomless.drives.base import Drive
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.patience import patiently


class Blocks:
    """Ranges of objects, through the cache. Objects are immutable, so nothing goes stale."""

    def __init__(
        self, drive: Drive, cache: SharedCache, block_size: int, fetch_count_max: int
    ) -> None:
        self._drive = drive
        self._cache = cache
        self._block_size = block_size
        self._room = asyncio.Semaphore(fetch_count_max)
        self.fetch_count = 0
        """GETs sent so far."""

    async def read(self, object_key: str, start: int, size: int) -> memoryview:
        """Bytes of an object, fewer where it ends before; a view where one block holds them all.

        Raises:
            ObjectMissing, DriveUnavailable, DriveRefused
        """
        numbers = self._numbers(start, size)
        if len(numbers) == 1:
            blocks = [await self._block(object_key, numbers[0])]
        else:
            blocks = await asyncio.gather(*(self._block(object_key, number) for number in numbers))
        # Cut first: of the blocks at the edges most may lie outside of the range.
        begin = start - numbers[0] * self._block_size
        end = begin + size - (len(blocks) - 1) * self._block_size
        views = [memoryview(block) for block in blocks]
        views[-1] = views[-1][: max(end, 0)]
        views[0] = views[0][begin:]
        return views[0] if len(views) == 1 else memoryview(b"".join(views))

    async def fetch(self, object_key: str, start: int, size: int) -> bytes | memoryview:
        """Bytes of an object as the store sends them now, for a caller who verifies them elsewhere.

        Past the cache: nobody would drop what turned out to be bad there, so the same damage
        would meet every repeat.
        """
        async with self._room:
            self.fetch_count += 1
            return await self._drive.get(object_key, start, size)

    def drop(self, object_key: str, start: int, size: int) -> None:
        """Forget the blocks of a range, which turned out to be bad."""
        for number in self._numbers(start, size):
            self._cache.drop(("block", object_key, number))

    def _numbers(self, start: int, size: int) -> range:
        assert size > 0
        return range(start // self._block_size, (start + size - 1) // self._block_size + 1)

    async def _block(self, object_key: str, number: int) -> bytes | memoryview:
        async def fetch() -> bytes | memoryview:
            return await self.fetch(object_key, number * self._block_size, self._block_size)

        # Outside of the cache: who joined what another began tries again for as long as it may.
        return await patiently(lambda: self._cache.get(("block", object_key, number), fetch, len))
