"""Put pages together: where to start, which tier has it, how the tiers meet.

The hand-over between tiers is a protocol, so that cold caches and moving bounds never lose
or repeat a record: the owner answers with data, or with `moved` and the manifest version
that its frees follow; then a root at least that new must hold the offset. Where the two do
not meet after a few rounds the answer is 503, never a jump.

On the record's path: after fragments.py and tail.py brought chunks, before routes.py
answers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from bottomless.errors import Code, StoreError, Unavailable, WrongOffset
from bottomless.formats.chunk import split_chunks
from bottomless.model.chunk import ChunkKind
from bottomless.model.names import StreamId, StreamName
from bottomless.model.offset_spec import First, OffsetSpec
from bottomless_server.reader.core.locator import (
    Bounds,
    Start,
    above_floor,
    below_end,
    since_clamped,
)
from bottomless_server.reader.core.page import Gap, PageBuilder, as_table
from bottomless_server.reader.fragments import Fragments, off_loop
from bottomless_server.reader.resolver import Resolver
from bottomless_server.reader.roots import ManifestMoved, Roots, RootState
from bottomless_server.reader.stored import Stored
from bottomless_server.reader.streams import StreamFacts, Streams
from bottomless_server.reader.tail import Tail, TailAnswer

T = TypeVar("T")

_ROUND_COUNT_MAX = 4
"""Times that a page goes from tier to tier: once there and back, and again if the bounds moved."""
_STALE = frozenset({Code.STREAM_NOT_FOUND, Code.NOT_OWNER, Code.PEER_UNAVAILABLE})
"""What is asked again where the name's facts were remembered and not just read."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What a reader asks for."""

    spec: OffsetSpec
    limit: int
    size_max: int
    until: int | None = None
    wait_ms: int = 0
    strict: bool = False
    """Out of range is an error, and not moved into range."""
    stream_id: StreamId | None = None
    """The only stream that is meant."""


@dataclass(frozen=True, slots=True)
class Page:
    """What it gets. All bounds were true at one moment during the request."""

    stream: StreamFacts
    start: Start
    table: pa.Table
    size: int
    gaps: list[Gap]
    next_offset: int
    """Where this reader continues."""
    first_offset: int
    committed_next: int


