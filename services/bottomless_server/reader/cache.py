"""One cache for all that the process keeps of objects, under one budget of bytes.

Blocks, decoded indexes and manifest nodes share it, so that memory is bounded by one
number whatever the readers do. What is being made is made once: later askers wait for
the first (single flight).
"""

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from cachetools import LRUCache

from bottomless.errors import Corrupt, NotFound
from bottomless_server.runtime.base.single_flight import SingleFlight

T = TypeVar("T")

_OVERHEAD = 256
"""Bytes of the cache's own structures for each thing in it."""


class SharedCache:
    """Least recently used goes first; a value larger than the whole budget is not kept."""

    def __init__(self, budget: int) -> None:
        self._kept: LRUCache[Hashable, tuple[Any, int]] = LRUCache(
            max(budget, 1), getsizeof=lambda item: item[1]
        )
        self._being_made: SingleFlight[Hashable, Any] = SingleFlight()
        self.hit_count = self.miss_count = 0
        """A caller that waits for what another one makes is neither a hit nor a miss."""

    @property
    def size(self) -> int:
        return int(self._kept.currsize)

    @property
    def budget(self) -> int:
        return int(self._kept.maxsize)

    def knows(self, name: Hashable) -> bool:
        """Whether something is kept under a name, or is being made. Not a use of it."""
        return name in self._kept or name in self._being_made

    async def get(
        self, name: Hashable, make: Callable[[], Awaitable[T]], size_of: Callable[[T], int]
    ) -> T:
        """What is kept under `name`, else what `make` gives; whatever `make` raises passes through.

        What was missing or damaged for a making that had begun before may have come or been
        mended since: who joined that one looks once more.
        """
        again = False
        while True:
            if (kept := self._kept.get(name)) is not None:
                self.hit_count += 1
                value: T = kept[0]
                return value
            joined = name in self._being_made
            if not joined:
                self.miss_count += 1
            try:
                made: T = await self._being_made.join(name, lambda: self._make(name, make, size_of))
            except (NotFound, Corrupt):
                if joined and not again:
                    again = True
                    continue
                raise
            return made

    def begin(
        self, name: Hashable, make: Callable[[], Awaitable[T]], size_of: Callable[[T], int]
    ) -> None:
        """Begin to make what is neither kept nor being made, and wait for nothing. Where it fails,
        whoever asks for it begins anew."""
        if not self.knows(name):
            self.miss_count += 1
            self._being_made.begin(name, lambda: self._make(name, make, size_of))

    async def give_up(self, *names: Hashable) -> None:
        """End what was begun under these names and nobody waits for; returns when it has ended."""
        await self._being_made.give_up(*names)

    def drop(self, name: Hashable) -> None:
        """Forget a value, and let nobody join a making of it that has begun."""
        self._kept.pop(name, None)
        self._being_made.part(name)

    async def aclose(self) -> None:
        await self._being_made.aclose()
        self._kept.clear()

    async def _make(
        self, name: Hashable, make: Callable[[], Awaitable[T]], size_of: Callable[[T], int]
    ) -> T:
        value = await make()
        size = size_of(value) + _OVERHEAD
        # Made for somebody who was told since that it is bad: given, and not kept.
        if not self._being_made.is_parted(name) and size <= self._kept.maxsize:
            self._kept[name] = (value, size)
        return value
