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
        self._kept: LRUCache[Hashable, _Kept] = LRUCache(
            max(budget, 1), getsizeof=lambda kept: kept.size
        )
        self._being_made: SingleFlight[Hashable, Any] = SingleFlight()
        self._unasked: set[Hashable] = set()
        """What is being made ahead of time, while nobody has asked for it."""
        self.hit_count = self.miss_count = 0
        """A caller that waits for what another one makes is neither a hit nor a miss. Who asks first
        for what was made ahead of time is a miss, as if it had been made then."""

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
                self.hit_count += kept.asked
                self.miss_count += not kept.asked
                kept.asked = True
                value: T = kept.value
                return value
            joined = name in self._being_made
            if not joined or name in self._unasked:
                self.miss_count += 1
                self._unasked.discard(name)
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
            self._unasked.add(name)
            self._being_made.begin(name, lambda: self._make(name, make, size_of))

    async def give_up(self, *names: Hashable) -> None:
        """End what was begun under these names and nobody waits for; returns when it has ended."""
        await self._being_made.give_up(*names)
        # What ended before its first turn.
        self._unasked.difference_update(name for name in names if name not in self._being_made)

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
        try:
            value = await make()
        finally:
            asked = name not in self._unasked
            self._unasked.discard(name)
        size = size_of(value) + _OVERHEAD
        # Made for somebody who was told since that it is bad: given, and not kept.
        if not self._being_made.is_parted(name) and size <= self._kept.maxsize:
            self._kept[name] = _Kept(value, size, asked=asked)
        return value


class _Kept:
    """A value in the cache."""

    __slots__ = ("asked", "size", "value")

    def __init__(self, value: Any, size: int, *, asked: bool) -> None:
        self.value = value
        self.size = size
        self.asked = asked
        """Somebody asked for it; what is made ahead of time waits for the first who does."""
