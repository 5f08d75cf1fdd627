"""`POST /v1/streams/{name}/staged`: batches that are stored now and committed later.

They are refused in the order in which an append is: the form of the request, the stream, the space
where they would be stored, the memory for their body, their body.
"""

import asyncio

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.model.limits import BINARY_BODY_SIZE_MAX
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.ingest.front.forms import FRAMES, JSON, refuse_conditions
from bottomless_server.ingest.front.lookup import AppenderLookup
from bottomless_server.ingest.records.frames import read_frames
from bottomless_server.node.room import MemoryRoom
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.runtime.http.app import (
    content_encoding,
    content_type,
    header,
    json_response,
    negotiate,
    parse_query,
    read_body,
)
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.problems import enough_memory


class StagedRoute:
    """The route of staging."""

    def __init__(
        self,
        lookup: AppenderLookup,
        under_way: RequestsUnderWay,
        room: MemoryRoom,
        frame_size_max: int,
    ) -> None:
        self._lookup = lookup
        self._under_way = under_way
        self._room = room
        self._frame_size_max = frame_size_max

    async def stage(self, s: str, request: Request) -> Response:
        """Answer a request to stage a batch; `s` is the name in its path."""
        scope = request.scope
        parse_query(scope, {})
        negotiate(header(scope, b"accept"), [JSON])
        content_type(scope, [FRAMES])
        content_encoding(scope)
        refuse_conditions(scope)
        name = full_name_of(scope, s)
        declared = header(scope, b"content-length")
        size = BINARY_BODY_SIZE_MAX
        if declared is not None and declared.isdigit():
            size = min(size, int(declared))
        with self._under_way.counted():
            appender = await self._lookup.find(name)
            appender.require_space()
            async with self._room.body(appender.stream_id, size) as room:
                with enough_memory():
                    body = await read_body(
                        scope, room.noting(request.receive), BINARY_BODY_SIZE_MAX
                    )
                    frames = await asyncio.to_thread(read_frames, body, self._frame_size_max)
                batch, expires_at = await appender.stage(frames)
        staged = {
            "stream_id": appender.stream_id,
            "staged_id": batch.staged_id,
            "count": batch.record_count,
            "size_bytes": batch.size,
            "expires_at": format_timestamp(expires_at),
        }
        return json_response(staged, 201, {"stream-id": appender.stream_id})


def add_staged_route(
    api: FastAPI,
    lookup: AppenderLookup,
    under_way: RequestsUnderWay,
    room: MemoryRoom,
    frame_size_max: int,
) -> None:
    """Serve staging beside what `api` serves."""
    route = StagedRoute(lookup, under_way, room, frame_size_max)
    path = "/v1/streams/{s}/staged"
    api.add_api_route(path, route.stage, methods=["POST"], operation_id="stage_batches")
