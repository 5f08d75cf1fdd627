"""Directories that tests mount and take away, in memory."""

from collections.abc import AsyncIterator, Callable, Sequence

from bottomless.drives.base import Body, Location
from bottomless.errors import StoreError
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.memory import MemoryDrive


class Directory(MemoryDrive):
    """It has the clock of whoever looks, as a real one has, so that it confirms none."""

    has_own_clock = False


class Mount:
    """A directory in which another one is mounted, which may go at any moment and come back."""

    has_own_clock = False

    def __init__(self, clock: Callable[[], int], number: int) -> None:
        self.mounted = Directory(clock)
        self.below = Directory(clock)
        """What lies in the directory itself, which nobody sees while the mount is there."""
        self.is_gone = False
        self.location = Location("memory", f"/mnt/{number}")

    @property
    def _seen(self) -> Directory:
        return self.below if self.is_gone else self.mounted

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        await self._seen.put(object_key, body, crc)

    async def get(
        self, object_key: str, start: int = 0, size: int | None = None
    ) -> bytes | memoryview:
        return await self._seen.get(object_key, start, size)

    async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
        return await self._seen.head(object_key, checksum=checksum)

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        return self._seen.list(prefix, after)

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        return await self._seen.delete(object_keys)

    async def tidy(self, prefix: str) -> None:
        await self._seen.tidy(prefix)

    async def clock(self) -> int:
        return await self._seen.clock()

    async def aclose(self) -> None:
        """It stays for the next life of a program."""
