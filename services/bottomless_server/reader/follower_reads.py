"""Chunks of a stream that nodes beside its owner hold: asked of them, and of the owner where they fail.

The owner says with each answer who else has everything. It is asked for the bounds of each page all the
same, while a follower is asked for the bytes: whoever reads a backlog costs it a short answer for a
page, and not the page. What a follower answers counts only with the owner's word of the same time.

On the record's path: beside owned_tail.py.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from cachetools import LRUCache, TTLCache

from bottomless.errors import Corrupt, StoreError
from bottomless.formats.chunk import split_chunks
from bottomless.model.names import NodeId, StreamId
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import PeersPort
from bottomless_server.protocol.tail import (
    FOLLOWED_CHUNKS,
    ChunkRun,
    FollowedAsked,
    decode_run,
)
from bottomless_server.reader.core.follower_choice import Seen, first_of, is_far, seen_in
from bottomless_server.reader.nodes import IngestNodes
from bottomless_server.reader.verified import off_loop
from bottomless_server.runtime.base.on_loop import loop_time

log = structlog.get_logger(__name__)

ANSWER_SECONDS: Final = 2.0
"""After so long the owner is asked: it is slow to hang on a node that has died."""
PAUSE_SECONDS: Final = 5.0
"""A node that failed is asked for nothing so long."""
_STREAM_COUNT_MAX: Final = 10_000
"""Streams of which is remembered who follows them, some hundred bytes each."""
_NODE_COUNT_MAX: Final = 1_000


class FollowerReads:
    """What a reader knows of the nodes that follow streams."""

    def __init__(
        self, peers: PeersPort, nodes: IngestNodes, clock: Callable[[], float] = loop_time
    ) -> None:
        """`clock` tells seconds, from any moment on."""
        self._peers = peers
        self._nodes = nodes
        self._seen: LRUCache[StreamId, Seen] = LRUCache(_STREAM_COUNT_MAX)
        self._failed: TTLCache[NodeId, None] = TTLCache(_NODE_COUNT_MAX, PAUSE_SECONDS, clock)
        self.run_count = 0
        """Runs that followers gave."""

    def note(self, stream_id: StreamId, run: ChunkRun) -> None:
        """Hear what the owner of a stream has answered."""
        seen = seen_in(run, self._seen.get(stream_id))
        if seen is not None:
            self._seen[stream_id] = seen
        else:
            self._seen.pop(stream_id, None)

    def asked(self, stream_id: StreamId, position: int) -> NodeId | None:
        """The node that is asked for chunks from a position on; None: the owner is."""
        seen = self._seen.get(stream_id)
        if seen is None or not is_far(seen, position):
            return None
        return first_of(stream_id, [one for one in seen.followers if one not in self._failed])

    async def run_of(
        self, stream_id: StreamId, node: NodeId, asked: FollowedAsked
    ) -> ChunkRun | None:
        """What a node answers, verified; None if it does not, or has nothing there."""
        try:
            # With the question where it is: the owner is read of without the manifest service.
            async with asyncio.timeout(ANSWER_SECONDS):
                url = await self._nodes.url_of(node)
                if url is None:
                    self._failed[node] = None
                    return None
                answer = await self._peers.at(url).fetch(
                    of_stream(FOLLOWED_CHUNKS, stream_id),
                    params=asked.params(),
                    timeout_seconds=ANSWER_SECONDS,
                )
            run = decode_run(answer)
            # Damaged here, it may be whole at its owner.
            await off_loop(len(run.data), _verify, memoryview(run.data))
        except (StoreError, Corrupt, TimeoutError) as error:
            log.info("a follower was not read", node=node, stream_id=stream_id, error=str(error))
            self._failed[node] = None
            return None
        self.run_count += bool(run.data)
        return run if run.data else None


def _verify(data: memoryview) -> None:
    for _ in split_chunks(data):
        pass