class Reader:
    """Reads of records, for all streams."""

    def __init__(
        self,
        streams: Streams,
        roots: Roots,
        tail: Tail,
        fragments: Fragments,
        *,
        read_ahead_size: int,
        page_count_max: int,
    ) -> None:
        self._streams = streams
        self._roots = roots
        self._tail = tail
        self._resolver = Resolver(roots, tail, fragments)
        self._stored = Stored(roots, fragments, read_ahead_size)
        self._room = asyncio.Semaphore(page_count_max)

    async def page(self, name: StreamName, query: PageQuery) -> Page:
        """One page of records.

        Raises:
            NotFound, WrongOffset, OffsetGone, Unavailable, Corrupt
        """
        ends = asyncio.get_running_loop().time() + query.wait_ms / 1000

        async def read(stream: StreamFacts) -> Page:
            # A second attempt waits for what is left of the time, not all of it again.
            left = max(ends - asyncio.get_running_loop().time(), 0)
            rest = replace(query, wait_ms=min(round(left * 1000), query.wait_ms))
            return await self._page(stream, rest)

        return await self.with_stream(name, query.stream_id, read)

    async def with_stream(
        self,
        name: StreamName,
        stream_id: StreamId | None,
        act: Callable[[StreamFacts], Awaitable[T]],
    ) -> T:
        """Do something with the stream of this name, again if what was remembered of it was old.

        Raises:
            NotFound, WrongOffset (`stream-replaced`), and whatever `act` raises.
        """
        found = await self._streams.find(name)
        _check_stream(found.stream, stream_id)
        try:
            return await act(found.stream)
        except StoreError as error:
            if error.code in _STALE:
                self._streams.forget(name)
            if not isinstance(error, ManifestMoved) and not (
                found.remembered and error.code in _STALE
            ):
                raise
        found = await self._streams.find(name)
        _check_stream(found.stream, stream_id)
        return await act(found.stream)

    async def _page(self, stream: StreamFacts, query: PageQuery) -> Page:
        state = await self._roots.current(stream.stream_id)
        wanted = await self._resolver.resolve(stream, query.spec, state.first_offset)
        next_offset = state.published_next
        if query.strict and wanted < state.first_offset:
            next_offset = (await self._tail.bounds(stream)).committed_next
        start = above_floor(query.spec, wanted, state.first_offset, next_offset, query.strict)
        builder = _builder(start, query)
        answer = await self._ask(stream, builder, query.wait_ms)
        end = below_end(
            query.spec, start, state.first_offset, _committed(answer.bounds, state), query.strict
        )
        if end != start:
            start, builder = end, _builder(end, query)
            if query.wait_ms:
                answer = await self._ask(stream, builder, query.wait_ms)
        async with self._room:
            return await self._fill(stream, query, state, start, builder, answer)

    async def _fill(
        self,
        stream: StreamFacts,
        query: PageQuery,
        state: RootState,
        start: Start,
        builder: PageBuilder,
        answer: TailAnswer,
    ) -> Page:
        """Go from tier to tier until the page is full or the stream ends."""
        bounds = answer.bounds
        for _ in range(_ROUND_COUNT_MAX):
            if answer.moved:
                state = await self._roots.current(stream.stream_id, answer.bounds.version)
                if builder.position == builder.start:
                    start = _placed_again(query, start, state, bounds)
                    builder = _builder(start, query)
                tree = await self._roots.tree(stream.stream_id, state)
                await self._stored.add(builder, tree)
            else:
                await self._add_tail(builder, answer.data)
            if builder.full or builder.position >= _committed(bounds, state):
                break
            if builder.count and not answer.moved:
                break
            answer = await self._tail.chunks(stream, builder.position, builder.size_left)
            bounds = answer.bounds
            if answer.moved and builder.count:
                break
        else:
            raise Unavailable("the tiers of the stream do not meet now", retry_after_seconds=1)
        committed_next = max(_committed(bounds, state), builder.position)
        table = as_table(builder.rows)
        if builder.rows and builder.rows[0].first_offset == start.offset:
            start = since_clamped(query.spec, start, state.first_offset, builder.rows[0].timestamp)
        return Page(
            stream=stream,
            start=start,
            table=table,
            size=builder.size,
            gaps=builder.gaps,
            next_offset=builder.position,
            first_offset=state.first_offset,
            committed_next=committed_next,
        )

    async def _ask(self, stream: StreamFacts, builder: PageBuilder, wait_ms: int) -> TailAnswer:
        # A page that wants nothing still needs bounds, and waits for nothing.
        wait_ms = 0 if builder.full else wait_ms
        return await self._tail.chunks(stream, builder.position, builder.size_left, wait_ms)

    async def _add_tail(self, builder: PageBuilder, data: bytes) -> None:
        def add(view: memoryview) -> None:
            for header, chunk in split_chunks(view):
                if builder.full:
                    return
                if header.kind is not ChunkKind.TRACKING:
                    builder.add(header, chunk)

        await off_loop(len(data), add, memoryview(data))


def _builder(start: Start, query: PageQuery) -> PageBuilder:
    return PageBuilder(start.offset, query.limit, query.size_max, query.until)


def _committed(bounds: Bounds, state: RootState) -> int:
    # The root may be newer than the owner's answer; what it holds is committed.
    return max(bounds.committed_next, state.published_next)


def _placed_again(query: PageQuery, start: Start, state: RootState, bounds: Bounds) -> Start:
    """The start under a newer root, whose floor may have passed it."""
    if isinstance(query.spec, First):
        return Start(state.first_offset)
    moved = above_floor(
        query.spec, start.offset, state.first_offset, _committed(bounds, state), query.strict
    )
    return start if moved.offset == start.offset else moved


def _check_stream(stream: StreamFacts, stream_id: StreamId | None) -> None:
    if stream_id is not None and stream.stream_id != stream_id:
        raise WrongOffset(
            "the name is that of another stream now",
            code=Code.STREAM_REPLACED,
            facts={"stream_id": stream.stream_id},
        )
