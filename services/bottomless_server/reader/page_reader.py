"""Put pages together: where to start, which tier has it, how the tiers meet.

The hand-over between tiers is a protocol, so that cold caches and moving bounds never lose
or repeat a record: the owner answers with data, or with `moved` and the manifest version
that its frees follow; then a root at least that new must hold the offset. Where the two do
not meet after a few rounds the answer is 503, never a jump.

On the record's path: after fragments.py and tail.py brought chunks, before record_routes.py
and follow_answer.py answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TypeVar

from bottomless.errors import Code, Corrupt, StoreError, Unavailable, WrongOffset
from bottomless.formats.chunk import split_chunks
from bottomless.model.chunk import ChunkKind
from bottomless.model.names import FullName, StreamId
from bottomless.model.offset_spec import First, PlainSpec
from bottomless_server.protocol.registry import RootState
from bottomless_server.protocol.tail import Bounds
from bottomless_server.reader.core.arrow_schema import as_table
from bottomless_server.reader.core.filtered_page import (
    FilteredChunkPageBuilder,
    FilteredPageBuilder,
)
from bottomless_server.reader.core.locator import (
    Start,
    above_floor,
    below_end,
    hole_of,
    outside_gaps,
    outside_hole,
    since_clamped,
)
from bottomless_server.reader.core.page import ChunkPageBuilder, PageBuilder
from bottomless_server.reader.core.scan import Scan, ScanBounds, ScanTotals
from bottomless_server.reader.manifest_calls import ManifestAway
from bottomless_server.reader.pages import Page, PageQuery
from bottomless_server.reader.patience import Patience
from bottomless_server.reader.resolver import Resolver
from bottomless_server.reader.roots import ManifestMoved, Roots
from bottomless_server.reader.shared_tail import SharedTail
from bottomless_server.reader.stored_tier import StoredTier
from bottomless_server.reader.streams import StreamFacts, Streams, WaitedOn
from bottomless_server.reader.tail import NoOwnerAnswers, Tail, TailAnswer
from bottomless_server.reader.verified import off_loop
from bottomless_server.runtime.base.on_loop import loop_time

T = TypeVar("T")

_ROUND_COUNT_MAX = 4
"""Times that a page goes from tier to tier: once there and back, and again if the bounds moved."""
_STALE = frozenset(
    {Code.STREAM_NOT_FOUND, Code.NOT_OWNER, Code.PEER_UNAVAILABLE, Code.DATA_MISSING}
)
"""What is asked again where the name's facts were remembered and not just read. Data is missing
also of a stream that was deleted, and is swept, while its name is another stream's already."""


@dataclass(slots=True)
class _Reading:
    """A page in the making."""

    stream: StreamFacts
    query: PageQuery
    spec: PlainSpec
    ends: float
    """When there is no time left to wait."""
    state: RootState
    start: Start
    builder: PageBuilder
    end_known: bool = True
    """Whether somebody has said where the stream ends."""
    passes_until: float | None = None
    """When a page that has passed over records and found none is to say so."""

    def place(self, start: Start) -> None:
        """Begin at another offset; nothing was added yet."""
        if start.offset != self.builder.start:
            self.builder = _builder(start, self.query, self.builder.scan)
        self.start = start

    @property
    def seconds_left(self) -> float:
        # A page that wants nothing still needs bounds, and waits for nothing.
        return 0 if self.builder.full else max(self._waits_until - loop_time(), 0)

    @property
    def _waits_until(self) -> float:
        """The end of the time, or sooner where it is to be said how far this page came."""
        if self.passes_until is None or not self.builder.advanced:
            return self.ends
        return min(self.ends, self.passes_until)

    @property
    def enough(self) -> bool:
        query, builder = self.query, self.builder
        reached = builder.count >= query.count_min and builder.size >= query.size_min
        return builder.full or builder.spent or (builder.count > 0 and reached)


