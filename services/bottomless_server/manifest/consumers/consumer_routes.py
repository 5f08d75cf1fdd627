"""Stored offsets of consumers over HTTP: commit, ask, list, forget.

Contract: openapi/manifest.yaml; what a commit may do is decided in consumers/core/consumers.py.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, Fault, InvalidRequest, NotFound, Unavailable
from bottomless.model.consumer import StoredOffset
from bottomless.model.limits import KIB, OFFSET_MAX
from bottomless.model.names import Reference, parse_reference
from bottomless.model.stream import StreamRecord
from bottomless_server.core.consumer_group import GENERATION_MAX
from bottomless_server.core.preconditions import require_match
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.preconditions import check_stream_id
from bottomless_server.manifest.consumers.consumer_commits import ConsumerCommits
from bottomless_server.manifest.consumers.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.consumers.core.consumers import (
    Commit,
    check_committed,
    describe_lag,
    describe_offset,
    offset_etag,
    offset_not_found,
)
from bottomless_server.manifest.consumers.lags import Lags
from bottomless_server.manifest.mutators.bounds import StreamBounds
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import JSON, ClosedBody, read_closed_body
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.paging import PAGE_COUNT_DEFAULT, PAGING, Paging
from bottomless_server.runtime.identity.audit import note_action
from bottomless_server.stores.consumers import ConsumerOffsets
from bottomless_server.stores.groups import Claim

_BODY_SIZE_MAX: Final = 4 * KIB


class _CommitBody(ClosedBody):
    offset: Annotated[int, Field(ge=0, le=OFFSET_MAX)] | None = None
    next_offset: Annotated[int, Field(ge=0, le=OFFSET_MAX + 1)] | None = None
    allow_regression: bool = False
    expect_stream_id: str | None = None
    member_id: str | None = None
    generation: Annotated[int, Field(ge=0, le=GENERATION_MAX)] | None = None


def add_consumer_routes(
    api: FastAPI,
    context: Context,
    registry: Registry,
    bounds: StreamBounds,
    snapshots: ConsumerSnapshots,
    paging: Paging,
) -> None:
    routes = _ConsumerRoutes(context, registry, bounds, snapshots, paging)
    path = "/v1/streams/{s}/consumers"
    api.add_api_route(path, routes.list, methods=["GET"])
    api.add_api_route(path + "/{c}", routes.get_consumer, methods=["GET"])
    api.add_api_route(path + "/{c}/offset", routes.put, methods=["PUT"])
    api.add_api_route(path + "/{c}/offset", routes.get_offset, methods=["GET"])
    api.add_api_route(path + "/{c}/offset", routes.delete, methods=["DELETE"])


class _ConsumerRoutes:
    def __init__(
        self,
        context: Context,
        registry: Registry,
        bounds: StreamBounds,
        snapshots: ConsumerSnapshots,
        paging: Paging,
    ) -> None:
        self._context = context
        self._registry = registry
        self._bounds = bounds
        self._lags = Lags(context)
        self._snapshots = snapshots
        self._paging = paging
        self._offsets = ConsumerOffsets(context.coordination, context.served)
        self._commits = ConsumerCommits(context)

    async def list(self, request: Request) -> Response:
        query = parse_query(request.scope, PAGING)
        negotiate(header(request.scope, b"accept"), [JSON])
        record = await self._registry.find(full_name_of(request.scope, request.path_params["s"]))
        scope = ("consumers", record.stream_id)
        after = await self._paging.start_of(query.get("page_token"), scope)
        limit = query.get("limit", PAGE_COUNT_DEFAULT)
        found = await self._offsets.listed(record.stream_id, after, limit + 1)
        if not found.names or len(found.stored) + len(found.unreadable) < len(found.names):
            await self._context.streams.check_generation()
        page = found.names[:limit]
        stored = [found.stored[one] for one in page if one in found.stored]
        items = await self._describe_with_lags(record, stored)
        unreadable = [
            {"consumer": one, "code": found.unreadable[one].code.value}
            for one in page
            if one in found.unreadable
        ]
        token = None
        if len(found.names) > limit:
            token = await self._paging.token_for(page[-1], scope)
        answer = {"items": items, "unreadable": unreadable, "next_page_token": token}
        return json_response(answer, 200, _headers(record, None))

    async def get_consumer(self, request: Request) -> Response:
        return await self._get(request, _consumer_not_found())

    async def get_offset(self, request: Request) -> Response:
        return await self._get(request, offset_not_found())

    async def put(self, request: Request) -> Response:
        parse_query(request.scope, {})
        name = full_name_of(request.scope, request.path_params["s"])
        consumer = parse_reference(request.path_params["c"])
        negotiate(header(request.scope, b"accept"), [JSON])
        body = await read_closed_body(request, _CommitBody, size_max=_BODY_SIZE_MAX)
        asked = _asked(consumer, body, header(request.scope, b"if-match"))
        if asked.allow_regression:
            note_action(request.scope, "offset.force")
        record = await self._registry.find(name)
        check_stream_id(record, body.expect_stream_id)
        first_offset, committed_next = await self._ends(record)
        self._check(asked, record, committed_next)
        stored, changed = await self._commits.commit(record, asked, _claim(body))
        described = await self._describe(record, stored, first_offset, committed_next)
        return json_response({**described, "changed": changed}, 200, _headers(record, stored))

    async def delete(self, request: Request) -> Response:
        parse_query(request.scope, {})
        record = await self._registry.find(full_name_of(request.scope, request.path_params["s"]))
        consumer = parse_reference(request.path_params["c"])
        if_match = header(request.scope, b"if-match")

        def forget(stored: StoredOffset | None) -> None:
            if stored is None:
                raise offset_not_found()
            require_match(if_match, offset_etag(stored))

        try:
            await self._offsets.change(record.stream_id, consumer, forget, self._context.clock())
        except NotFound:
            await self._context.streams.check_generation()
            raise
        return Response(status_code=204, headers={"stream-id": record.stream_id})

    async def _get(self, request: Request, missing: NotFound) -> Response:
        parse_query(request.scope, {})
        record = await self._registry.find(full_name_of(request.scope, request.path_params["s"]))
        consumer = parse_reference(request.path_params["c"])
        negotiate(header(request.scope, b"accept"), [JSON])
        stored = await self._offsets.find(record.stream_id, consumer)
        if stored is None:
            # Who hears that nothing is stored begins anew: not where all of it was lost since
            # the stream was found.
            await self._context.streams.check_generation()
            raise missing
        (body,) = await self._describe_with_lags(record, [stored])
        return json_response(body, 200, _headers(record, stored))

    def _check(self, asked: Commit, record: StreamRecord, committed_next: int | None) -> None:
        if committed_next is not None:
            check_committed(asked.next_offset, committed_next)
        elif asked.next_offset > record.published_next:
            raise Unavailable(
                "whether the stream reaches this offset cannot be told now, since its owner does not answer",
                code=Code.NOT_OWNER,
                retry_after_seconds=1,
            )

    async def _ends(self, record: StreamRecord) -> tuple[int, int | None]:
        """First offset and committed next of the stream; None where nobody knows it now."""
        root = await self._bounds.root(record)
        return root.first_offset, await self._bounds.committed_next(record)

    async def _describe_with_lags(
        self, record: StreamRecord, stored: Sequence[StoredOffset]
    ) -> Sequence[dict[str, Any]]:
        """Describe offsets to who looks: also their lag in seconds and bytes."""
        root = await self._bounds.root(record)
        committed_next = await self._bounds.committed_next(record)
        positions = [one.next_offset for one in stored]
        lags = await self._lags.of(record, root, committed_next, positions)
        first_offset = root.first_offset
        return [
            {
                **await self._describe(record, one, first_offset, committed_next),
                **describe_lag(lag),
            }
            for one, lag in zip(stored, lags, strict=True)
        ]

    async def _describe(
        self,
        record: StreamRecord,
        stored: StoredOffset,
        first_offset: int,
        committed_next: int | None,
    ) -> dict[str, Any]:
        held = await self._snapshots.holds(record.stream_id, stored)
        return describe_offset(stored, first_offset, committed_next, in_snapshot=held)


def _asked(consumer: Reference, body: _CommitBody, if_match: str | None) -> Commit:
    if (body.offset is None) == (body.next_offset is None):
        sentence = "must have exactly one of offset and next_offset"
        raise InvalidRequest(
            sentence,
            code=Code.VALIDATION_FAILED,
            faults=[Fault("one-of", sentence, pointer="")],
        )
    next_offset = body.next_offset if body.offset is None else body.offset + 1
    assert next_offset is not None
    return Commit(consumer, next_offset, body.allow_regression, if_match)


def _claim(body: _CommitBody) -> Claim | None:
    """The member of a consumer group as which the commit is asked; None of whoever is in none."""
    if body.member_id is None and body.generation is None:
        return None
    # One without the other is said by no member, since the first generation is 1.
    return Claim(body.member_id or "", body.generation or 0)


def _headers(record: StreamRecord, stored: StoredOffset | None) -> dict[str, str]:
    headers = {"stream-id": record.stream_id, "cache-control": "private, no-cache"}
    if stored is not None:
        headers["etag"] = offset_etag(stored)
    return headers


def _consumer_not_found() -> NotFound:
    return NotFound(
        "this consumer has stored no offset in this stream", code=Code.CONSUMER_NOT_FOUND
    )
