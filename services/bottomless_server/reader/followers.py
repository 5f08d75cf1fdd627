"""All answers of the process that stay open: how many, how much each may hold, and their end."""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakValueDictionary

from bottomless.errors import Code, Unavailable
from bottomless.model.limits import PAGE_RECORD_COUNT_DEFAULT
from bottomless.model.names import FullName
from bottomless_server.core.shown_values import ValueEncoding
from bottomless_server.reader.core.framing import Framing
from bottomless_server.reader.fences import Fence
from bottomless_server.reader.page_reader import PageReader
from bottomless_server.reader.pages import Page, PageQuery
from bottomless_server.reader.runs_ahead import Crowd
from bottomless_server.reader.shared_tail import FLIGHT_MS, LINGER_SECONDS
from bottomless_server.reader.verified import INLINE_SIZE_MAX
from bottomless_server.runtime.base.single_flight import SingleFlight
from bottomless_server.runtime.http.connection import Places

_PAGES_HELD: Final = 4
"""One on its way, one that waits, each perhaps twice as large as JSON as its values are."""


@dataclass(frozen=True, slots=True)
class FollowBounds:
    """What an operator may set of answers that stay open; see settings.py."""

    count_max: int
    size_max: int
    total_size_max: int
    heartbeat_seconds: float
    rotate_seconds: float
    blocked_seconds: float


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """What one client wants to follow."""

    name: FullName
    query: PageQuery
    """The query of its first page; `limit` is that of the whole answer."""
    limit: int | None
    encoding: ValueEncoding
    framing: Callable[[Page], Framing]
    """Made of the first page, since events carry the id of their stream."""
    fence: Fence | None = None
    """What refuses a member of a consumer group that lost the partition; None of other readers."""


class SharedPage:
    """A page of all who follow a stream at one place; each form of it is made once."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._bodies: dict[tuple[str, ValueEncoding], bytes] = {}
        self._making = asyncio.Lock()

    async def body(
        self, framing: Framing, encoding: ValueEncoding, members: Mapping[str, Any]
    ) -> bytes:
        """Its records and `members` as they are sent; `members` are the same for all."""
        form = (framing.media_type, encoding)
        async with self._making:
            if form not in self._bodies:
                self._bodies[form] = await self._made(framing, encoding, members)
            return self._bodies[form]

    async def _made(
        self, framing: Framing, encoding: ValueEncoding, members: Mapping[str, Any]
    ) -> bytes:
        table = self.page.table
        if self.page.size <= INLINE_SIZE_MAX:
            return framing.batch(table, encoding, members)
        return await asyncio.to_thread(framing.batch, table, encoding, members)


class Followers:
    """All answers of this process that stay open."""

    def __init__(self, reader: PageReader, bounds: FollowBounds, now: Callable[[], float]) -> None:
        """`now` gives seconds since 1970."""
        self.reader = reader
        self.bounds = bounds
        self.now = now
        self.places = Places(bounds.count_max, "answers that stay open")
        self.draining = asyncio.Event()
        self.read_count = 0
        """Pages read so far for those who stay, whoever shares them."""
        self._empty = asyncio.Event()
        self._reads: SingleFlight[Hashable, SharedPage] = SingleFlight(LINGER_SECONDS)
        self._crowds: WeakValueDictionary[Hashable, Crowd] = WeakValueDictionary()
        """Followers that wait for each of these reads; the read itself holds it."""

    @property
    def page_size_max(self) -> int:
        """Bytes of values that one of them may read at once now."""
        share = self.bounds.total_size_max // max(self.places.count, 1)
        return max(min(self.bounds.size_max, share) // _PAGES_HELD, 1)

    def bounded(self, query: PageQuery, left: int | None) -> PageQuery:
        """The query of one page of an answer that may still have `left` records."""
        limit = PAGE_RECORD_COUNT_DEFAULT if left is None else min(left, PAGE_RECORD_COUNT_DEFAULT)
        size_max = min(query.size_max, self.page_size_max)
        return replace(query, limit=limit, size_max=size_max, answer_limit=left)

    async def read(self, name: FullName, query: PageQuery, seconds: float) -> SharedPage | None:
        """A page of what comes at a place, the same for all who are there; None if nothing came.

        Raises:
            NotFound, WrongOffset, OffsetGone, Unavailable, Overloaded, Corrupt
        """

        async def read() -> SharedPage:
            self.read_count += 1
            waiting = replace(query, wait_ms=FLIGHT_MS, patient=False)
            async with crowd.reading():
                return SharedPage(await self.reader.page(name, waiting))

        # What is known of the bounds is no part of what is asked for, nor what comes after the page.
        place = (name, replace(query, known=None, wait_ms=0, answer_limit=None))
        known = self._crowds.get(place) if place in self._reads else None
        crowd = self._crowds[place] = known or Crowd()
        crowd.join()
        try:
            async with asyncio.timeout(seconds):
                shared = await self._reads.join(place, read)
        except TimeoutError:
            return None
        crowd.take_over()
        return shared

    async def aclose(self) -> None:
        """Give up what is being read."""
        await self._reads.aclose()

    def check(self) -> None:
        """Raise Unavailable (`draining`) where none may begin any more."""
        if self.draining.is_set():
            raise Unavailable(
                "the server is about to stop", code=Code.DRAINING, retry_after_seconds=1
            )

    def left(self) -> None:
        """One ended."""
        if self.places.count == 0:
            self._empty.set()

    async def drain(self) -> None:
        """End all of them, with the reason `draining`; returns when they have ended."""
        self.draining.set()
        while self.places.count:
            self._empty.clear()
            await self._empty.wait()
