"""The tail of a leaderless stream: its record and entries in coordination, its bytes in WAL objects.

Nobody owns such a stream, so a reader looks for itself. Entries are pruned and objects deleted while
it reads, always after fragments have replaced them: what is not there any more is reason to look at
the record again, which then says that it has `moved`. Only what is missing again and again is lost.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Code, Corrupt, StoreError
from bottomless.formats.chunk import HEADER_SIZE
from bottomless.guards import guard
from bottomless.model.limits import MIB, OFFSET_MAX
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.leaderless.tail import Tail, TailEntry, TailState
from bottomless_server.protocol.tail import Bounds, Located
from bottomless_server.reader.leaderless.entry_chunks import EntryChunks, EntryPart, PlacedRun
from bottomless_server.reader.leaderless.locate import first_since
from bottomless_server.reader.leaderless.tail_poll import TailPoll
from bottomless_server.reader.leaderless.tail_records import Found, TailRecords
from bottomless_server.reader.leaderless.wal_nodes import WalNodes
from bottomless_server.reader.read_ahead import read_ahead
from bottomless_server.reader.roots import Roots
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.reader.tail import TailAnswer, TailTime
from bottomless_server.stores.tail_keys import entries_from

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOOK_COUNT_MAX: Final = 3
"""Looks at the record before what its entries should hold is missing."""
ENTRY_COUNT_MAX: Final = 128
"""Entries of one answer: each may be a GET."""
NEW_COMMIT_COUNT: Final = 64
"""The last commits of a stream, of which the nodes that wrote them are asked. Who is further back reads
what is in many objects, and finds it in the store in any case."""
_AHEAD_SIZE: Final = 4 * MIB
"""Bytes of entries that are fetched for one answer at a time, if it wants no more."""


class WalTail:
    """The tails of all leaderless streams, each as the reader asks for a tail."""

    def __init__(
        self,
        coordination: Coordination,
        records: TailRecords,
        poll: TailPoll,
        chunks: EntryChunks,
        roots: Roots,
    ) -> None:
        self._coordination = coordination
        self._records = records
        self._poll = poll
        self._chunks = chunks
        self._roots = roots

    async def bounds(self, stream: StreamFacts) -> Bounds:
        """What coordination says of the stream now.

        Raises:
            NotFound: the stream is being deleted.
            Unavailable: `coordination-regressed`, or coordination does not answer.
            Corrupt: the record cannot be read.
        """
        return bounds_of(await self._tail(stream))

    async def chunks(
        self,
        stream: StreamFacts,
        first_offset: int,
        size: int,
        wait_ms: int = 0,
        end: int = OFFSET_MAX + 1,
    ) -> TailAnswer:
        """Chunks from the one that holds `first_offset` on: some `size` bytes, at least one chunk, and
        no entry at or beyond `end`.

        At the end of the stream it waits up to `wait_ms` for the next chunk.

        Raises:
            NotFound, Unavailable: as `bounds`.
            Corrupt: what holds the offset is damaged, or missing.
        """
        tail = await self._tail(stream)
        if wait_ms and first_offset == tail.next_offset:
            found = await self._poll.wait(stream.stream_id, tail, wait_ms / 1000)
            tail = tail if found is None else await self._settled(stream, found)

        async def read(tail: Tail) -> TailAnswer | None:
            if first_offset >= tail.next_offset:
                return TailAnswer(bounds_of(tail), b"", first_offset, first_offset)
            if first_offset < tail.pruned_next:
                return TailAnswer(bounds_of(tail), moved=True)
            return await self._read(stream, tail, first_offset, size, end)

        return await self._until_whole(stream, tail, read, first_offset)

    async def time_of(self, stream: StreamFacts, offset: int) -> TailTime:
        """When the record at an offset was committed: its entry says it, so no object is read.

        Raises:
            NotFound, Unavailable: as `bounds`.
            Corrupt: entries are missing.
        """
        tail = await self._tail(stream)

        async def read(tail: Tail) -> TailTime | None:
            if not tail.pruned_next <= offset < tail.next_offset:
                return TailTime(bounds_of(tail), moved=offset < tail.pruned_next)
            found = await entries_from(self._coordination, stream.stream_id, offset, 1)
            if not found or found[0].first_offset > offset:
                return None
            return TailTime(bounds_of(tail), found[0].timestamp)

        return await self._until_whole(stream, tail, read, offset)

    async def locate(self, stream: StreamFacts, timestamp: int) -> Located:
        """The first entry of `timestamp` or later: all its chunks have one time.

        Raises:
            NotFound, Unavailable: as `bounds`.
            Corrupt: entries are missing.
        """
        tail = await self._tail(stream)

        async def read(tail: Tail) -> Located | None:
            if not tail.entry_count or timestamp > tail.last_timestamp:
                return Located(None, bounds_of(tail))
            entry = await first_since(self._coordination, stream.stream_id, tail, timestamp)
            return None if entry is None else Located(entry.first_offset, bounds_of(tail))

        return await self._until_whole(stream, tail, read, tail.next_offset)

    @guard("another look at the tail where an entry or its object is gone")
    async def _until_whole(
        self,
        stream: StreamFacts,
        tail: Tail,
        read: Callable[[Tail], Awaitable[T | None]],
        wanted: int,
    ) -> T:
        """What `read` makes of the tail, looked at again where it finds that something is gone.

        Raises:
            Corrupt: `data-missing`: no prune explains it.
        """
        for look in range(LOOK_COUNT_MAX):
            if look:
                tail = await self._tail(stream)
            with suppress(ObjectMissing):
                answer = await read(tail)
                if answer is not None:
                    return answer
        facts = {"first_offset": tail.pruned_next, "next_offset": tail.next_offset}
        log.error("leaderless_data_missing", stream_id=stream.stream_id, wanted=wanted, **facts)
        raise Corrupt(
            "records that are in no fragment yet are missing", code=Code.DATA_MISSING, facts=facts
        )

    async def _tail(self, stream: StreamFacts) -> Tail:
        found = await self._records.load([stream.stream_id])
        return await self._settled(stream, found[stream.stream_id])

    async def _settled(self, stream: StreamFacts, found: Found) -> Tail:
        """The tail of a stream that is there.

        Raises:
            NotFound, Unavailable, Corrupt
        """
        tail = found.tail
        if isinstance(tail, Corrupt):
            raise tail
        if tail is None or tail.state is TailState.CLOSED:
            raise await self._gone(stream)
        if tail.epoch < stream.epoch:
            raise coordination_lost()
        return tail

    @guard("a stream is gone only where manifest says so")
    async def _gone(self, stream: StreamFacts) -> StoreError:
        """What to say of a stream whose tail is closed or not there.

        Record and tail are changed together, so coordination has lost the one if it has the other.

        Raises:
            NotFound: the manifest service says that there is no such stream.
        """
        await self._roots.refreshed(stream.stream_id)
        return coordination_lost("a leaderless stream has no tail in the coordination store")

    async def _read(
        self, stream: StreamFacts, tail: Tail, offset: int, size: int, end: int
    ) -> TailAnswer | None:
        """Chunks that lie in the tail as it was; None where the entry is gone that holds the offset.

        Raises:
            ObjectMissing, Corrupt, DriveUnavailable, DriveRefused: of the entry that holds it.
        """
        # No entry is smaller than the header of a chunk, and none holds less than a record.
        limit = max(min(size // HEADER_SIZE, end - offset, ENTRY_COUNT_MAX), 1)
        found = await entries_from(self._coordination, stream.stream_id, offset, limit)
        parts = parts_of(found, tail, offset, size, end)
        if not parts:
            return None
        runs = await self._runs(parts, size)
        data = runs[0].data if len(runs) == 1 else b"".join(run.data for run in runs)
        return TailAnswer(bounds_of(tail), data, runs[0].first_offset, runs[-1].next_offset)

    async def _runs(self, parts: Sequence[EntryPart], size: int) -> list[PlacedRun]:
        """Runs that follow each other. What is wrong with a later one is told to who asks for it."""
        runs: list[PlacedRun] = []
        async with read_ahead(self._chunks.read, parts, max(size, _AHEAD_SIZE)) as coming:
            for part in parts:
                try:
                    run = await anext(coming)
                except StoreError:
                    if not runs:
                        raise
                    break
                runs.append(run)
                # Sizes were estimated: where a run ends early, the next one does not follow.
                if run.next_offset < part.entry.next_offset:
                    break
        return runs


class WalReads(NamedTuple):
    """What reads leaderless streams in a process, and counts what it does."""

    tail: WalTail
    poll: TailPoll
    nodes: WalNodes
    chunks: EntryChunks


def bounds_of(tail: Tail) -> Bounds:
    """The bounds that a tail says, as an owner would say them."""
    is_empty = tail.entry_count == 0
    return Bounds(
        epoch=tail.epoch,
        local_first_offset=tail.pruned_next,
        committed_next=tail.next_offset,
        published_next=tail.published_next,
        version=tail.manifest_version,
        last_chunk_offset=None if is_empty else tail.last_chunk_offset,
        last_timestamp=None if is_empty else tail.last_timestamp,
    )


def parts_of(
    entries: Sequence[TailEntry], tail: Tail, offset: int, size: int, end: int
) -> list[EntryPart]:
    """What is wanted of entries that were read after the tail: some `size` bytes from an offset on,
    up to `end`, and of the first entry in any case.

    There is none where the first does not hold the offset. What was committed after the tail was
    looked at is not given out: the bounds that go with the answer would not know it.
    """
    parts: list[EntryPart] = []
    for entry in entries:
        if not entry.first_offset <= offset < entry.next_offset <= tail.next_offset:
            break
        if parts and (size <= 0 or offset >= end):
            break
        is_new = tail.number - entry.number < NEW_COMMIT_COUNT
        parts.append(EntryPart(entry, tail.epoch, offset, size, end, is_new))
        size -= entry.size * (entry.next_offset - offset) // entry.record_count
        offset = entry.next_offset
    return parts
