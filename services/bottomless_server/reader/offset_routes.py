"""`GET …/offsets` and `GET …/offsets/resolve`: where a stream is; and where all partitions are."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from fastapi import Request
from starlette.responses import Response

from bottomless.model.limits import LONG_POLL_MS_MAX, OFFSET_MAX
from bottomless.model.names import parse_stream_id
from bottomless_server.reader.bounds import StreamBounds
from bottomless_server.reader.core.rendering import timestamp_text
from bottomless_server.reader.page_query import JSON, RESOLVE_PARAMETERS, refuse, start_of
from bottomless_server.reader.page_reader import PageReader
from bottomless_server.reader.pages import PageQuery
from bottomless_server.reader.super_offsets import SuperOffsets
from bottomless_server.runtime.http.app import (
    header,
    integer,
    json_response,
    negotiate,
    parse_query,
)
from bottomless_server.runtime.http.connection import Places, while_connected
from bottomless_server.runtime.http.full_names import full_name_of

_OFFSETS_PARAMETERS = {
    "wait_ms": integer(0, LONG_POLL_MS_MAX),
    "after": integer(0, OFFSET_MAX + 1),
    "expect_stream_id": parse_stream_id,
}


class OffsetRoutes:
    def __init__(
        self, reader: PageReader, bounds: StreamBounds, supers: SuperOffsets, waiters: Places
    ) -> None:
        self._reader = reader
        self._bounds = bounds
        self._supers = supers
        self._waiters = waiters

    async def offsets(self, s: str, request: Request) -> Response:
        name = full_name_of(request.scope, s)
        values = parse_query(request.scope, _OFFSETS_PARAMETERS)
        negotiate(header(request.scope, b"accept"), (JSON,))
        if "wait_ms" not in values:
            refuse(values, ("after",), "goes with wait_ms")
        stream_id, wait_ms = values.get("expect_stream_id"), values.get("wait_ms", 0)
        if wait_ms:
            with self._waiters.one():
                showing = self._bounds.show(name, stream_id, values.get("after"), wait_ms)
                members = await while_connected(request.receive, showing)
        else:
            members = await self._bounds.show(name, stream_id)
        return json_response(members, headers=stream_headers(members))

    async def super_offsets(self, s: str, request: Request) -> Response:
        name = full_name_of(request.scope, s)
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), (JSON,))
        members = await while_connected(request.receive, self._supers.show(name))
        return json_response(members, headers={"Cache-Control": "private, no-cache"})

    async def resolve(self, s: str, request: Request) -> Response:
        name = full_name_of(request.scope, s)
        values = parse_query(request.scope, RESOLVE_PARAMETERS)
        negotiate(header(request.scope, b"accept"), (JSON,))
        # The start of a page of one record: what is said here is what a page would do.
        query = PageQuery(**start_of(values, "spec"), limit=1, size_max=1)
        page = await self._reader.page(name, query)
        timestamps = page.table.column("timestamp").cast(pa.int64()).to_pylist()
        members = {
            "stream_id": page.stream.stream_id,
            "spec": values["spec"][0],
            "offset": page.start.offset,
            "clamped": page.start.clamped,
            "timestamp": timestamp_text(timestamps[0]) if timestamps else None,
        }
        bounds = {"first_offset": page.first_offset, "next_offset": page.committed_next}
        return json_response(members, headers=stream_headers(members | bounds))


def stream_headers(members: Mapping[str, Any]) -> dict[str, str]:
    """The headers of every answer about a stream."""
    return {
        "Stream-Id": members["stream_id"],
        "Stream-First-Offset": str(members["first_offset"]),
        "Stream-Next-Offset": str(members["next_offset"]),
        "Cache-Control": "private, no-cache",
    }
