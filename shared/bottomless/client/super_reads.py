"""Calls that read a super stream: all partitions at once, merged in the client.

The server has no read across partitions: the place in a super stream is a place in each of its
partitions. What is held is one page of each partition, and one that is on its way.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from bottomless.client.address import check_reference
from bottomless.client.follow import Batch, FollowCalls
from bottomless.client.merging import Merge
from bottomless.client.parameters import Parameter, query_of
from bottomless.client.place import Place, check_start, spec_of
from bottomless.client.reads import ReadCalls
from bottomless.client.record import Record
from bottomless.client.retry import jittered
from bottomless.client.streams import StreamCalls
from bottomless.client.supers import Partition, SuperStreamCalls
from bottomless.client.wire import number_in, understood
from bottomless.errors import InvalidRequest, NotFound, StoreError
from bottomless.model.limits import KIB, MIB

A = TypeVar("A")
T = TypeVar("T")

FOLLOWED_COUNT_MAX: Final = 48
"""Partitions that one reader follows: each holds a connection, of which a client has some more."""
_AT_ONCE: Final = 8
"""Questions about partitions that are under way at once."""
_LOOK_SECONDS: Final = 10.0
"""How often a reader that follows looks whether the super stream has grown."""
_MERGED_SIZE: Final = 64 * MIB
"""Bytes of the values of all partitions that are in hand at once, roughly."""
_PAGE_SIZE_MAX: Final = 4 * MIB
_PAGE_SIZE_MIN: Final = 64 * KIB
_ALREADY_KNOWN: Final = ("offset", "follow", "consumer", "default", "expect_stream_id", "limit")

Places: TypeAlias = Place | Mapping[str, Place]
"""A place that is meant in each partition, or one for each, by the name of the partition's stream."""


class MergedBatch(NamedTuple):
    """Records of several partitions, and where to continue in each partition after them."""

    records: list[Record]
    """Each says its `partition`, and its `offset` in it."""
    positions: dict[str, int]
    """The offset after what was given, by the name of the partition's stream."""
    gaps: list[dict[str, Any]]
    """Offsets that were given up for good, with the name of the `stream` that they are of."""


class _Start(NamedTuple):
    partition: Partition
    offset: int
    until: int
    """The end that the partition had when reading began."""


