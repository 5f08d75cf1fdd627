"""`GET …/records` and `GET …/records/{offset}`: requests in, answers out; api.md, section 5.

On the record's path: after page_reader.py put the page together; what follows is the
client, or shared/bottomless/spark/source.py.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import orjson
from fastapi import Request
from starlette.responses import Response

from bottomless.errors import (
    Code,
    Fault,
    InvalidRequest,
    NotFound,
    OffsetGone,
    StoreError,
    WrongOffset,
)
from bottomless.model.limits import OFFSET_MAX, PAGE_RECORD_COUNT_DEFAULT
from bottomless.model.names import FullName
from bottomless.model.offset_spec import At
from bottomless_server.core.shown_values import ValueEncoding
from bottomless_server.reader.core.byte_range import etag_matches
from bottomless_server.reader.core.framing import NDJSON, SSE, Events, Lines, parse_event_id
from bottomless_server.reader.core.rendering import (
    Piece,
    as_arrow_stream,
    as_chunk_stream,
    as_json,
    as_json_records,
)
from bottomless_server.reader.fences import Fence, Fences
from bottomless_server.reader.follow_answer import FollowResponse
from bottomless_server.reader.followers import Followers, FollowRequest
from bottomless_server.reader.page_query import (
    ARROW,
    CHUNKS,
    JSON,
    OCTETS,
    PAGE_PARAMETERS,
    RECORD_PARAMETERS,
    offered,
    page_query,
)
from bottomless_server.reader.page_reader import PageReader
from bottomless_server.reader.pages import Page, PageQuery
from bottomless_server.reader.verified import INLINE_SIZE_MAX
from bottomless_server.runtime.http.app import header, integer, negotiate, parse_query
from bottomless_server.runtime.http.connection import Places, while_connected
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.listener.gathered import GatheredResponse

_LINES: Final = Lines()
_HELD_SHARE_MAX: Final = 2
"""A page of a few records would keep a whole block of the cache while a slow client takes it."""


class RecordRoutes:
    def __init__(
        self, reader: PageReader, followers: Followers, waiters: Places, fences: Fences
    ) -> None:
        self._reader = reader
        self._followers = followers
        self._waiters = waiters
        self._fences = fences

    async def records(self, s: str, request: Request) -> Response:
        name = full_name_of(request.scope, s)
        values = parse_query(request.scope, PAGE_PARAMETERS)
        media_type = negotiate(header(request.scope, b"accept"), offered(values))
        query = page_query(values, media_type)
        encoding = ValueEncoding(values.get("value_encoding", ValueEncoding.AUTO))
        fence = self._fences.of(request.scope)
        if media_type == SSE or values.get("follow"):
            wanted = _wanted(name, query, values.get("limit"), encoding, request, media_type)
            return FollowResponse(self._followers, replace(wanted, fence=fence))
        if query.wait_ms:
            with self._waiters.one():
                page = await while_connected(request.receive, self._page(name, query, fence))
        else:
            page = await self._page(name, query, fence)
        requested = values["offset"][0]
        headers = page_headers(page)
        if query.until is None or page.next_offset < query.until:
            headers["Link"] = _next_link(request, page.next_offset)
        if page.is_immutable:
            form = " ".join((requested, media_type, encoding, *values.get("columns", ())))
            if query.wanted is not None:
                form = f"{form} {query.wanted}"
            headers["ETag"] = page_etag(page, form)
            if etag_matches(header(request.scope, b"if-none-match"), headers["ETag"], weak=True):
                return Response(None, 304, headers)

        def render() -> list[Piece]:
            if media_type == CHUNKS:
                return _sent(page, as_chunk_stream(page.chunks))
            if media_type == ARROW:
                return _sent(page, as_arrow_stream(page.table))
            members = _page_members(page, requested)
            if media_type == JSON:
                return [as_json(members, page.table, encoding)]
            del members["records"]
            return [_LINES.batch(page.table, encoding, members)]

        # JSON is made record by record, so their number is what costs as well.
        inline = page.size <= INLINE_SIZE_MAX and page.table.num_rows <= PAGE_RECORD_COUNT_DEFAULT
        body = render() if inline else await asyncio.to_thread(render)
        return GatheredResponse(body, 200, headers, media_type)

    async def _page(self, name: FullName, query: PageQuery, fence: Fence | None) -> Page:
        if fence is None:
            return await self._reader.page(name, query)
        return await fence.page(name, lambda: self._reader.page(name, query))

    async def record(self, s: str, offset: str, request: Request) -> Response:
        name = full_name_of(request.scope, s)
        wanted = _path_offset(offset)
        values = parse_query(request.scope, RECORD_PARAMETERS)
        media_type = negotiate(header(request.scope, b"accept"), (JSON, OCTETS))
        encoding = ValueEncoding(values.get("value_encoding", ValueEncoding.AUTO))
        query = PageQuery(At(wanted), 1, 1, strict=True, stream_id=values.get("expect_stream_id"))
        try:
            page = await self._reader.page(name, query)
        except OffsetGone as error:
            if error.code is not Code.OFFSET_OUT_OF_RANGE:
                raise
            raise _not_written(error.facts) from None
        bounds = {"first_offset": page.first_offset, "next_offset": page.committed_next}
        if page.gaps:
            raise OffsetGone("nothing is stored for this offset any more", facts=bounds)
        if page.count == 0:
            raise _not_written(bounds)
        (record,) = as_json_records(page.table, encoding)
        form = _digest(f"{media_type} {encoding}")
        headers = {
            "Stream-Id": page.stream.stream_id,
            "Stream-First-Offset": str(page.first_offset),
            "Stream-Next-Offset": str(page.committed_next),
            "Record-Offset": str(wanted),
            "Record-Timestamp": str(record["timestamp"]),
            "Cache-Control": "private, no-cache",
            # Strong: all of the answer is the record's own, and that never changes.
            "ETag": f'"{page.stream.stream_id}:{wanted}:{form}"',
        }
        if etag_matches(header(request.scope, b"if-none-match"), headers["ETag"], weak=True):
            return Response(None, 304, headers)
        if media_type == JSON:
            return Response(
                orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE), 200, headers, JSON
            )
        # Whatever the value is, a browser saves it and does not run it.
        headers["Content-Disposition"] = "attachment"
        return Response(page.table.column("value")[0].as_py(), 200, headers, OCTETS)


def _sent(page: Page, pieces: list[Piece]) -> list[Piece]:
    """The body as it waits for the client: views, unless they hold far more memory than they are."""
    if page.held_size <= _HELD_SHARE_MAX * page.size:
        return pieces
    return [b"".join(pieces)]


def page_etag(page: Page, form: str) -> str:
    """Weak, since bounds of the stream stand beside the records and do change; `form` says in what
    form they were asked for."""
    stream_id, shape = page.stream.stream_id, _digest(form)
    return f'W/"{stream_id}:{page.start.offset}:{page.next_offset}:{shape}"'


def page_headers(page: Page) -> dict[str, str]:
    """What every page says of itself and its stream, whatever its body is."""
    headers = {
        "Stream-Id": page.stream.stream_id,
        "Stream-First-Offset": str(page.first_offset),
        "Page-Start-Offset": str(page.start.offset),
        "Page-Next-Offset": str(page.next_offset),
        "Stream-Next-Offset": str(page.committed_next),
        "Stream-Up-To-Date": "true" if page.up_to_date else "false",
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
    if page.scan is not None:
        headers |= {
            "Page-Scanned-Bytes": str(page.scan.scanned_size),
            "Page-Skipped-Bytes": str(page.scan.skipped_size),
            "Page-Skipped-Fragments": str(page.scan.skipped_count),
        }
    return headers


def _wanted(
    name: FullName,
    query: PageQuery,
    limit: int | None,
    encoding: ValueEncoding,
    request: Request,
    media_type: str,
) -> FollowRequest:
    """What a client wants to follow; where it was before beats what it asks for.

    Raises:
        InvalidRequest, WrongOffset
    """
    if media_type == NDJSON:
        return FollowRequest(name, query, limit, encoding, lambda _: _LINES)
    event_id = header(request.scope, b"last-event-id")
    if event_id:
        stream_id, offset = parse_event_id(event_id)
        if query.stream_id not in (None, stream_id):
            raise WrongOffset("the event is of another stream", code=Code.STREAM_REPLACED)
        query = replace(query, spec=At(offset), stream_id=stream_id)
    return FollowRequest(name, query, limit, encoding, lambda page: Events(page.stream.stream_id))


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
        "up_to_date": page.up_to_date,
        "lag_records": page.committed_next - page.next_offset,
    }
    if page.gaps:
        members["gaps"] = [gap._asdict() for gap in page.gaps]
    if page.scan is not None:
        members |= {
            "scanned_bytes": page.scan.scanned_size,
            "skipped_bytes": page.scan.skipped_size,
            "skipped_fragments": page.scan.skipped_count,
        }
    return members


def _next_link(request: Request, next_offset: int) -> str:
    """The link to the next page: this request, from where this page ended."""
    others = [
        f"{quote(name)}={quote(value)}"
        for name, value in request.query_params.multi_items()
        if name not in ("offset", "consumer", "default")
    ]
    query = "&".join([f"offset={next_offset}", *others])
    return f'<{request.url.path}?{query}>; rel="next"'


def _path_offset(text: str) -> int:
    try:
        return int(integer(0, OFFSET_MAX)(text))
    except InvalidRequest as error:
        fault = Fault(Code.BAD_PARAMETER, error.message, parameter="offset")
        raise InvalidRequest(f"offset: {error.message}", faults=[fault]) from None


def _not_written(facts: Mapping[str, object]) -> StoreError:
    return NotFound(
        "no record is written at this offset yet", code=Code.OFFSET_NOT_FOUND, facts=facts
    )


def _digest(form: str) -> str:
    return hashlib.sha256(form.encode()).hexdigest()[:8]
