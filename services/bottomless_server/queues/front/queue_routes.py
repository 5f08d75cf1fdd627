"""Queues as a whole over HTTP: create, describe, list, change, delete, look into, empty.

Contract: openapi/queues.yaml.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, NotFound, WrongOffset
from bottomless.model.limits import KIB, OFFSET_MAX
from bottomless.model.queue import QueueConfig, parse_queue_config, patch_queue_config
from bottomless_server.core.preconditions import matches, require_match, require_precondition
from bottomless_server.core.scopes import Operation
from bottomless_server.node.forwarding import was_taken
from bottomless_server.queues.bodies.answers import peeked_members, queue_etag, queue_members
from bottomless_server.queues.bodies.asking import read_purge, read_redrive
from bottomless_server.queues.calls import QueueDescription
from bottomless_server.queues.engine import QueueEngine
from bottomless_server.queues.front.requests import answer_room_of, queue_in
from bottomless_server.queues.front.targets import missing_stream
from bottomless_server.queues.homes import TenantHomes
from bottomless_server.queues.ports import OutgoingStreams
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import (
    boolean,
    choice,
    header,
    integer,
    json_response,
    negotiate,
    parse_query,
)
from bottomless_server.runtime.http.closed_body import JSON, read_json
from bottomless_server.runtime.http.paging import (
    PAGE_COUNT_DEFAULT,
    PAGING,
    Paging,
    prefix_of_names,
)

CONFIG_BODY_SIZE_MAX: Final = 256 * KIB
"""Room for the largest set of labels, escaped."""
PATCH_TYPES: Final = ("application/merge-patch+json", JSON)
PEEK_COUNT_DEFAULT: Final = 10
PEEK_COUNT_MAX: Final = 100
_UNCACHED: Final = {"cache-control": "private, no-cache"}
_LIST: Final = {"prefix": prefix_of_names, **PAGING}
_PEEK: Final = {
    "after": integer(0, OFFSET_MAX),
    "limit": integer(1, PEEK_COUNT_MAX),
    "state": choice("ready", "in-flight", "delayed", "damaged"),
}
_ATTEMPT_COUNT: Final = 8
"""Attempts at a change with `If-Match: *` that others overtake."""


def add_queue_routes(
    api: FastAPI,
    engine: Callable[[], QueueEngine],
    homes: TenantHomes,
    paging: Paging,
    streams: OutgoingStreams,
) -> None:
    routes = _QueueRoutes(engine, homes, paging, streams)
    path = "/v1/queues/{q}"
    api.add_api_route("/v1/queues", routes.list, methods=["GET"])
    api.add_api_route(path, routes.put, methods=["PUT"])
    api.add_api_route(path, routes.get, methods=["GET"])
    api.add_api_route(path, routes.head, methods=["HEAD"])
    api.add_api_route(path, routes.patch, methods=["PATCH"])
    api.add_api_route(path, routes.delete, methods=["DELETE"])
    api.add_api_route(f"{path}/messages", routes.peek, methods=["GET"])
    api.add_api_route(f"{path}/purge", routes.purge, methods=["POST"])
    api.add_api_route(f"{path}/redrive", routes.redrive, methods=["POST"])


class _QueueRoutes:
    def __init__(
        self,
        engine: Callable[[], QueueEngine],
        homes: TenantHomes,
        paging: Paging,
        streams: OutgoingStreams,
    ) -> None:
        self._engine = engine
        self._homes = homes
        self._paging = paging
        self._streams = streams

    async def list(self, request: Request) -> Response:
        query = parse_query(request.scope, _LIST)
        negotiate(header(request.scope, b"accept"), [JSON])
        prefix, limit = query.get("prefix", ""), query.get("limit", PAGE_COUNT_DEFAULT)
        principal = principal_of(request.scope)
        scope = ("queues", principal.tenant, prefix)
        after = await self._paging.start_of(query.get("page_token"), scope)
        page = await self._engine().list_queues(
            principal.tenant, prefix=prefix, after=after, limit=limit
        )
        # Of a request that was passed on, that is asked where its credential was shown.
        shown = [
            queue
            for queue in page.queues
            if was_taken(request.scope)
            or principal.grants.allow(Operation.QUEUE_DESCRIBE, queue.name)
        ]
        token = None if page.after is None else await self._paging.token_for(page.after, scope)
        hidden = [
            name
            for name in page.not_served
            if was_taken(request.scope) or principal.grants.allow(Operation.QUEUE_DESCRIBE, name)
        ]
        answer = {
            "items": [queue_members(queue) for queue in shown],
            "next_page_token": token,
            **({"not_served": hidden} if hidden else {}),
        }
        return json_response(answer, headers=_UNCACHED)

    async def put(self, request: Request) -> Response:
        parse_query(request.scope, {})
        tenant, name = _place(request)
        negotiate(header(request.scope, b"accept"), [JSON])
        value = await read_json(request, optional=True, size_max=CONFIG_BODY_SIZE_MAX)
        config = parse_queue_config(value)
        await self._require_targets(tenant, name, config)
        queue, created = await self._engine().create_queue(tenant, name, config)
        self._homes.require_still(tenant)
        headers = _headers(queue)
        if created:
            headers["location"] = f"/v1/queues/{name}"
        return json_response(queue_members(queue), 201 if created else 200, headers)

    async def _require_targets(self, tenant: str, name: str, config: QueueConfig) -> None:
        missing = await missing_stream(self._streams, tenant, config)
        if missing is None:
            return
        try:
            await self._engine().describe_queue(tenant, name)
        except NotFound as error:
            if error.code is not Code.QUEUE_NOT_FOUND:
                raise
            raise missing from error
        # It was made while they were there: what is asked for is that very queue, or another one.

    async def get(self, request: Request) -> Response:
        parse_query(request.scope, {})
        tenant, name = _place(request)
        negotiate(header(request.scope, b"accept"), [JSON])
        queue = await self._engine().describe_queue(tenant, name)
        headers = _headers(queue)
        if matches(header(request.scope, b"if-none-match"), queue_etag(queue)):
            return Response(status_code=304, headers=headers)
        return json_response(queue_members(queue), 200, headers)

    async def head(self, request: Request) -> Response:
        answer = await self.get(request)
        return Response(status_code=answer.status_code, headers=dict(answer.headers))

    async def patch(self, request: Request) -> Response:
        parse_query(request.scope, {})
        tenant, name = _place(request)
        negotiate(header(request.scope, b"accept"), [JSON])
        if_match = require_precondition(header(request.scope, b"if-match"))
        patch = await read_json(request, PATCH_TYPES, size_max=CONFIG_BODY_SIZE_MAX)
        queue = await self._patched(tenant, name, if_match, patch)
        self._homes.require_still(tenant)
        return json_response(queue_members(queue), 200, _headers(queue))

    async def _patched(
        self, tenant: str, name: str, if_match: str, patch: object
    ) -> QueueDescription:
        for attempt in range(_ATTEMPT_COUNT):
            seen = await self._engine().describe_queue(tenant, name)
            require_match(if_match, queue_etag(seen))
            config = patch_queue_config(seen.config, patch)
            missing = await missing_stream(self._streams, tenant, config, seen.config)
            if missing is not None:
                raise missing
            try:
                return await self._engine().update_queue(
                    tenant, name, patch, queue_id=seen.queue_id, version=seen.version
                )
            except WrongOffset:
                # Changed since it was looked at: what `If-Match` says decides once more.
                if attempt + 1 == _ATTEMPT_COUNT:
                    raise
        raise AssertionError("the last attempt raises")

    async def delete(self, request: Request) -> Response:
        query = parse_query(request.scope, {"if_empty": boolean})
        tenant, name = _place(request)
        await self._engine().delete_queue(tenant, name, if_empty=query.get("if_empty", False))
        self._homes.require_still(tenant)
        return Response(status_code=204)

    async def peek(self, request: Request) -> Response:
        query = parse_query(request.scope, _PEEK)
        tenant, name = _place(request)
        negotiate(header(request.scope, b"accept"), [JSON])
        found = await self._engine().peek(
            tenant,
            name,
            after=query.get("after"),
            limit=query.get("limit", PEEK_COUNT_DEFAULT),
            state=query.get("state"),
            room=answer_room_of(request.scope),
        )
        shown: Mapping[str, Any] = {
            "messages": [peeked_members(message) for message in found.messages],
            "after": found.after,
        }
        return json_response(shown, headers=_UNCACHED)

    async def purge(self, request: Request) -> Response:
        parse_query(request.scope, {})
        tenant, name = _place(request)
        negotiate(header(request.scope, b"accept"), [JSON])
        damaged = read_purge(await read_json(request, optional=True))
        purged = await self._engine().purge(tenant, name, damaged=damaged)
        self._homes.require_still(tenant)
        return json_response({"purged": purged})

    async def redrive(self, request: Request) -> Response:
        parse_query(request.scope, {})
        tenant, name = _place(request)
        negotiate(header(request.scope, b"accept"), [JSON])
        asked = read_redrive(await read_json(request, optional=True))
        done = await self._engine().redrive(tenant, name, limit=asked.limit, to=asked.to)
        self._homes.require_still(tenant)
        return json_response({"moved": done.moved, "left": done.left})


def _place(request: Request) -> tuple[str, str]:
    """The tenant and the queue that a request is about."""
    return principal_of(request.scope).tenant, queue_in(request.scope)


def _headers(queue: QueueDescription) -> dict[str, str]:
    return {"etag": queue_etag(queue), **_UNCACHED}
