"""The reader's public paths: requests in, answers out; api.md sections 5, 6 and 11.

On the record's path: after assemble.py put the page together; what follows is the
client, or shared/bottomless/spark/source.py.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from typing import Any, Final
from urllib.parse import quote

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.errors import Code, Fault, InvalidRequest, OffsetGone
from bottomless.model.limits import (
    LONG_POLL_MS_MAX,
    OFFSET_MAX,
    PAGE_RECORD_COUNT_ARROW_MAX,
    PAGE_RECORD_COUNT_DEFAULT,
    PAGE_RECORD_COUNT_MAX,
    PAGE_SIZE_DEFAULT,
    PAGE_SIZE_MAX,
)
from bottomless.model.names import parse_stream_id, parse_stream_name
from bottomless.model.offset_spec import parse_offset_spec
from bottomless_server.reader.assemble import Page, PageQuery, Reader
from bottomless_server.reader.core.byte_range import (
    ByteRange,
    NotSatisfiable,
    choose_range,
    etag_matches,
)
from bottomless_server.reader.core.rendering import ValueEncoding, as_arrow_stream, as_json
from bottomless_server.reader.downloads import Downloads, PiecesResponse
from bottomless_server.reader.fragments import INLINE_SIZE_MAX
from bottomless_server.reader.listing import Listing, ListQuery
from bottomless_server.runtime.http import (
    boolean,
    choice,
    header,
    integer,
    json_response,
    negotiate,
    parse_query,
    text,
)

JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"

_LIST_LIMIT_MAX: Final = 1_000

_PAGE_PARAMETERS: Final = {
    "offset": lambda value: (value, parse_offset_spec(value)),
    "until_offset": integer(0, OFFSET_MAX + 1),
    "limit": integer(1, PAGE_RECORD_COUNT_ARROW_MAX),
    "max_bytes": integer(1, PAGE_SIZE_MAX),
    "max_wait_ms": integer(0, LONG_POLL_MS_MAX),
    "on_out_of_range": choice("clamp", "error"),
    "expect_stream_id": parse_stream_id,
    "value_encoding": choice(*ValueEncoding),
}
_LIST_PARAMETERS: Final = {
    "from_offset": integer(0, OFFSET_MAX + 1),
    "to_offset": integer(0, OFFSET_MAX + 1),
    "limit": integer(1, _LIST_LIMIT_MAX),
    "page_token": text,
    "locations": boolean,
    "urls": choice("none"),
}


class Routes:
    def __init__(self, reader: Reader, listing: Listing, downloads: Downloads) -> None:
        self._reader = reader
        self._listing = listing
        self._downloads = downloads

    def add_to(self, api: FastAPI) -> None:
        for path, method, endpoint in (
            ("/records", "GET", self.records),
            ("/offsets", "GET", self.offsets),
            ("/fragments", "GET", self.fragments),
            ("/fragments/{fragment_id}", "GET", self.fragment),
            ("/fragments/{fragment_id}", "HEAD", self.fragment),
        ):
            api.add_api_route(
                f"/v1/streams/{{s}}{path}",
                endpoint,
                methods=[method],
                response_model=None,
                operation_id=f"{method.lower()}{path.partition('/{')[0].replace('/', '_')}"
                + ("_bytes" if "{" in path else ""),
            )

    async def records(self, s: str, request: Request) -> Response:
        name = parse_stream_name(s)
        values = parse_query(request.scope, _PAGE_PARAMETERS)
        media_type = negotiate(header(request.scope, b"accept"), (JSON, ARROW))
        if "offset" not in values:
            missing = Fault("missing", "it says where the page starts", parameter="offset")
            raise InvalidRequest("a page needs the parameter offset", faults=[missing])
        requested, spec = values["offset"]
        query = PageQuery(
            spec=spec,
            limit=_limit(values.get("limit"), media_type),
            size_max=values.get("max_bytes", PAGE_SIZE_DEFAULT),
            until=values.get("until_offset"),
            wait_ms=values.get("max_wait_ms", 0),
            strict=values.get("on_out_of_range") == "error",
            stream_id=values.get("expect_stream_id"),
        )
        encoding = ValueEncoding(values.get("value_encoding", ValueEncoding.AUTO))
        page = await self._reader.page(name, query)
        headers = _page_headers(page) | {"Link": _next_link(request, page.next_offset)}
        if is_immutable(page, query.limit):
            headers["ETag"] = page_etag(page, requested, media_type, encoding)
            if etag_matches(header(request.scope, b"if-none-match"), headers["ETag"], weak=True):
                return Response(None, 304, headers)

        def render() -> bytes:
            if media_type == ARROW:
                return as_arrow_stream(page.table)
            return as_json(_page_members(page, requested), page.table, encoding)

        # JSON is made record by record, so their number is what costs as well.
        inline = page.size <= INLINE_SIZE_MAX and page.table.num_rows <= PAGE_RECORD_COUNT_DEFAULT
        body = render() if inline else await asyncio.to_thread(render)
        return Response(body, 200, headers, media_type)

    async def offsets(self, s: str, request: Request) -> Response:
        name = parse_stream_name(s)
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), (JSON,))
        bounds = await self._listing.offsets(name)
        return json_response(bounds, headers=_stream_headers(bounds))

    async def fragments(self, s: str, request: Request) -> Response:
        name = parse_stream_name(s)
        values = parse_query(request.scope, _LIST_PARAMETERS)
        negotiate(header(request.scope, b"accept"), (JSON,))
        values.pop("urls", None)
        query = ListQuery(limit=values.pop("limit", _LIST_LIMIT_MAX), **values)
        listed = await self._listing.fragments(name, query)
        return json_response(listed, headers=_stream_headers(listed))

    async def fragment(self, s: str, fragment_id: str, request: Request) -> Response:
        name = parse_stream_name(s)
        parse_query(request.scope, {})
        download = await self._downloads.open(name, fragment_id)
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
            return Response(None, 200, headers, "application/octet-stream")
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


def _limit(limit: int | None, media_type: str) -> int:
    if media_type == ARROW:
        return PAGE_RECORD_COUNT_ARROW_MAX if limit is None else limit
    if limit is not None and limit > PAGE_RECORD_COUNT_MAX:
        raise InvalidRequest(f"limit: a JSON page has at most {PAGE_RECORD_COUNT_MAX} records")
    return PAGE_RECORD_COUNT_DEFAULT if limit is None else limit


def is_immutable(page: Page, limit: int) -> bool:
    """Whether the same request always brings these records: a full page of the past."""
    return page.table.num_rows == limit and page.next_offset < page.committed_next


def page_etag(page: Page, requested: str, media_type: str, encoding: ValueEncoding) -> str:
    """Weak, since bounds of the stream stand beside the records and do change."""
    form = hashlib.sha256(f"{requested} {media_type} {encoding}".encode()).hexdigest()[:8]
    return f'W/"{page.stream.stream_id}:{page.start.offset}:{page.next_offset}:{form}"'


def _page_members(page: Page, requested: str) -> dict[str, Any]:
    members = {
        "stream_id": page.stream.stream_id,
        "requested": requested,
        "start_offset": page.start.offset,
        "clamped": page.start.clamped,
        "records": [],
        "next_offset": page.next_offset,
        "first_offset": page.first_offset,
        "committed_offset": page.committed_next - 1 if page.committed_next else None,
        "up_to_date": page.next_offset >= page.committed_next,
        "lag_records": page.committed_next - page.next_offset,
    }
    if page.gaps:
        members["gaps"] = [gap._asdict() for gap in page.gaps]
    return members


def _page_headers(page: Page) -> dict[str, str]:
    headers = {
        "Stream-Id": page.stream.stream_id,
        "Stream-First-Offset": str(page.first_offset),
        "Page-Next-Offset": str(page.next_offset),
        "Stream-Next-Offset": str(page.committed_next),
        "Stream-Up-To-Date": "true" if page.next_offset >= page.committed_next else "false",
        "Cache-Control": "private, no-cache",
    }
    if page.committed_next:
        headers["Stream-Committed-Offset"] = str(page.committed_next - 1)
    if page.start.clamped:
        headers["Page-Clamped"] = page.start.clamped
    if page.gaps:
        headers["Page-Gaps"] = ", ".join(
            f"{gap.first_offset}-{gap.next_offset - 1}" for gap in page.gaps
        )
    return headers


def _stream_headers(members: dict[str, Any]) -> dict[str, str]:
    return {
        "Stream-Id": members["stream_id"],
        "Stream-First-Offset": str(members["first_offset"]),
        "Stream-Next-Offset": str(members["next_offset"]),
        "Cache-Control": "private, no-cache",
    }


def _next_link(request: Request, next_offset: int) -> str:
    """The same request from where this page ended."""
    others = [
        f"{quote(name)}={quote(value)}"
        for name, value in request.query_params.multi_items()
        if name != "offset"
    ]
    query = "&".join([f"offset={next_offset}", *others])
    return f'<{request.url.path}?{query}>; rel="next"'
