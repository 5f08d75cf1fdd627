"""The reader's public paths below a stream: fragments here, records and offsets in files of
their own; api.md sections 5, 6 and 11.
"""

from collections.abc import AsyncGenerator
from typing import Final

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.errors import Code, OffsetGone
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import parse_stream_id
from bottomless_server.core.scopes import Operation
from bottomless_server.reader.core.byte_range import (
    ByteRange,
    NotSatisfiable,
    choose_range,
    etag_matches,
)
from bottomless_server.reader.downloads import Downloads, PiecesResponse
from bottomless_server.reader.listing import Listing, ListQuery
from bottomless_server.reader.offset_routes import OffsetRoutes, stream_headers
from bottomless_server.reader.page_query import FILTER_PARAMETERS, JSON, OCTETS, filter_query
from bottomless_server.reader.record_routes import RecordRoutes
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import (
    boolean,
    choice,
    header,
    integer,
    json_response,
    negotiate,
    parse_query,
    text,
)
from bottomless_server.runtime.http.full_names import full_name_of

_LIST_LIMIT_MAX: Final = 1_000

_LIST_PARAMETERS: Final = {
    "from_offset": integer(0, OFFSET_MAX + 1),
    "to_offset": integer(0, OFFSET_MAX + 1),
    **FILTER_PARAMETERS,
    "limit": integer(1, _LIST_LIMIT_MAX),
    "page_token": text,
    "expect_stream_id": parse_stream_id,
    "locations": boolean,
    "urls": choice("none", "presigned"),
}


class Routes:
    def __init__(
        self,
        records: RecordRoutes,
        offsets: OffsetRoutes,
        listing: Listing,
        downloads: Downloads,
    ) -> None:
        self._records = records
        self._offsets = offsets
        self._listing = listing
        self._downloads = downloads

    def add_to(self, api: FastAPI) -> None:
        for path, method, operation_id, endpoint in (
            ("/records", "GET", "get_records", self._records.records),
            ("/records/{offset}", "GET", "get_records_one", self._records.record),
            ("/offsets", "GET", "get_offsets", self._offsets.offsets),
            ("/offsets/resolve", "GET", "get_offsets_resolve", self._offsets.resolve),
            ("/fragments", "GET", "get_fragments", self.fragments),
            ("/fragments/{fragment_id}", "GET", "get_fragments_bytes", self.fragment),
            ("/fragments/{fragment_id}", "HEAD", "head_fragments_bytes", self.fragment),
        ):
            api.add_api_route(
                f"/v1/streams/{{s}}{path}",
                endpoint,
                methods=[method],
                response_model=None,
                operation_id=operation_id,
            )

        api.add_api_route(
            "/v1/super-streams/{s}/offsets",
            self._offsets.super_offsets,
            methods=["GET"],
            response_model=None,
            operation_id="get_super_offsets",
        )

    async def fragments(self, s: str, request: Request) -> Response:
        name = full_name_of(request.scope, s)
        values = parse_query(request.scope, _LIST_PARAMETERS)
        negotiate(header(request.scope, b"accept"), (JSON,))
        if values.get("locations"):
            principal_of(request.scope).require(Operation.LOCATIONS, name.name)
        presigned = values.pop("urls", "none") == "presigned"
        limit = values.pop("limit", _LIST_LIMIT_MAX)
        wanted = filter_query(values)
        for parameter in FILTER_PARAMETERS:
            values.pop(parameter, None)
        listed = await self._listing.fragments(
            name, ListQuery(limit=limit, presigned=presigned, wanted=wanted, **values)
        )
        headers = stream_headers(listed)
        if presigned:
            # A URL is a permission: nobody on the way keeps it, nor beyond its end.
            headers["Cache-Control"] = "no-store"
        return json_response(listed, headers=headers)

    async def fragment(self, s: str, fragment_id: str, request: Request) -> Response:
        name = full_name_of(request.scope, s)
        values = parse_query(request.scope, {"expect_stream_id": parse_stream_id})
        negotiate(header(request.scope, b"accept"), (OCTETS,))
        download = await self._downloads.open(name, fragment_id, values.get("expect_stream_id"))
        headers = {
            "ETag": download.etag,
            "Accept-Ranges": "bytes",
            "Cache-Control": "private, max-age=31536000, immutable",
            "Stream-Id": download.stream_id,
        }
        if etag_matches(header(request.scope, b"if-none-match"), download.etag, weak=True):
            return Response(None, 304, headers)
        status, wanted = 200, ByteRange(0, download.size)
        condition = header(request.scope, b"if-range")
        if condition is None or etag_matches(condition, download.etag, weak=False):
            chosen = choose_range(header(request.scope, b"range"), download.size)
            # A range is a thing of GET alone (RFC 9110, section 14.2).
            if isinstance(chosen, NotSatisfiable) and request.method == "GET":
                raise OffsetGone(
                    "no byte of the fragment lies in the range",
                    code=Code.RANGE_NOT_SATISFIABLE,
                    facts={"size_bytes": download.size},
                )
            if isinstance(chosen, ByteRange) and request.method == "GET":
                status, wanted = 206, chosen
                headers["Content-Range"] = f"bytes {wanted.start}-{wanted.last}/{download.size}"
        headers["Content-Length"] = str(wanted.size)
        if request.method == "HEAD":
            return Response(None, 200, headers, OCTETS)
        pieces = self._downloads.pieces(download, wanted)
        # The first piece before the status line: what fails at once is answered as a problem.
        first = await anext(pieces)
        return PiecesResponse(_joined(first, pieces), status, headers)


async def _joined(
    first: memoryview, rest: AsyncGenerator[memoryview, None]
) -> AsyncGenerator[memoryview, None]:
    try:
        yield first
        async for piece in rest:
            yield piece
    finally:
        await rest.aclose()
