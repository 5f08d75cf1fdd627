"""Resolve an offset spec to an offset: ask the owner, and object storage where it knows better."""

from collections.abc import Callable

import numpy as np

from bottomless.errors import Code, NotFound
from bottomless.model.manifest import EntryKind, fragment_info
from bottomless.model.names import Reference
from bottomless.model.offset_spec import (
    Ago,
    At,
    First,
    Last,
    Next,
    OffsetSpec,
    PlainSpec,
    Since,
    Stored,
    Tail,
)
from bottomless_server.protocol.tail import Bounds
from bottomless_server.reader import tail as tails
from bottomless_server.reader.core.locator import hole_of
from bottomless_server.reader.fragments import Fragments
from bottomless_server.reader.roots import Roots, Tree
from bottomless_server.reader.stored_offsets import StoredOffsets
from bottomless_server.reader.streams import StreamFacts


class Resolver:
    def __init__(
        self,
        roots: Roots,
        tail: tails.Tail,
        fragments: Fragments,
        stored: StoredOffsets,
        now: Callable[[], float],
    ) -> None:
        """`now` gives seconds since 1970."""
        self._roots = roots
        self._tail = tail
        self._fragments = fragments
        self._stored = stored
        self._now = now

    async def settle(
        self,
        stream: StreamFacts,
        spec: OffsetSpec,
        consumer: Reference | None,
        default: OffsetSpec | None,
    ) -> PlainSpec:
        """What a spec means now, and for this consumer.

        Raises:
            NotFound: `offset-not-found`: nothing is stored, and there is no default.
            Unavailable
        """
        if isinstance(spec, Stored):
            assert consumer is not None
            offset = await self._stored.find(stream.stream_id, consumer)
            if offset is not None:
                return At(offset)
            if default is None:
                raise NotFound(
                    "this consumer has stored no offset; the parameter default says where to start then",
                    code=Code.OFFSET_NOT_FOUND,
                )
            return await self.settle(stream, default, consumer, None)
        if isinstance(spec, Ago):
            return Since(max(round(self._now() * 1000) - spec.seconds * 1000, 0))
        return spec

    async def resolve(self, stream: StreamFacts, spec: PlainSpec, floor: int) -> int:
        """The offset that is meant; it may lie below the floor, even below 0, or beyond the end.

        Raises:
            Unavailable, Corrupt
        """
        match spec:
            case At(offset):
                return offset
            case First():
                return floor
            case Next():
                return (await self._tail.bounds(stream)).committed_next
            case Tail(count):
                return (await self._tail.bounds(stream)).committed_next - count
            case Last():
                return await self._last(stream, await self._tail.bounds(stream))
            case Since(timestamp):
                return await self._since(stream, timestamp)

    async def _last(self, stream: StreamFacts, bounds: Bounds) -> int:
        """First record of the last chunk; the end where there is none any more."""
        if bounds.last_chunk_offset is not None:
            return bounds.last_chunk_offset
        state = await self._roots.current(stream.stream_id, bounds.version)
        if state.published_next <= state.first_offset:
            return bounds.committed_next
        tree = await self._roots.tree(stream, state)
        async for leaf in self._roots.leaves(tree, state.published_next - 1):
            if leaf["kind"] == EntryKind.FRAGMENT:
                index = await self._fragments.index(stream, fragment_info(leaf))
                return index.place(index.at_offset(state.published_next - 1)).first_offset
        return bounds.committed_next

    async def _since(self, stream: StreamFacts, timestamp: int) -> int:
        """Where to begin so that no record whose chunk has this timestamp or a later one is passed
        over without a word; the end if there is none.

        That is the first such record, or the beginning of what is lost right before it: nobody
        knows any more how late that was. A page that begins there names it.
        """
        try:
            local, bounds = await self._tail.locate(stream, timestamp)
        except tails.NoOwnerAnswers:
            found = await self._stored_since(stream, timestamp)
            if found is None:
                raise
            return found
        if local is not None and local > bounds.local_first_offset:
            # An earlier local chunk is too early, and so is all that object storage alone has.
            return local
        # At least as new as what the owner freed, so that no chunk is in neither tier.
        state = await self._roots.current(stream.stream_id, bounds.version)
        tree = await self._roots.tree(stream, state)
        leaf = await self._roots.leaf_since(tree, timestamp)
        if leaf is None:
            if local is None and bounds.last_chunk_offset is not None:
                # What the log holds is too early, and so is all that was ever before it.
                return bounds.committed_next
            offset = bounds.committed_next if local is None else local
            hole = hole_of(bounds, state.published_next)
            return await self._before_gaps(tree, offset if hole is None else hole[0])
        return await self._within(tree, leaf, timestamp)

    async def _stored_since(self, stream: StreamFacts, timestamp: int) -> int | None:
        """Where to begin, without the owner; None where nothing in object storage is late enough. Of
        every other time it knows, since times never decrease."""
        tree = await self._roots.tree(stream, await self._roots.refreshed(stream.stream_id))
        leaf = await self._roots.leaf_since(tree, timestamp)
        return None if leaf is None else await self._within(tree, leaf, timestamp)

    async def _within(self, tree: Tree, leaf: np.void, timestamp: int) -> int:
        """Where to begin of a fragment or gap that may hold what is late enough."""
        if leaf["kind"] == EntryKind.GAP:
            return await self._before_gaps(tree, int(leaf["first_offset"]))
        index = await self._fragments.index(tree.stream, fragment_info(leaf))
        offset = index.place(index.since(timestamp)).first_offset
        if offset > leaf["first_offset"]:
            # A group may reach below the floor; what is there is no longer part of the stream.
            return max(offset, tree.state.first_offset)
        return await self._before_gaps(tree, offset)

    async def _before_gaps(self, tree: Tree, offset: int) -> int:
        """The first offset of the gaps that end at `offset`, else that itself; never below the floor."""
        floor = tree.state.first_offset
        while offset > floor:
            leaf = await anext(self._roots.leaves(tree, offset - 1), None)
            if leaf is None or leaf["kind"] != EntryKind.GAP:
                return offset
            offset = int(leaf["first_offset"])
        return floor
