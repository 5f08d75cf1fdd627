"""The public paths of the manifest: declare, describe.

Contract: openapi/manifest.yaml.
"""

from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.model.config import StreamConfig, parse_config
from bottomless.model.limits import KIB
from bottomless.model.names import parse_stream_name
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.committer import Committer
from bottomless_server.manifest.context import Context
from bottomless_server.manifest.mutator import Mutators
from bottomless_server.manifest.registry import Registry
from bottomless_server.manifest.view import describe, etag, known_committed_next, matches
from bottomless_server.runtime.http import (
    content_encoding,
    content_type,
    create_api,
    encode_json,
    header,
    json_response,
    negotiate,
    parse_json,
    parse_query,
    read_body,
)

CONFIG_BODY_SIZE_MAX: Final = 256 * KIB
"""Room for the largest set of labels, escaped."""
_JSON: Final = "application/json"


def public_api(context: Context, registry: Registry, mutators: Mutators) -> FastAPI:
    api = create_api("Bottomless manifest")
    routes = _Routes(context, registry, mutators)
    path = "/v1/streams/{s}"
    api.add_api_route(path, routes.put, methods=["PUT"])
    api.add_api_route(path, routes.get, methods=["GET"])
    api.add_api_route(path, routes.head, methods=["HEAD"])
    return api


class _Routes:
    def __init__(self, context: Context, registry: Registry, mutators: Mutators) -> None:
        self._context = context
        self._registry = registry
        self._mutators = mutators

    async def put(self, request: Request) -> Response:
        parse_query(request.scope, {})
        name = parse_stream_name(request.path_params["s"])
        negotiate(header(request.scope, b"accept"), [_JSON])
        config = await _read_config(request)
        record, created = await self._registry.declare(name, config)
        members = await self._describe(record)
        headers = self._headers(record, members)
        if created:
            headers["location"] = f"/v1/streams/{name}"
        return json_response(members, 201 if created else 200, headers)

    async def get(self, request: Request) -> Response:
        parse_query(request.scope, {})
        name = parse_stream_name(request.path_params["s"])
        negotiate(header(request.scope, b"accept"), [_JSON])
        record = await self._registry.find(name)
        members = await self._describe(record)
        headers = self._headers(record, members)
        if matches(header(request.scope, b"if-none-match"), etag(record)):
            return Response(status_code=304, headers=headers)
        return json_response(members, 200, headers)

    async def head(self, request: Request) -> Response:
        answer = await self.get(request)
        headers = dict(answer.headers)
        return Response(status_code=answer.status_code, headers=headers)

    async def _describe(self, record: StreamRecord) -> dict[str, Any]:
        async def root_of(committer: Committer) -> Any:
            if committer.record.root != record.root:
                await committer.refresh()
            return committer.keeper.root

        root = await self._mutators.at(record.stream_id).ask(root_of)
        return describe(record, root, await self._committed_next(record))

    async def _committed_next(self, record: StreamRecord) -> int | None:
        """What the owner says; what the record proves where there is no owner that answers."""
        asked = None
        if record.owner_url is not None:
            asked = await self._context.owners.committed_next(
                record.owner_url,
                record.stream_id,
                self._context.settings.manifest_owner_ms / 1000,
            )
        return known_committed_next(record) if asked is None else asked

    def _headers(self, record: StreamRecord, members: dict[str, Any]) -> dict[str, str]:
        offsets = members["offsets"]
        headers = {
            "etag": etag(record),
            "stream-id": record.stream_id,
            "stream-first-offset": str(offsets["first"]),
            "cache-control": "private, no-cache",
        }
        if offsets["next"] is not None:
            headers["stream-next-offset"] = str(offsets["next"])
        return headers


async def _read_config(request: Request) -> StreamConfig:
    """The configuration of a PUT; an empty body means defaults."""
    body = await read_body(request.scope, request.receive, CONFIG_BODY_SIZE_MAX)
    if not body:
        return parse_config({})
    content_type(request.scope, [_JSON])
    content_encoding(request.scope, ())
    value = parse_json(body)
    # Integers beyond 64 bits and lone surrogates have a code of their own.
    encode_json(value)
    return parse_config(value)