class PageReader:
    """Reads of records, for all streams."""

    def __init__(
        self,
        streams: Streams,
        roots: Roots,
        tail: Tail,
        shared: SharedTail,
        resolver: Resolver,
        stored: StoredTier,
        patience: Patience,
        *,
        page_count_max: int,
        scan_bounds: ScanBounds,
    ) -> None:
        self._streams = streams
        self._roots = roots
        self._tail = tail
        self._shared = shared
        self._resolver = resolver
        self._stored = stored
        self._patience = patience
        self._room = asyncio.Semaphore(page_count_max)
        self._scan_bounds = scan_bounds
        self.scanned = ScanTotals()

    async def page(self, name: FullName, query: PageQuery) -> Page:
        """One page of records.

        Raises:
            NotFound, WrongOffset, OffsetGone, Unavailable, Overloaded, Corrupt
        """
        # A second attempt waits for what is left of the time, not all of it again.
        ends = loop_time() + query.wait_ms / 1000
        waited_on = WaitedOn()

        async def page_of(stream: StreamFacts) -> Page:
            waited_on.check(stream)
            return await self._page(stream, query, ends, waited_on)

        with self._patience.lasting() if query.patient else nullcontext():
            return await self._with_stream(name, query.stream_id, page_of)

    async def with_stream(
        self,
        name: FullName,
        stream_id: StreamId | None,
        act: Callable[[StreamFacts], Awaitable[T]],
    ) -> T:
        """Do something with the stream of this name, again if what was remembered of it was old, and
        while the object store fails for a moment.

        Raises:
            NotFound, WrongOffset (`stream-replaced`), and whatever `act` raises.
        """
        with self._patience.lasting():
            return await self._with_stream(name, stream_id, act)

    async def _with_stream(
        self,
        name: FullName,
        stream_id: StreamId | None,
        act: Callable[[StreamFacts], Awaitable[T]],
    ) -> T:
        found = await self._streams.find(name)
        _check_stream(found.stream, stream_id)
        try:
            stream = found.stream
            if found.remembered:
                # Its owner may be another one since: the root is asked for in any case, and tells.
                state = await self._roots.current(stream.stream_id)
                stream = await self._streams.under(stream, state.epoch)
            return await act(stream)
        except ManifestAway:
            raise
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

    async def _page(
        self, stream: StreamFacts, query: PageQuery, ends: float, waited_on: WaitedOn
    ) -> Page:
        """`waited_on` is told when the owner has said that the stream is there."""
        spec = await self._resolver.settle(stream, query.spec, query.consumer, query.default)
        state = await self._roots.current(stream.stream_id)
        wanted = await self._resolver.resolve(stream, spec, state.first_offset)
        next_offset = state.published_next
        if query.strict and wanted < state.first_offset:
            with suppress(NoOwnerAnswers):
                next_offset = (await self._tail.bounds(stream)).committed_next
        start = above_floor(spec, wanted, state.first_offset, next_offset, query.strict)
        scan = None if query.wanted is None else Scan(query.wanted, self._scan_bounds)
        builder = _builder(start, query, scan)
        reading = _Reading(stream, query, spec, ends, state, start, builder)
        if query.pass_ms is not None:
            reading.passes_until = loop_time() + query.pass_ms / 1000
        if query.wait_ms and self._shared.is_asked(stream, reading.builder.position):
            # Somebody waits there already.
            waited_on.begin(stream)
        answer = await self._begin(reading)
        waited_on.begin(stream)
        while True:
            async with self._room:
                bounds = await self._look(reading, answer)
            if reading.enough or not (seconds := reading.seconds_left):
                break
            later = await self._later(reading, seconds)
            if later is None:
                break
            answer = later
        self.scanned.add(reading.builder.scan)
        return _page_of(reading, bounds)

    async def _later(self, reading: _Reading, seconds: float) -> TailAnswer | None:
        """What comes at the end within a time, if there is somebody to wait for."""
        try:
            return await self._shared.wait(reading.stream, reading.builder.position, seconds)
        except NoOwnerAnswers:
            if reading.builder.position == reading.builder.start:
                raise
            return None

    async def _look(self, reading: _Reading, answer: TailAnswer) -> Bounds:
        """Fill the page, within the time that it may take if it has a filter."""
        scan = reading.builder.scan
        if scan is None:
            return await self._fill(reading, answer)
        scan.begin(loop_time())
        bounds = await self._fill(reading, answer)
        scan.pause(loop_time())
        return bounds

    async def _begin(self, reading: _Reading) -> TailAnswer:
        """The first word of the owner, after which the start is known for certain."""
        stream, query, builder = reading.stream, reading.query, reading.builder
        answer: TailAnswer | None = None
        if query.known is not None:
            # Who follows was told the bounds by the page before, and may hear of news late.
            answer = await self._shared.chunks(stream, builder.position, reading.seconds_left)
            answer = answer or TailAnswer(query.known)
        elif reading.seconds_left and self._shared.is_asked(stream, builder.position):
            answer = await self._shared.wait(stream, builder.position, reading.seconds_left)
        if answer is None:
            answer = await self._ask(stream, builder)
        state = reading.state
        committed_next = _committed(answer.bounds, state)
        start, first_offset = reading.start, state.first_offset
        reading.place(below_end(reading.spec, start, first_offset, committed_next, query.strict))
        return answer

    async def _ask(self, stream: StreamFacts, builder: PageBuilder) -> TailAnswer:
        """What the tail has for a page."""
        position, size = builder.position, builder.wanted_size
        return await self._tail.chunks(stream, position, size, end=builder.end)

    async def _fill(self, reading: _Reading, answer: TailAnswer) -> Bounds:
        """Go from tier to tier until the page is full or the stream ends."""
        stream, builder = reading.stream, reading.builder
        bounds, reading.end_known = answer.bounds, answer.end_known
        rounds, epoch = 0, bounds.epoch
        while rounds < _ROUND_COUNT_MAX:
            before = builder.position
            if answer.moved:
                state = await self._roots.current(stream.stream_id, answer.bounds.version)
                reading.state = state
                if builder.position == builder.start:
                    reading.place(_placed_again(reading, state, bounds))
                    builder = reading.builder
                tree = await self._roots.tree(stream, state)
                await self._stored.add(builder, tree)
                _check_gap(reading, bounds)
            else:
                await self._add_tail(builder, answer.data)
            if builder.full or builder.position >= _committed(bounds, reading.state):
                break
            if not answer.end_known and builder.position > before:
                # What is published ends there; the rest is asked for again by who goes on.
                break
            if (scan := builder.scan) is not None:
                scan.check_time(loop_time())
                if scan.spent:
                    break
                # It may have far to go; only where it stays where it is do the tiers not meet.
                rounds = 0 if builder.position > before else rounds
            elif builder.count and not answer.moved:
                break
            rounds += 1
            try:
                answer = await self._ask(stream, builder)
            except (Corrupt, NoOwnerAnswers) as error:
                came_far = builder.position > builder.start and isinstance(error, NoOwnerAnswers)
                if not (builder.advanced or came_far):
                    raise
                # What lies before it is given out; it is told to who asks for it.
                break
            bounds, reading.end_known = answer.bounds, answer.end_known
            if answer.moved and builder.count and scan is None:
                break
            if answer.moved and reading.state.version >= bounds.version:
                outside_hole(builder.position, hole_of(bounds, reading.state.published_next))
        else:
            if builder.advanced:
                return bounds
            raise nowhere_yet(moved=answer.moved, passed_on=bounds.epoch != epoch)
        return bounds

    async def _add_tail(self, builder: PageBuilder, data: bytes | memoryview) -> None:
        def add(view: memoryview) -> None:
            for header, chunk in split_chunks(view):
                if header.kind is not ChunkKind.TRACKING:
                    builder.add(header, chunk)
                if builder.full or builder.spent:
                    # Before the next one is looked at: what is damaged there is not asked for.
                    return

        await off_loop(len(data), add, memoryview(data))


