"""Chunks out of fragments, verified before anybody sees them.

A checksum that does not match makes the blocks be fetched once more, since bytes can be
damaged on the way; damaged again, the answer is `data-corrupt` with the fragment's id.

On the record's path: after blocks.py brought the bytes, before core/page.py cuts them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from bottomless.errors import Code, Corrupt
from bottomless.formats.checks import check
from bottomless.formats.chunk import split_chunks
from bottomless.formats.filter import AskedHashes
from bottomless.formats.fragment import FragmentIndex, decode_index, decode_stored_filters
from bottomless.formats.fragment_filters import FilterTable, chunks_to_read
from bottomless.formats.keys import FragmentPlace, fragment_place
from bottomless.model.chunk import ChunkHeader, ChunkPlace
from bottomless.model.fragment import FragmentInfo
from bottomless_server.reader.blocks import Blocks, NextObject, ReadsOn
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.core.chunk_runs import chunk_runs
from bottomless_server.reader.core.locator import chunks_wanted
from bottomless_server.reader.core.scan import PassedOver
from bottomless_server.reader.patience import patiently
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.reader.verified import Events, verified

T = TypeVar("T")

_EVENTS = Events("fragment_reread", "fragment_corrupt")


class FragmentPart(NamedTuple):
    """A part of a fragment that a page may need; `size` is what it is expected to take."""

    info: FragmentInfo
    offset: int
    end: int
    size: int
    follows: bool = False
    """The page goes on with it from another fragment, so whoever reads will read on."""
    reads_to: int | None = None
    """The offset at which whoever reads ends, if it said so; it may lie after `end`, that of its page."""
    after: FragmentInfo | None = None
    """The fragment with which whoever reads goes on from the end of this one, where it is known."""
    asked: AskedHashes | None = None
    """What a page with a filter asks for."""
    passes: tuple[PassedOver, ...] = ()
    """What follows the fragment, up to the next one that is read, and is not read."""


class Part(NamedTuple):
    """Consecutive chunks of one fragment, verified; those that have nothing of what is asked for are
    not there, and it is said where they would be.
    """

    info: FragmentInfo
    chunks: Sequence[tuple[ChunkHeader, memoryview] | PassedOver]
    size: int
    maybe: frozenset[int] = frozenset()
    """First offsets of chunks that filters let pass, although they may hold nothing asked for."""


class Said(NamedTuple):
    """What a fragment says of its chunks: where they are, and what values they have."""

    places: FragmentIndex
    tables: tuple[FilterTable, ...]


class Fragments:
    def __init__(self, blocks: Blocks, cache: SharedCache) -> None:
        self._blocks = blocks
        self._cache = cache

    async def index(
        self, stream: StreamFacts, info: FragmentInfo, *, reads_on: bool = False
    ) -> FragmentIndex:
        """The verified index of a fragment; `reads_on` where most of the fragment is wanted next.

        Raises:
            Corrupt, ObjectMissing, DriveUnavailable, DriveRefused
        """

        if self._cache.knows(_said_name(info)):
            return (await self._said(stream, info, alone=False)).places

        def decode(data: memoryview) -> FragmentIndex:
            # A copy, so that the small index does not keep whole blocks alive beside the cache.
            return _index_of(info, bytes(data))

        async def make() -> FragmentIndex:
            def read(place: FragmentPlace) -> Awaitable[memoryview]:
                return self._blocks.read_once(
                    place.object_key,
                    info.index_position,
                    info.index_size,
                    info.size,
                    reads_on=reads_on,
                    drive=place.drive,
                )

            span = (info.index_position, info.index_size)
            return await self._verified(stream, info, span, read, decode)

        # Outside of the cache as well: who joined what a follower began has more patience than it.
        # Both end at the same moment, that of the request.
        return await patiently(
            lambda: self._cache.get(("index", info.uid), make, lambda _: info.index_size)
        )

    async def read(self, stream: StreamFacts, wanted: FragmentPart) -> Part:
        """Chunks from the one that holds `wanted.offset` on, some `wanted.size` bytes of them.

        Raises:
            Corrupt, ObjectMissing, DriveUnavailable, DriveRefused
        """
        info = wanted.info
        if wanted.asked is not None and info.version > 1:
            return await self._read_some(stream, wanted, wanted.asked)
        most = wanted.follows or 2 * wanted.size >= info.size
        index = await self.index(stream, info, reads_on=most)
        numbers = chunks_wanted(index, wanted.offset, wanted.size, wanted.end)
        first, last = index.place(numbers[0]), index.place(numbers[-1])

        def decode(data: memoryview) -> list[tuple[ChunkHeader, memoryview]]:
            chunks = list(split_chunks(data))
            check("fragment", len(chunks) == len(numbers), "its chunks are not those of its index")
            same = chunks[0][0].first_offset == first.first_offset
            ends = chunks[-1][0].next_offset == last.next_offset
            check("fragment", same and ends, "its chunks are not those of its index")
            return chunks

        size = last.position + last.size - first.position
        reads_on = _reads_on(stream, index, wanted)

        def read(place: FragmentPlace) -> Awaitable[memoryview]:
            return self._blocks.read(
                place.object_key,
                first.position,
                size,
                info.size,
                follows=wanted.follows,
                reads_on=reads_on,
                drive=place.drive,
            )

        chunks = await self._verified(stream, info, (first.position, size), read, decode)
        return Part(info, chunks, size)

    async def _read_some(
        self, stream: StreamFacts, wanted: FragmentPart, asked: AskedHashes
    ) -> Part:
        """Chunks from the one that holds `wanted.offset` on, without those that certainly have
        nothing of what is asked for.
        """
        info = wanted.info
        # Of keys the manifest knows nothing: most fragments will have nothing of what is asked for.
        alone = asked.values is None
        index, tables = await self._said(stream, info, alone=alone)
        may_hold = chunks_to_read(tables, len(index), asked)
        found: list[tuple[ChunkHeader, memoryview] | PassedOver] = []
        runs = chunk_runs(index, may_hold, wanted.offset, wanted.size, wanted.end)
        size = 0
        for run in runs:
            first, last = index.place(run.first), index.place(run.stop - 1)
            if run.is_read:
                count = run.stop - run.first
                found += await self._chunks(stream, info, first, last, count, alone=alone)
                size += run.size
                continue
            whole = int(run.stop - run.first == len(index))
            begins = max(first.first_offset, wanted.offset)
            if last.next_offset > begins:
                passed = PassedOver(begins, last.next_offset, run.size, whole, first.timestamp)
                found.append(passed)
        firsts = (index.place(int(number)).first_offset for number in np.flatnonzero(may_hold))
        return Part(info, found, size, frozenset(firsts))

    async def _said(self, stream: StreamFacts, info: FragmentInfo, *, alone: bool) -> Said:
        """The verified index and filters of a fragment: of one request, where neither is here and the
        manifest says how large they are.
        """
        size = info.filters_size
        if not size or self._cache.knows(("index", info.uid)):
            index = await self.index(stream, info)
            return Said(index, await self._filters(stream, info, index, alone=alone))

        def decode(data: memoryview) -> Said:
            # A copy, as of the index.
            tail = memoryview(bytes(data))
            index = _index_of(info, tail[size:])
            same = index.footer.filters_size == size
            check("fragment filters", same, "they are not those of its manifest entry")
            return Said(index, decode_stored_filters(tail[:size], index.footer))

        span = (info.index_position - size, size + info.index_size)

        async def make() -> Said:
            def read(place: FragmentPlace) -> Awaitable[memoryview]:
                return self._read_alone(place, span, info.size, alone=alone)

            return await self._verified(stream, info, span, read, decode)

        return await patiently(lambda: self._cache.get(_said_name(info), make, lambda _: span[1]))

    async def _filters(
        self, stream: StreamFacts, info: FragmentInfo, index: FragmentIndex, *, alone: bool
    ) -> tuple[FilterTable, ...]:
        """The verified filters of a fragment; they are kept as its index is."""
        footer = index.footer
        span = (footer.filters_position, footer.filters_size)

        async def make() -> tuple[FilterTable, ...]:
            def read(place: FragmentPlace) -> Awaitable[memoryview]:
                return self._read_alone(place, span, info.size, alone=alone)

            def decode(data: memoryview) -> tuple[FilterTable, ...]:
                # A copy, as of the index.
                return decode_stored_filters(bytes(data), footer)

            return await self._verified(stream, info, span, read, decode)

        return await patiently(
            lambda: self._cache.get(("filters", info.uid), make, lambda _: footer.filters_size)
        )

    async def _chunks(
        self,
        stream: StreamFacts,
        info: FragmentInfo,
        first: ChunkPlace,
        last: ChunkPlace,
        count: int,
        *,
        alone: bool,
    ) -> list[tuple[ChunkHeader, memoryview]]:
        """Chunks of which others around them are not wanted: only their bytes are fetched."""
        size = last.position + last.size - first.position

        def read(place: FragmentPlace) -> Awaitable[memoryview]:
            return self._read_alone(place, (first.position, size), info.size, alone=alone)

        def decode(data: memoryview) -> list[tuple[ChunkHeader, memoryview]]:
            chunks = list(split_chunks(data))
            same = len(chunks) == count and chunks[0][0].first_offset == first.first_offset
            ends = same and chunks[-1][0].next_offset == last.next_offset
            check("fragment", ends, "its chunks are not those of its index")
            return chunks

        return await self._verified(stream, info, (first.position, size), read, decode)

    def _read_alone(
        self, place: FragmentPlace, span: tuple[int, int], object_size: int, *, alone: bool
    ) -> Awaitable[memoryview]:
        """A span of a fragment, its start and size, of which nothing after it is wanted."""
        return self._blocks.read_once(
            place.object_key, *span, object_size, reads_on=False, alone=alone, drive=place.drive
        )

    async def _verified(
        self,
        stream: StreamFacts,
        info: FragmentInfo,
        span: tuple[int, int],
        read: Callable[[FragmentPlace], Awaitable[memoryview]],
        decode: Callable[[memoryview], T],
    ) -> T:
        """What `decode` makes of what `read` gets of a span: its start and size."""
        start, size = span
        stream_id, place = stream.stream_id, _place(stream, info)
        facts = {"stream_id": stream_id, "fragment_id": info.fragment_id}
        try:
            return await verified(
                lambda: read(place),
                decode,
                lambda: self._blocks.drop(place.object_key, start, size, info.size),
                size,
                events=_EVENTS,
                **facts,
            )
        except Corrupt as error:
            raise Corrupt(
                "a fragment is damaged",
                code=Code.DATA_CORRUPT,
                facts={"fragment_id": info.fragment_id},
            ) from error


def _said_name(info: FragmentInfo) -> tuple[str, str]:
    """The name under which index and filters that came together are kept."""
    return ("said", info.uid)


def _index_of(info: FragmentInfo, data: bytes | memoryview) -> FragmentIndex:
    index = decode_index(data)
    covers = index.place(0).first_offset == info.first_offset
    ends = index.place(len(index) - 1).next_offset == info.next_offset
    check("fragment index", covers and ends, "it is not that of its manifest entry")
    return index


def _place(stream: StreamFacts, info: FragmentInfo) -> FragmentPlace:
    return fragment_place(stream.stream_id, info, stream.tenant)


def _reads_on(stream: StreamFacts, index: FragmentIndex, wanted: FragmentPart) -> ReadsOn:
    """How far whoever wants this part would read."""
    info, after, ends = wanted.info, wanted.after, wanted.reads_to
    if ends is not None and ends < info.next_offset:
        last = index.place(index.at_offset(ends - 1))
        return ReadsOn(last.position + last.size, None)
    if after is None:
        return ReadsOn(info.size, None)
    place = _place(stream, after)
    return ReadsOn(info.size, NextObject(place.object_key, after.size, place.drive))
