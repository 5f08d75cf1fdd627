"""Chunks of streams whose logs follow those of other nodes, for readers of what lies far below the end.

A follower has its owner's bytes, so it may give them out in its place, as far as it knows that they
are committed, and to who knows the owner that it follows. Where a stream ends, and what is new, only
its owner says. Nothing is written, so a crash leaves nothing.

What is read may be cut, set aside or freed at the same time, by an opening of another owner: then the
log is another one afterwards, and nothing of it is given out.

On the record's path: beside local/feed.py, between a log and the reader.
"""

from concurrent.futures import Executor

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.errors import Fenced
from bottomless.model.names import parse_stream_id
from bottomless_server.ingest.log.run_reads import Wanted, read_found
from bottomless_server.ingest.log.segments import Segment
from bottomless_server.ingest.replicas.followed_log import FollowedLog
from bottomless_server.ingest.replicas.followed_stream import FollowedStream
from bottomless_server.ingest.replicas.following import Following
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.protocol.tail import (
    FOLLOWED_CHUNKS,
    FOLLOWED_QUERY,
    RUN_MEDIA_TYPE,
    Bounds,
    ChunkRun,
    FollowedAsked,
    decode_followed_asked,
    encode_run,
    moved,
)
from bottomless_server.runtime.base.on_loop import in_thread
from bottomless_server.runtime.http.app import parse_query


class FollowedReads:
    """Answers readers out of the logs that are followed here."""

    def __init__(self, following: Following, files: FileCalls, executor: Executor) -> None:
        """Files are read in `executor`, which nobody waits for who writes."""
        self._following = following
        self._files = files
        self._executor = executor

    async def chunks(self, stream_id: str, request: Request) -> Response:
        """Answer with chunks, or with why there are none here."""
        asked = decode_followed_asked(parse_query(request.scope, FOLLOWED_QUERY))
        stream = self._following.find(parse_stream_id(stream_id))
        if stream is None:
            raise _not_followed()
        run = await self.run_of(stream, asked)
        return Response(run.data, 200, encode_run(run), RUN_MEDIA_TYPE)

    async def run_of(self, stream: FollowedStream, asked: FollowedAsked) -> ChunkRun:
        """Whole chunks from the one that holds an offset; none from where they are not known to be
        committed.

        Raises:
            Fenced: this node does not follow the stream under that epoch.
            OffsetGone: `moved`: below what lies here.
            Corrupt: the file does not hold what was written.
        """
        local = _readable(stream, asked.epoch)
        bounds, first = _bounds_of(stream, local, asked.epoch), asked.first_offset
        if first >= bounds.committed_next:
            return ChunkRun(bounds, first, first, 0, b"")
        segment = _segment_of(local, first)
        if segment is None:
            raise moved(bounds)
        wanted = Wanted(first, asked.max_bytes, _count(segment, bounds.committed_next), False)
        try:
            found = await in_thread(self._executor, read_found, self._files, local, segment, wanted)
        except FileNotFoundError:
            raise moved(bounds) from None
        if _readable(stream, asked.epoch) is not local:
            raise _not_followed()
        return ChunkRun(_bounds_of(stream, local, asked.epoch), *found)


def add_followed_routes(api: FastAPI, reads: FollowedReads) -> None:
    """Serve them beside what `api` serves."""
    api.add_api_route(FOLLOWED_CHUNKS, reads.chunks, methods=["GET"])


def _readable(stream: FollowedStream, epoch: int) -> FollowedLog:
    local = stream.readable(epoch)
    if local is None:
        raise _not_followed()
    return local


def _bounds_of(stream: FollowedStream, local: FollowedLog, epoch: int) -> Bounds:
    """What this node knows; the owner may know more."""
    published_next, version = stream.published
    return Bounds(
        epoch=epoch,
        local_first_offset=local.first_offset,
        committed_next=stream.readable_next,
        published_next=published_next,
        version=version,
        last_chunk_offset=None,
        last_timestamp=0,
    )


def _segment_of(local: FollowedLog, offset: int) -> Segment | None:
    found = (one for one in reversed(local.segments) if one.first_offset <= offset)
    return next(found, None)


def _count(segment: Segment, next_offset: int) -> int:
    """How many chunks of a segment end at an offset or below it."""
    number = segment.index.holding(next_offset - 1)
    is_whole = number >= 0 and segment.index.place(number).next_offset <= next_offset
    return number + 1 if is_whole else number


def _not_followed() -> Fenced:
    return Fenced("this node does not follow the stream under that epoch", retryable=False)
