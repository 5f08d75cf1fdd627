"""The internal listener: what the uploader, manifest and the reader ask of a tail."""

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Scope

from bottomless.errors import Code, StoreError
from bottomless.model.names import parse_stream_id
from bottomless_server.ingest.local.feed import CommitFeed, bounds_of, locate, place_of, read_run
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.lease import NodeLease
from bottomless_server.node.meant import require_meant
from bottomless_server.protocol.places import PLACES, decode_places_asked, encode_places
from bottomless_server.protocol.tail import (
    CHUNKS,
    CHUNKS_QUERY,
    CLOSE,
    COMMITS,
    COMMITS_QUERY,
    LOCATE,
    LOCATE_QUERY,
    PUBLISHED,
    RUN_MEDIA_TYPE,
    CommitsAsked,
    Located,
    decode_chunks_asked,
    decode_locate_asked,
    decode_published,
    encode_commits,
    encode_located,
    encode_run,
    not_committed,
)
from bottomless_server.runtime.http.app import (
    create_api,
    message_response,
    parse_json,
    parse_query,
    read_body,
    said_in_log,
)
from bottomless_server.runtime.listener.same_user import may_see_files

_SMALL_BODY_SIZE = 4096
_PLACES_BODY_SIZE = 32_768


class Tails:
    """What the internal routes are made of; there once the service has started."""

    def __init__(
        self,
        streams: OwnedStreams,
        feed: CommitFeed,
        lease: NodeLease,
        files: FileCalls,
        executor: Executor,
    ) -> None:
        self.streams = streams
        self.feed = feed
        self.lease = lease
        self._files = files
        self._executor = executor

    async def commits(self, request: Request) -> Response:
        asked = CommitsAsked(**parse_query(request.scope, COMMITS_QUERY))
        self.lease.require()
        commits = await self.feed.wait(asked.after, asked.wait_ms / 1000)
        self.lease.require()
        return message_response(encode_commits(commits))

    async def chunks(self, stream_id: str, request: Request) -> Response:
        asked = decode_chunks_asked(parse_query(request.scope, CHUNKS_QUERY))
        by_file = bool(asked.by_file) and may_see_files(request.scope)
        with _told_by_who_asks(request.scope):
            appender = await self.streams.get(parse_stream_id(stream_id))
            run = await read_run(
                self._files,
                self._executor,
                appender,
                asked.first_offset,
                asked.max_bytes,
                asked.wait_ms / 1000,
                by_file=by_file,
            )
        return Response(run.data, 200, encode_run(run), RUN_MEDIA_TYPE)

    async def locate(self, stream_id: str, request: Request) -> Response:
        asked = decode_locate_asked(parse_query(request.scope, LOCATE_QUERY))
        with _told_by_who_asks(request.scope):
            appender = await self.streams.get(parse_stream_id(stream_id))
        located = Located(locate(appender, asked.timestamp), bounds_of(appender))
        return message_response(encode_located(located))

    async def places(self, stream_id: str, request: Request) -> Response:
        parse_query(request.scope, {})
        body = await read_body(request.scope, request.receive, _PLACES_BODY_SIZE)
        offsets = decode_places_asked(parse_json(body))
        with _told_by_who_asks(request.scope):
            appender = await self.streams.get(parse_stream_id(stream_id))
        return message_response(encode_places([place_of(appender, one) for one in offsets]))

    async def published(self, stream_id: str, request: Request) -> Response:
        parse_query(request.scope, {})
        body = await read_body(request.scope, request.receive, _SMALL_BODY_SIZE)
        published = decode_published(parse_json(body))
        # Not opened for this: who opens it reads the record, which says the same.
        appender = self.streams.find(parse_stream_id(stream_id))
        if appender is not None:
            if published.next_offset > appender.log.committed_next:
                raise not_committed(appender.log.committed_next)
            appender.note_published(published.next_offset, published.version)
            self.feed.settle(appender)
        return message_response({})

    async def close(self, stream_id: str, request: Request) -> Response:
        parse_query(request.scope, {})
        require_meant(request.scope, self.lease.node.node_id)
        await self.streams.close(parse_stream_id(stream_id))
        return message_response({})


@contextmanager
def _told_by_who_asks(scope: Scope) -> Iterator[None]:
    """Write no line where this node does not own the stream. Uploader and reader ask for one each second while
    it has no owner, and say so themselves; this log would be full of lines of which none says what is wrong."""
    try:
        yield
    except StoreError as error:
        if error.code is Code.NOT_OWNER:
            said_in_log(scope)
        raise


def create_internal_api(tails: Tails) -> FastAPI:
    """The application of the internal listener."""
    api = create_api("Bottomless ingest, internal")
    api.add_api_route(COMMITS, tails.commits, methods=["GET"])
    api.add_api_route(CHUNKS, tails.chunks, methods=["GET"])
    api.add_api_route(LOCATE, tails.locate, methods=["GET"])
    api.add_api_route(PLACES, tails.places, methods=["POST"])
    api.add_api_route(PUBLISHED, tails.published, methods=["PUT"])
    api.add_api_route(CLOSE, tails.close, methods=["POST"])
    return api
