"""A drive in memory: for tests, simulations and trying things out. Nothing is durable."""

import asyncio
import time
from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from bottomless.drives.base import Body, Location, ObjectExists, ObjectMissing
from bottomless.errors import StoreError
from bottomless.formats.checks import crc32c
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.checked_parts import checked_parts, parts_in_memory
from bottomless_server.drives.object_key import check_object_key


def _now() -> int:
    return time.time_ns() // 1_000_000


class DriveCopy(NamedTuple):
    """All that a drive in memory held at one moment."""

    objects: dict[str, tuple[bytes, int]]
    object_keys: list[str]


class MemoryDrive:
    """Objects in a dict. Passes the same contract tests as the drives that keep them.

    What a disk has beside its protocol is here as methods that act at once, without a turn for
    others: a look at what is stored, a bit that rots, a backup that is put back.
    """

    def __init__(self, clock: Callable[[], int] = _now) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._keys: list[str] = []

    @property
    def location(self) -> Location:
        return Location("memory", "")

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        check_object_key(object_key)
        data = b"".join(await parts_in_memory(body))
        # Others run while a put is on its way, as they do with the real ones.
        await asyncio.sleep(0)
        checked_parts([data], crc)
        if object_key in self._objects:
            raise ObjectExists("an object of this key exists")
        self._objects[object_key] = (data, self._clock())
        insort(self._keys, object_key)

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        assert start >= 0
        assert size is None or size >= 0
        data, _ = await self._find(object_key)
        return data[start:] if size is None else data[start : start + size]

    async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
        data, modified = await self._find(object_key)
        return ObjectFacts(object_key, len(data), modified, crc32c(data) if checksum else None)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        # The last key, not an index, says where to go on: keys come and go meanwhile.
        last = after
        while True:
            await asyncio.sleep(0)
            position = bisect_right(self._keys, last)
            if last < prefix:
                position = bisect_right(self._keys, prefix) - (prefix in self._objects)
            if position == len(self._keys) or not self._keys[position].startswith(prefix):
                return
            last = self._keys[position]
            data, modified = self._objects[last]
            yield ObjectFacts(last, len(data), modified, None)

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        for object_key in object_keys:
            check_object_key(object_key)
        await asyncio.sleep(0)
        for object_key in object_keys:
            if self._objects.pop(object_key, None) is not None:
                self._keys.remove(object_key)
        return {}

    async def tidy(self, prefix: str) -> None:
        """There are no directories."""

    @property
    def has_own_clock(self) -> bool:
        """It has, as a store elsewhere would; it is given to it."""
        return True

    async def clock(self) -> int:
        await asyncio.sleep(0)
        return self._clock()

    @property
    def object_keys(self) -> Sequence[str]:
        """The keys of all objects, in order."""
        return tuple(self._keys)

    def has(self, object_key: str) -> bool:
        """Tell whether there is an object of this key."""
        return object_key in self._objects

    def peek(self, object_key: str) -> bytes | None:
        """Return what an object holds, or None where there is none."""
        stored = self._objects.get(object_key)
        return None if stored is None else stored[0]

    def damage(self, object_key: str, data: bytes) -> None:
        """Put other bytes in the place of an object's, as a failing disk does: it stays as old as
        it was, and no precondition is asked."""
        _, modified = self._objects[object_key]
        self._objects[object_key] = (data, modified)

    def flip(self, object_key: str, position: int) -> None:
        """Flip a bit of the byte at `position`, which counts from the end where it is negative."""
        data = bytearray(self._objects[object_key][0])
        data[position] ^= 1
        self.damage(object_key, bytes(data))

    def copy(self) -> DriveCopy:
        """Copy all that is stored, for `put_back`."""
        return DriveCopy(dict(self._objects), list(self._keys))

    def put_back(self, copy: DriveCopy) -> None:
        """Hold what was copied, and nothing else, as after the restore of a backup."""
        self._objects, self._keys = dict(copy.objects), list(copy.object_keys)

    async def aclose(self) -> None:
        """Keep everything: a test may look at it afterwards."""

    async def _find(self, object_key: str) -> tuple[bytes, int]:
        check_object_key(object_key)
        await asyncio.sleep(0)
        try:
            return self._objects[object_key]
        except KeyError as error:
            raise ObjectMissing("no object has this key") from error
