"""Roots and groups: what object storage holds of a stream, as the manifest published it.

A root is never "empty because it is missing": an object that the record names and that
is not there is an alarm, and the reader's request fails.

On the record's path: after the manifest service published a root, before fragments.py
reads what it names.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
import structlog
from cachetools import TTLCache
from numpy.typing import NDArray

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Code, Corrupt, Unavailable
from bottomless.formats.keys import group_key, root_key
from bottomless.model.backoff import backoff
from bottomless.model.manifest import EntryKind, Node
from bottomless.model.names import StreamId, Uid, uid_from_bytes
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.registry import ROOT, RootState, decode_root
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.core.scan import PassedOver, Scan
from bottomless_server.reader.patience import patiently
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.runtime.base.single_flight import SingleFlight
from bottomless_server.stores.nodes import load_node
from bottomless_server.tree import search
from bottomless_server.tree.filters import entries_to_read

log = structlog.get_logger(__name__)

_POINTER_COUNT_MAX = 10_000
_VERSION_ATTEMPTS = 5
_VERSION_PAUSE_SECONDS = 0.05
"""Doubled each time: the manifest says less than an owner heard from it for an instant at most."""


class ManifestMoved(Unavailable):
    """What was read of the manifest is no longer so; the request may start anew, once."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One root and the way down from it."""

    stream: StreamFacts
    state: RootState
    node: Node | None
    """None where nothing was ever published."""


