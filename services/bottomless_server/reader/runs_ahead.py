"""Runs that are fetched before they are asked for: how many there may be, and when they are given up.

A GET is answered at the rate of one connection. A reader that asks for a run when it has taken the
one before waits for each of them while nothing else is on its way; so the next one is fetched
meanwhile. It is the GET that would be sent anyway, a little earlier: the same number of them.

Bytes on their way take the room that is there for GETs, and what is here lies in the cache, under
its budget. What nobody has come to yet takes a quarter of that at most, since it pushes out what
others read.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.core.runs import KeptRun
from bottomless_server.runtime.base.on_loop import loop_time

_SHARE: Final = 4
"""So manieth part of the cache may hold what nobody has come to yet."""
_COUNTED_SECONDS: Final = 30.0
"""A reader that has not come by then has probably gone, and keeps no other from going ahead."""


class RunName(NamedTuple):
    """The name of a run in the cache."""

    kind: str
    object_key: str
    start: int


class RunsAhead:
    """The runs that were begun for somebody who has not come to them yet."""

    def __init__(self, cache: SharedCache, run_size: int) -> None:
        """`run_size` 0: there are none."""
        self._cache = cache
        self._count_max = cache.budget // (_SHARE * run_size) if run_size else 0
        self._begun: dict[RunName, float] = {}

    def begin(self, name: RunName, fetch: Callable[[], Awaitable[KeptRun]]) -> None:
        """Begin to fetch a run, unless it is here or coming, or too many others are."""
        if self._cache.knows(name):
            return
        now = loop_time()
        self._begun = {
            known: at
            for known, at in self._begun.items()
            if now - at < _COUNTED_SECONDS and self._cache.knows(known)
        }
        if len(self._begun) >= self._count_max:
            return
        self._begun[name] = now
        reader = _READER.get()
        if reader is not None:
            reader.note(self, name)
        self._cache.begin(name, fetch, len)

    def take(self, name: RunName) -> bool:
        """Note that somebody came to a run; whether it was begun ahead, and nobody came before."""
        return self._begun.pop(name, None) is not None

    async def give_up(self, name: RunName) -> None:
        """End the fetching of a run to which nobody has come; one that is here stays."""
        self._begun.pop(name, None)
        await self._cache.give_up(name)


class _Reader:
    """One who stays, and what was begun for it last; what came before that it has reached."""

    def __init__(self) -> None:
        self._last: tuple[RunsAhead, RunName] | None = None

    def note(self, ahead: RunsAhead, name: RunName) -> None:
        self._last = (ahead, name)

    async def leave(self) -> None:
        if self._last is not None:
            ahead, name = self._last
            await ahead.give_up(name)


_READER: ContextVar[_Reader | None] = ContextVar("who reads on", default=None)


@asynccontextmanager
async def reader_that_stays() -> AsyncIterator[None]:
    """At the end of the block nothing is fetched any more that was begun for who reads in it, unless
    somebody else waits for it."""
    reader = _Reader()
    token = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(token)
        await reader.leave()
