"""`POST /v1/streams/{name}/staged`: batches that wait on this node's disk for their commit.

Refused in the order of an append: the request's form, the stream, room for it, its body.
"""

import asyncio
import errno
import os

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.errors import Code, Unavailable
from bottomless.model.limits import BINARY_BODY_SIZE_MAX
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.ingest.front.forms import FRAMES, JSON, refuse_conditions
from bottomless_server.ingest.front.routes import Appends
from bottomless_server.ingest.records.frames import read_frames
from bottomless_server.ingest.staged.batches import StagedBatches
from bottomless_server.runtime.base.fault_points import reach
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

    def __init__(self, appends: Appends, staged: StagedBatches) -> None:
        self._appends = appends
        self._staged = staged

    async def stage(self, s: str, request: Request) -> Response:
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
        with self._appends.in_flight():
            appender = await self._appends.find(name)
            self._appends.require_disk()
            stream_id = appender.stream_id
            async with self._appends.room.body(stream_id, size) as room:
                with enough_memory():
                    body = await read_body(
                        scope, room.noting(request.receive), BINARY_BODY_SIZE_MAX
                    )
                    frame_size_max = self._appends.frame_size_max
                    frames = await asyncio.to_thread(read_frames, body, frame_size_max)
                try:
                    batch = await self._staged.stage(
                        stream_id, f"st_{os.urandom(16).hex()}", frames
                    )
                except OSError as error:
                    raise Unavailable(
                        "the local disk does not take it",
                        code=Code.STORAGE_FULL
                        if error.errno == errno.ENOSPC
                        else Code.STORAGE_FAILED,
                        retry_after_seconds=1,
                    ) from error
            await reach("ingest.staged.after-sync")
        staged = {
            "stream_id": stream_id,
            "staged_id": batch.staged_id,
            "count": batch.record_count,
            "size_bytes": batch.size,
            "expires_at": format_timestamp(self._staged.expires_at(batch)),
        }
        return json_response(staged, 201, {"stream-id": stream_id})


def add_staged_route(api: FastAPI, appends: Appends, staged: StagedBatches) -> None:
    """Serve staging beside what `api` serves."""
    route = StagedRoute(appends, staged)
    path = "/v1/streams/{s}/staged"
    api.add_api_route(path, route.stage, methods=["POST"], operation_id="stage_batches")