def nowhere_yet(*, moved: bool, passed_on: bool) -> Unavailable:
    """Say why neither the owner nor object storage has given records that are there.

    `moved`: the owner says that it keeps them no more. `passed_on`: another owner answered meanwhile.
    """
    if passed_on:
        why = "the stream is being passed to another node"
    elif moved:
        why = "they are moving to object storage"
    else:
        why = "the node that owns the stream does not give them yet"
    return Unavailable(
        f"the records cannot be read now, since {why}; try again", retry_after_seconds=1
    )


def _page_of(reading: _Reading, bounds: Bounds) -> Page:
    builder, start, state = reading.builder, reading.start, reading.state
    if builder.first_timestamp is not None:
        start = since_clamped(reading.spec, start, state.first_offset, builder.first_timestamp)
    return Page(
        stream=reading.stream,
        start=start,
        table=as_table(builder.rows, reading.query.columns),
        chunks=builder.chunks,
        count=builder.count,
        size=builder.size,
        held_size=builder.held_size,
        lasting=builder.lasting,
        gaps=builder.gaps,
        next_offset=builder.position,
        first_offset=state.first_offset,
        committed_next=max(_committed(bounds, state), builder.position),
        bounds=bounds,
        end_known=reading.end_known,
        scan=builder.scan,
    )


def _builder(start: Start, query: PageQuery, scan: Scan | None) -> PageBuilder:
    if scan is not None:
        filtered = FilteredChunkPageBuilder if query.whole_chunks else FilteredPageBuilder
        return filtered(start.offset, query.limit, query.size_max, query.until, scan)
    make = ChunkPageBuilder if query.whole_chunks else PageBuilder
    answer_limit = query.answer_limit
    return make(start.offset, query.limit, query.size_max, query.until, answer_limit=answer_limit)


def _committed(bounds: Bounds, state: RootState) -> int:
    # The root may be newer than the owner's answer; what it holds is committed.
    return max(bounds.committed_next, state.published_next)


def _placed_again(reading: _Reading, state: RootState, bounds: Bounds) -> Start:
    """The start under a newer root, whose floor may have passed it."""
    if isinstance(reading.spec, First):
        return Start(state.first_offset)
    start = reading.start
    moved = above_floor(
        reading.spec,
        start.offset,
        state.first_offset,
        _committed(bounds, state),
        reading.query.strict,
    )
    return start if moved.offset == start.offset else moved


def _check_gap(reading: _Reading, bounds: Bounds) -> None:
    """Refuse a strict start within a gap. Who follows was there before the gap, and is told of it."""
    query, gaps = reading.query, reading.builder.gaps
    if query.strict and query.known is None and gaps:
        ends = (reading.state.first_offset, _committed(bounds, reading.state))
        outside_gaps(reading.spec, reading.start, gaps[0][:2], ends)


def _check_stream(stream: StreamFacts, stream_id: StreamId | None) -> None:
    if stream_id is not None and stream.stream_id != stream_id:
        raise WrongOffset(
            "the name belongs to another stream now",
            code=Code.STREAM_REPLACED,
            facts={"stream_id": stream.stream_id},
        )