class SuperReadCalls(SuperStreamCalls, StreamCalls, FollowCalls, ReadCalls):
    """The calls that read all partitions of a super stream."""

    async def super_positions(self, name: str) -> dict[str, int]:
        """Ask where each partition of a super stream ends, by the names of their streams."""
        found = await self.partitions(name)
        ends = await gathered(lambda one: self.offsets(one.stream), found)
        return {one.stream: offsets.next_offset for one, offsets in zip(found, ends, strict=True)}

    async def read_super(
        self,
        /,
        name: str,
        start: Places = "first",
        *,
        consumer: str | None = None,
        **parameters: Parameter,
    ) -> AsyncIterator[MergedBatch]:
        """Read a super stream from a place on up to the end that it has now, in batches.

        Records come in the order of their timestamps, and those of one partition in that of their
        offsets; so records of one key keep their order. A super stream has no other order.
        With a `consumer` each partition begins at the offset that is stored under this name, if there
        is one.
        `parameters` are those of `read`, without `limit`.

        Raises:
            InvalidRequest: `start` is an offset, which is in one partition: give a map.
            OffsetGone: retention or trim has passed a place.
        """
        query = _checked(parameters, consumer)
        found = await self.partitions(name)
        starts = await self._starts(found, start, consumer)
        size = _page_size(len(found))
        merging = Merging(Merge())
        for one in starts:
            if one.offset < one.until:
                merging.begin(one, self._pages(one, {"max_bytes": size, **query}))
        async for batch in merging.batches():
            yield batch

    async def follow_super(
        self,
        /,
        name: str,
        start: Places,
        *,
        on_outage: Callable[[StoreError], None],
        consumer: str | None = None,
        **parameters: Parameter,
    ) -> AsyncIterator[MergedBatch]:
        """Give the records of a super stream from a place on, and then those that are appended later.

        Up to the end that it has now records come in the order of their timestamps; later they come
        as they are read, those of one partition always in the order of their offsets. With a
        `consumer` each partition begins at the offset that is stored under this name, if there is
        one. Partitions that the super stream gets later are read from their first record on.

        Raises:
            InvalidRequest: `start` is an offset, or there are more partitions than one reader follows.
            OffsetGone: retention or trim has passed the position in a partition.
            NotFound: the super stream was deleted.
            WrongOffset: `stream-replaced`, another stream has the name of a partition.
        """
        query = _checked(parameters, consumer)
        found = await self.partitions(name)
        _check_count(len(found))
        query = {"max_bytes": _page_size(len(found)), **query}
        merging = Merging(Merge())

        def follow(one: _Start) -> None:
            stream, stream_id = one.partition.stream, one.partition.stream_id
            expected = {**query, "expect_stream_id": stream_id}
            merging.begin(one, self.follow(stream, one.offset, on_outage=on_outage, **expected))

        for one in await self._starts(found, start, consumer):
            follow(one)

        async def look(failures: int = 0) -> None:
            """Wait until there are more partitions, and read those too."""
            while True:
                await asyncio.sleep(_LOOK_SECONDS + jittered(failures, None))
                try:
                    now = await self.partitions(name)
                    more = [one for one in now if one.index not in merging.positions]
                    _check_count(len(now))
                    for one in await self._starts(more, "first", consumer):
                        follow(one)
                except StoreError as error:
                    if not error.retryable:
                        raise
                    on_outage(error)
                    failures += 1
                else:
                    failures = 0
                    if more:
                        return

        async for batch in merging.batches(look):
            yield batch

    async def _pages(self, start: _Start, query: Mapping[str, Parameter]) -> AsyncIterator[Batch]:
        """What a partition has from an offset up to its end, page by page."""
        partition, offset = start.partition, start.offset
        while offset < start.until:
            page = await self.read(
                partition.stream,
                offset,
                until_offset=start.until,
                expect_stream_id=partition.stream_id,
                **query,
            )
            yield Batch(page.records, page.next_offset, list(map(dict, page.gaps)))
            if page.next_offset <= offset:
                return
            offset = page.next_offset

    async def _starts(
        self, partitions: list[Partition], start: Places, consumer: str | None = None
    ) -> list[_Start]:
        """Find out where each partition begins, and where it ends now."""
        places = places_of(start, [one.stream for one in partitions])
        return await gathered(
            lambda one: self._start(one, places[one.stream], consumer), partitions
        )

    async def _start(self, partition: Partition, place: Place, consumer: str | None) -> _Start:
        stored = None if consumer is None else await self._stored(partition, consumer)
        query = {"expect_stream_id": partition.stream_id}
        offset = place if stored is None else stored
        if not isinstance(offset, int):
            found = await self.resolve(partition.stream, offset, **query)
            with understood():
                offset = number_in(found, "offset")
        bounds = await self.bounds(partition.stream, **query)
        with understood():
            return _Start(partition, offset, number_in(bounds, "next_offset"))

    async def _stored(self, partition: Partition, consumer: str) -> int | None:
        with suppress(NotFound):
            found = await self.describe_consumer(partition.stream, consumer)
            with understood():
                return number_in(found, "next_offset")
        return None


