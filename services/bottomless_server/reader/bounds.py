"""The bounds of a stream, as `GET …/offsets` shows them, at once or when it has grown."""

from typing import Any

from bottomless.model.manifest import EntryKind
from bottomless.model.names import FullName, StreamId
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.reader.page_reader import PageReader
from bottomless_server.reader.roots import Roots, Tree
from bottomless_server.reader.shared_tail import SharedTail
from bottomless_server.reader.streams import StreamFacts, WaitedOn
from bottomless_server.reader.tail import Tail
from bottomless_server.runtime.base.on_loop import loop_time


class StreamBounds:
    def __init__(self, reader: PageReader, roots: Roots, tail: Tail, shared: SharedTail) -> None:
        self._reader = reader
        self._roots = roots
        self._tail = tail
        self._shared = shared

    async def show(
        self,
        name: FullName,
        stream_id: StreamId | None = None,
        after: int | None = None,
        wait_ms: int = 0,
    ) -> dict[str, Any]:
        """All bounds, as of one moment: when the next offset is greater than `after`, or the
        time is over. Without `after` that is the next offset at the beginning.

        Raises:
            NotFound, WrongOffset, Unavailable, Overloaded
        """
        ends = loop_time() + wait_ms / 1000

        waited_on = WaitedOn()

        async def act(stream: StreamFacts) -> dict[str, Any]:
            waited_on.check(stream)
            waits_for = after
            while True:
                members = await self._show(stream)
                waited_on.begin(stream)
                next_offset = members["next_offset"]
                waits_for = next_offset if waits_for is None else waits_for
                left = ends - loop_time()
                if next_offset > waits_for or left <= 0:
                    return members
                # The records come along; they are kept, for whoever reads them next.
                await self._shared.wait(stream, next_offset, left)

        return await self._reader.with_stream(name, stream_id, act)

    async def _show(self, stream: StreamFacts) -> dict[str, Any]:
        state = await self._roots.current(stream.stream_id)
        first = await self._tail.time_of(stream, state.first_offset)
        bounds = first.bounds
        if first.moved:
            state = await self._roots.current(stream.stream_id, bounds.version)
        tree = await self._roots.tree(stream, state)
        first_timestamp = await self._first_timestamp(tree) if first.moved else first.timestamp
        next_offset = max(bounds.committed_next, state.published_next)
        last_timestamp = bounds.last_timestamp or state.last_timestamp
        stored = 0 if tree.node is None else int(tree.node.entries["byte_size"].sum())
        return {
            "stream_id": stream.stream_id,
            "first_offset": state.first_offset,
            "committed_offset": next_offset - 1 if next_offset else None,
            "next_offset": next_offset,
            "first_timestamp": None
            if first_timestamp is None
            else format_timestamp(first_timestamp),
            "last_timestamp": format_timestamp(last_timestamp)
            if next_offset and last_timestamp
            else None,
            "object_store_next_offset": state.published_next,
            "size_bytes": stored,
        }

    async def _first_timestamp(self, tree: Tree) -> int | None:
        # The first entry may be a group that reaches below the floor.
        async for leaf in self._roots.leaves(tree, tree.state.first_offset):
            if leaf["kind"] == EntryKind.FRAGMENT:
                return int(leaf["first_timestamp"])
        return None
