"""Runs that are fetched before they are asked for: how many there may be, and when they are given up.

A GET is answered at the rate of one connection. A reader that asks for a run when it has taken the
one before waits for each of them while nothing else is on its way; so the next one is fetched
meanwhile. It is the GET that would be sent anyway, a little earlier: the same number of them.

Bytes on their way take the room that is there for GETs, and what is here lies in the cache, under
its budget. What nobody has come to yet takes a quarter of that at most, since it pushes out what
others read.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
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
        self._size_max = cache.budget // _SHARE if run_size else 0
        self._begun: dict[RunName, _Begun] = {}
        self._places: dict[RunName, int] = {}

    @property
    def place_count(self) -> int:
        """Places of the room for GETs that were given to runs whose fetching has not taken them yet:
        it begins in a later turn of the loop."""
        return sum(self._places.values())

    def begin(
        self, name: RunName, size: int, places: int, fetch: Callable[[], Awaitable[KeptRun]]
    ) -> bool:
        """Begin to fetch a run that is neither here nor coming, for who reads now; not if others
        that nobody has come to fill their part of the cache. Returns whether it was begun."""
        now = loop_time()
        self._begun = {
            known: begun for known, begun in self._begun.items() if self._cache.knows(known)
        }
        counted = (begun for begun in self._begun.values() if now - begun.at < _COUNTED_SECONDS)
        if sum(begun.size for begun in counted) + size > self._size_max:
            return False

        async def fetching() -> KeptRun:
            # From here on it takes its places itself.
            self._places.pop(name, None)
            return await fetch()

        self._begun[name] = _Begun(size, now)
        self._places[name] = places
        self._cache.begin(name, fetching, len)
        self.want(name, reads_on=True)
        return True

    def want(self, name: RunName, *, reads_on: bool) -> None:
        """Note that who reads now will come to a run that was begun, perhaps for somebody else.

        One who stays always goes on; of all others it is known where they are seen to `reads_on`.
        """
        begun, reader = self._begun.get(name), _READER.get()
        if begun is None:
            return
        if reader is not None:
            reader.note(_Wanted(self, name, begun))
        elif reads_on:
            begun.outlives = True

    def take(self, name: RunName) -> bool:
        """Note that somebody came to a run; whether it was begun ahead, and nobody came before."""
        return self._begun.pop(name, None) is not None

    async def give_up(self, name: RunName, begun: "_Begun") -> None:
        """End the fetching of a run, if nobody waits for it; one that is here stays."""
        if self._begun.get(name) is not begun:
            return
        del self._begun[name]
        await self._cache.give_up(name)
        if name not in self._begun:
            # Ended before its first turn.
            self._places.pop(name, None)


class _Begun:
    """A run that nobody has come to, and who will."""

    __slots__ = ("at", "outlives", "readers", "size")

    def __init__(self, size: int, at: float) -> None:
        self.size = size
        self.at = at
        self.readers: set[Reader] = set()
        """Readers that stay: with the last of them it is given up."""
        self.outlives = False
        """It is also for one who does not stay: its next request comes for it."""


class _Wanted(NamedTuple):
    """A run that somebody will come to."""

    ahead: RunsAhead
    name: RunName
    begun: _Begun


class Reader:
    """One who stays, and the run that it comes to next; what came before that it has reached."""

    def __init__(self) -> None:
        self.crowd: Crowd | None = None
        """The readers with which it waits for a page."""
        self._next: _Wanted | None = None

    def note(self, wanted: _Wanted) -> None:
        """It will come to a run that was begun."""
        self.let_go()
        self._next = wanted
        wanted.begun.readers.add(self)

    def let_go(self) -> None:
        """Others come to the run, or this one has reached it."""
        if self._next is not None:
            self._next.begun.readers.discard(self)

    async def leave(self) -> None:
        """It comes no more: end what nobody else will come to."""
        if self.crowd is not None:
            crowd, self.crowd = self.crowd, None
            await crowd.lose(self)
        wanted = self._next
        self.let_go()
        if wanted is not None and not (wanted.begun.readers or wanted.begun.outlives):
            await wanted.ahead.give_up(wanted.name, wanted.begun)


class Crowd(Reader):
    """Readers that stay and wait for one page: what is begun while it is read is for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._members: set[Reader] = set()

    def join(self) -> None:
        """The task that runs this waits for the page."""
        reader = _READER.get()
        if reader is None or reader.crowd is self:
            return
        if reader.crowd is not None:
            reader.crowd.remove(reader)
        reader.crowd = self
        self._members.add(reader)

    def take_over(self) -> None:
        """The task that runs this has got the page, and comes to what was begun while it was read."""
        reader = _READER.get()
        if reader is None or reader.crowd is not self:
            return
        if self._next is not None:
            reader.note(self._next)
        reader.crowd = None
        self.remove(reader)

    async def lose(self, reader: Reader) -> None:
        """One of them has gone; with the last one all have."""
        self._members.discard(reader)
        if not self._members:
            await self.leave()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """The page is read within the block. Where that fails nobody gets it."""
        is_awaited = False
        try:
            with _reading_as(self):
                yield
            is_awaited = bool(self._members)
        finally:
            if not is_awaited:
                await self.leave()

    def remove(self, reader: Reader) -> None:
        """One waits here no more, and stays: it has got the page, or waits for another one."""
        self._members.discard(reader)
        if not self._members:
            self.let_go()


_READER: ContextVar[Reader | None] = ContextVar("who reads on", default=None)


@asynccontextmanager
async def reader_that_stays() -> AsyncIterator[None]:
    """At the end of the block nothing is fetched any more that was begun for who reads in it, unless
    somebody else will come to it."""
    reader = Reader()
    try:
        with _reading_as(reader):
            yield
    finally:
        await reader.leave()


@contextmanager
def _reading_as(reader: Reader) -> Iterator[None]:
    token = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(token)