class Merging:
    """Reads partitions side by side, and gives what they have together."""

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._sources: dict[int, AsyncIterator[Batch]] = {}
        self._partitions: dict[int, Partition] = {}
        self._pulls: dict[asyncio.Task[Batch | None], int] = {}
        self._gaps: list[dict[str, Any]] = []

    @property
    def positions(self) -> dict[int, int]:
        """The offset after what was given, of each partition."""
        return self._merge.positions

    def begin(self, start: _Start, source: AsyncIterator[Batch]) -> None:
        """Have a partition read from its source."""
        index = start.partition.index
        self._merge.begin(index, start.offset, start.until)
        self._sources[index] = source
        self._partitions[index] = start.partition

    async def batches(
        self, look: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[MergedBatch]:
        """Give batches until all sources have ended; `look` adds sources, and ends when it has.

        A batch without records says that a position has moved past a gap, or past what was not
        asked for.
        """
        looking = None if look is None else asyncio.ensure_future(look())
        given = self._positions()
        try:
            while True:
                self._pull()
                records = self._merge.take()
                if records or self._positions() != given:
                    given = self._positions()
                    gaps, self._gaps = self._gaps, []
                    yield MergedBatch(records, given, gaps)
                    continue
                waits: set[asyncio.Future[Any]] = {*self._pulls}
                if not waits:
                    return
                if looking is not None:
                    waits.add(looking)
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if look is not None and looking is not None and looking.done():
                    looking.result()
                    looking = asyncio.ensure_future(look())
                self._take_in()
        finally:
            tasks: list[asyncio.Future[Any]] = [*self._pulls, *([looking] if looking else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for source in self._sources.values():
                close = getattr(source, "aclose", None)
                if close is not None:
                    await close()

    def _pull(self) -> None:
        under_way = set(self._pulls.values())
        for index in self._merge.empty():
            if index not in under_way:
                self._pulls[asyncio.ensure_future(_next(self._sources[index]))] = index

    def _take_in(self) -> None:
        for task in [task for task in self._pulls if task.done()]:
            index = self._pulls.pop(task)
            batch = task.result()
            if batch is None:
                self._merge.end(index)
                continue
            self._gaps += [{**gap, "stream": self._partitions[index].stream} for gap in batch.gaps]
            self._merge.add(index, batch.records, batch.next_offset)

    def _positions(self) -> dict[str, int]:
        named = self._partitions
        return {named[index].stream: at for index, at in self._merge.positions.items()}


def places_of(start: Places, streams: Iterable[str]) -> dict[str, Place]:
    """Tell where each of these partitions begins; one that a map does not name, at its first record.

    Raises:
        InvalidRequest: it is one offset for all partitions, no place, or names none of them.
    """
    names = list(streams)
    if isinstance(start, Mapping):
        unknown = sorted(set(start) - set(names))
        if unknown and names:
            raise InvalidRequest(f"no partition of it is called {unknown[0]}")
        for place in start.values():
            check_start(place)
        return {name: start.get(name, "first") for name in names}
    check_start(start)
    if isinstance(spec_of(start), int) or str(start).isdigit():
        raise InvalidRequest("an offset is a place in one partition: give a map of all of them")
    return dict.fromkeys(names, start)


async def gathered(work: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
    """Do this with each item, with some at once; where one fails, raise that when all have ended.

    The work of an item is made when its turn comes: given up before, there is nothing to await.
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(item: A) -> T:
        async with room:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


def _checked(parameters: Mapping[str, Parameter], consumer: str | None) -> dict[str, Parameter]:
    if consumer is not None:
        check_reference(consumer)
    query_of(parameters)
    for name in _ALREADY_KNOWN:
        if name in parameters:
            raise InvalidRequest(f"{name} is of one stream, and not of a super stream")
    return {"on_out_of_range": "error", **parameters}


def _check_count(count: int) -> None:
    if count > FOLLOWED_COUNT_MAX:
        raise InvalidRequest(
            f"one reader follows up to {FOLLOWED_COUNT_MAX} partitions: follow them as streams"
        )


def _page_size(count: int) -> int:
    return max(_PAGE_SIZE_MIN, min(_PAGE_SIZE_MAX, _MERGED_SIZE // count))


async def _next(source: AsyncIterator[Batch]) -> Batch | None:
    # A task cannot raise StopAsyncIteration.
    return await anext(source, None)
