"""The tail of a stream that has an owner: chunks and bounds as the live owner gives them.

Ingest never clamps and never guesses: asked below what it holds it answers `moved`, and
only an owner with the newest epoch that this process has heard of is believed.

On the record's path: beside fragments.py, which reads what has left the tail.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from cachetools import LRUCache

from bottomless.errors import Code, StoreError
from bottomless.formats.chunk import split_chunks
from bottomless.guards import guard
from bottomless.model.chunk import ChunkKind
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import NodeId, StreamId
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import PeersPort
from bottomless_server.protocol.tail import (
    LOCATE,
    Bounds,
    ChunksAsked,
    FollowedAsked,
    LocateAsked,
    Located,
    bounds_of_moved,
    decode_located,
)
from bottomless_server.reader.core.follower_choice import is_vouched_for
from bottomless_server.reader.follower_reads import FollowerReads
from bottomless_server.reader.nodes import IngestNodes
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.reader.tail import NoOwnerAnswers, TailAnswer, TailTime
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.peers.tail_chunks import ChunkSources

T = TypeVar("T")

_HEARD_COUNT_MAX = 100_000
"""Streams whose newest bounds are remembered, some hundred bytes each."""
_ANSWER_SECONDS = 10.0
"""What an answer may take beyond the wait that was asked for."""
_RETRY_AFTER_SECONDS = 1.0


class OwnedTail:
    def __init__(
        self,
        peers: PeersPort,
        waiting: PeersPort,
        nodes: IngestNodes,
        followers: FollowerReads | None = None,
    ) -> None:
        """`waiting` has connections of its own, so that who waits keeps nobody from reading. `followers`
        are asked for what lies far below the end; None: owners alone are asked."""
        self._peers = peers
        self._sources = ChunkSources(peers)
        self._waiting = ChunkSources(waiting)
        self._nodes = nodes
        self._followers = followers
        self._newest: LRUCache[StreamId, Bounds] = LRUCache(_HEARD_COUNT_MAX)

    async def bounds(self, stream: StreamFacts) -> Bounds:
        """What the owner says of the stream now.

        Raises:
            NoOwnerAnswers
        """
        # Beyond every committed offset: an empty answer at once, with all bounds.
        return (await self.chunks(stream, OFFSET_MAX, 1)).bounds

    async def chunks(
        self,
        stream: StreamFacts,
        first_offset: int,
        size: int,
        wait_ms: int = 0,
        end: int = OFFSET_MAX + 1,  # noqa: ARG002
    ) -> TailAnswer:
        """Chunks from the one that holds `first_offset` on: some `size` bytes, at least one chunk.

        At the end of the stream it waits up to `wait_ms` for the next chunk. To the owner, who reads
        its own disk, it makes no difference where somebody stops. Far below the end a node that
        follows the stream is asked for them, and the owner for its bounds.

        Raises:
            NoOwnerAnswers
        """
        if self._followers is not None and not wait_ms:
            node = self._followers.asked(stream.stream_id, first_offset)
            if node is not None:
                answer = await self._from_follower(stream, node, first_offset, size)
                if answer is not None:
                    return answer
        asked = ChunksAsked(first_offset, size, wait_ms)
        sources = self._waiting if wait_ms else self._sources

        async def ask(url: str) -> TailAnswer:
            try:
                run = await sources.at(url).chunks(
                    stream.stream_id, asked, timeout_seconds=wait_ms / 1000 + _ANSWER_SECONDS
                )
            except StoreError as error:
                if error.code is not Code.MOVED:
                    raise
                return TailAnswer(bounds_of_moved(error), moved=True)
            # Whoever reads the files of the owner costs it nothing.
            if self._followers is not None and not sources.at(url).reads_files(stream.stream_id):
                self._followers.note(stream.stream_id, run)
            return TailAnswer(run.bounds, run.data, run.first_offset, run.next_offset)

        return await self._ask(stream, ask, lambda answer: answer.bounds)

    async def _from_follower(
        self, stream: StreamFacts, node: NodeId, first_offset: int, size: int
    ) -> TailAnswer | None:
        """What a node has that follows the owner, with the owner's bounds; None where it has nothing
        that the owner vouches for.

        Raises:
            NoOwnerAnswers
        """
        assert self._followers is not None
        epoch = max(self.epoch_seen(stream.stream_id), stream.epoch)
        asked = FollowedAsked(epoch, first_offset, size)
        asking = asyncio.create_task(self._followers.run_of(stream.stream_id, node, asked))
        try:
            bounds = await self.bounds(stream)
            if first_offset < bounds.local_first_offset:
                return TailAnswer(bounds, moved=True)
            run = await asking
        finally:
            await end_tasks(asking)
        if run is None or not is_vouched_for(run, bounds):
            return None
        return TailAnswer(bounds, run.data, run.first_offset, run.next_offset)

    async def time_of(self, stream: StreamFacts, offset: int) -> TailTime:
        """When the record at an offset was committed, or the first one after it.

        Raises:
            NoOwnerAnswers
        """
        answer = await self.chunks(stream, offset, 1)
        headers = (header for header, _ in split_chunks(answer.data))
        records = (header for header in headers if header.kind is not ChunkKind.TRACKING)
        first = next(records, None)
        return TailTime(answer.bounds, None if first is None else first.timestamp, answer.moved)

    async def locate(self, stream: StreamFacts, timestamp: int) -> Located:
        """The first local chunk of `timestamp` or later.

        Raises:
            NoOwnerAnswers
        """

        async def ask(url: str) -> Located:
            path = of_stream(LOCATE, stream.stream_id)
            answer = await self._peers.at(url).call(
                "GET", path, params=LocateAsked(timestamp).params()
            )
            return decode_located(answer.body)

        return await self._ask(stream, ask, lambda located: located.bounds)

    async def _ask(
        self,
        stream: StreamFacts,
        ask: Callable[[str], Awaitable[T]],
        bounds_of: Callable[[T], Bounds],
    ) -> T:
        """Ask the owner; where it is gone or no owner any more, ask all nodes: one may claim."""
        newest = max(self.epoch_seen(stream.stream_id), stream.epoch)
        failure: StoreError | None = None
        asked: list[str] = []
        while (url := await self._next(stream, asked)) is not None:
            asked.append(url)
            try:
                answer = await ask(url)
            except StoreError as error:
                if error.code not in {Code.PEER_UNAVAILABLE, Code.NOT_OWNER, Code.FENCED}:
                    raise
                failure = error
                continue
            newest = max(newest, self.epoch_seen(stream.stream_id))
            bounds = bounds_of(answer)
            if bounds.epoch >= newest:
                self._newest[stream.stream_id] = bounds
                return answer
        # A fence seen here is the owner's matter; to a reader it means that nobody answers now.
        code = failure.code if failure and failure.code is not Code.FENCED else Code.NOT_OWNER
        raise NoOwnerAnswers(
            "no owner of the stream answers",
            code=code,
            retry_after_seconds=_RETRY_AFTER_SECONDS,
        ) from failure

    @guard("the highest epoch that a reader has seen")
    def epoch_seen(self, stream_id: StreamId) -> int:
        """The highest epoch under which an owner of this stream has answered; 0 if none has."""
        heard = self.heard(stream_id)
        return 0 if heard is None else heard.epoch

    def heard(self, stream_id: StreamId) -> Bounds | None:
        """What the last owner that was believed said of a stream; None if none has answered yet."""
        return self._newest.get(stream_id)

    async def _next(self, stream: StreamFacts, asked: Sequence[str]) -> str | None:
        if stream.owner_url is not None and not asked:
            return stream.owner_url
        return next((url for url in await self._nodes.urls() if url not in asked), None)