class Roots:
    def __init__(self, manifest: PeerPort, drive: Drive, cache: SharedCache, ttl_ms: int) -> None:
        self._manifest = manifest
        self._drive = drive
        self._cache = cache
        self._states: TTLCache[StreamId, RootState] = TTLCache(_POINTER_COUNT_MAX, ttl_ms / 1000)
        self._asking: SingleFlight[StreamId, RootState] = SingleFlight(linger_seconds=0)

    async def current(self, stream_id: StreamId, version_min: int = 0) -> RootState:
        """The root pointer, at least of `version_min`, which the owner named.

        Raises:
            Unavailable: the manifest does not answer, or does not say as much.
        """
        known = self._states.get(stream_id)
        if known is not None and known.version >= version_min:
            return known
        if version_min == 0:
            # Many may ask at once, as all do who follow one stream when it grows.
            return await self._asking.join(stream_id, lambda: self.refreshed(stream_id))
        for attempt in range(_VERSION_ATTEMPTS):
            if attempt:
                await asyncio.sleep(backoff(attempt - 1, _VERSION_PAUSE_SECONDS, 1.0))
            state = await self.refreshed(stream_id)
            if state.version >= version_min:
                return state
        raise Unavailable(
            "the manifest is older than what the owner of the stream saw",
            retry_after_seconds=1,
        )

    async def refreshed(self, stream_id: StreamId) -> RootState:
        """The root pointer as the manifest says now."""
        answer = await self._manifest.call("GET", of_stream(ROOT, stream_id))
        state = decode_root(answer.body)
        known = self._states.get(stream_id)
        if known is None or state.version >= known.version:
            self._states[stream_id] = state
        return state

    async def tree(self, stream: StreamFacts, state: RootState) -> Tree:
        """Open the root that a pointer names.

        Raises:
            ManifestMoved: there is a newer root by now.
            Unavailable: the store does not answer.
            Corrupt: `data-missing` where the object is not there while the record names it, or
                it is damaged.
        """
        if state.root is None:
            return Tree(stream, state, None)
        root = state.root
        key = root_key(
            stream.stream_id, root.generation, root.epoch, root.version, root.uid, stream.tenant
        )
        node = await self._load(stream.stream_id, state, key, root.uid, root.size, root.crc)
        return Tree(stream, state, node)

    async def leaf_since(self, tree: Tree, timestamp: int) -> np.void | None:
        """The first fragment or gap that may hold a record of `timestamp` or later."""
        node = tree.node
        while node is not None:
            number = search.since(node, timestamp)
            if node.first_offset < tree.state.first_offset < node.next_offset:
                # What retention cut off this group may be deleted, and is never looked into.
                number = max(number, search.at_offset(node, tree.state.first_offset))
            if number == len(node.entries):
                return None
            entry: np.void = node.entries[number]
            if entry["kind"] != EntryKind.GROUP:
                return entry
            node = await self._group(tree, entry)
        return None

    async def leaves(self, tree: Tree, offset: int) -> AsyncIterator[np.void]:
        """Fragments and gaps in order, from the one that holds `offset` on."""
        async for leaf in self.leaves_under(tree, offset, None):
            assert not isinstance(leaf, PassedOver)
            yield leaf

    async def leaves_under(
        self, tree: Tree, offset: int, scan: Scan | None
    ) -> AsyncIterator[np.void | PassedOver]:
        """Fragments and gaps as from `leaves`, but what has nothing of what a page asks for is passed
        over; they end early where the `scan` may look into no more groups.
        """
        # A stack and not recursion, so that leaving early closes one generator and not several.
        above: list[tuple[Node, int, NDArray[np.bool_] | None]] = []
        begun = False
        node = tree.node
        if node is not None and node.first_offset <= offset < node.next_offset:
            above.append((node, search.at_offset(node, offset), _to_read(node, scan)))
        while above:
            node, number, to_read = above.pop()
            if number == len(node.entries):
                continue
            if to_read is not None and not to_read[number]:
                later = np.flatnonzero(to_read[number:])
                stop = number + int(later[0]) if len(later) else len(node.entries)
                above.append((node, stop, to_read))
                begun = True
                yield _passed_over(node, number, stop, offset)
                continue
            above.append((node, number + 1, to_read))
            entry: np.void = node.entries[number]
            if entry["kind"] != EntryKind.GROUP:
                begun = True
                yield entry
                continue
            if scan is not None and not scan.enter(entry["uid"].tobytes(), on_the_way=not begun):
                return
            group = await self._group(tree, entry)
            place = search.at_offset(group, max(offset, group.first_offset))
            above.append((group, place, _to_read(group, scan)))

    async def _group(self, tree: Tree, entry: np.void) -> Node:
        uid = uid_from_bytes(entry["uid"].tobytes())
        first_offset, height = int(entry["first_offset"]), int(entry["height"])
        key = group_key(tree.stream.stream_id, first_offset, uid, height, tree.stream.tenant)
        size, crc = int(entry["object_size"]), int(entry["object_crc"])
        node = await self._load(tree.stream.stream_id, tree.state, key, uid, size, crc)
        if node.height != height or node.next_offset != int(entry["next_offset"]):
            raise Corrupt("a group of the manifest is not what its entry says")
        return node

    async def _load(
        self, stream_id: StreamId, state: RootState, key: str, uid: Uid, size: int, crc: int
    ) -> Node:
        async def make() -> Node:
            return await load_node(self._drive, key, size, crc)

        try:
            return await patiently(lambda: self._cache.get(("node", uid), make, lambda _: size))
        except ObjectMissing as error:
            newer = await self.refreshed(stream_id)
            if newer.version > state.version:
                raise ManifestMoved("the root was replaced while it was read") from error
            log.error("manifest_node_missing", stream_id=stream_id, uid=uid, version=state.version)  # noqa: TRY400
            raise Corrupt(
                "an object of the manifest is missing in object storage", code=Code.DATA_MISSING
            ) from error


def _to_read(node: Node, scan: Scan | None) -> NDArray[np.bool_] | None:
    """Tell of each entry whether it is gone into. Gaps are: whoever reads is told of them."""
    if scan is None:
        return None
    to_read: NDArray[np.bool_] = entries_to_read(node, scan.asked) | (
        node.entries["kind"] == EntryKind.GAP
    )
    return to_read


def _passed_over(node: Node, number: int, stop: int, offset: int) -> PassedOver:
    passed = node.entries[number:stop]
    first_offset = int(passed["first_offset"][0])
    return PassedOver(
        max(first_offset, offset),
        int(passed["next_offset"][-1]),
        int(passed["byte_size"].sum()),
        int(passed["fragment_count"].sum()),
        # Only the first chunk below is known by its time.
        int(passed["first_timestamp"][0]) if first_offset >= offset else None,
    )
