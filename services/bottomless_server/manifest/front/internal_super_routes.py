"""Internal paths about super streams: which partitions one has, and how records are divided.

Contract: openapi/internal.yaml.
"""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.protocol.registry import BY_NAME_QUERY, ByNameAsked
from bottomless_server.protocol.supers import (
    SUPER_BY_ID,
    SUPER_BY_NAME,
    encode_super_stream,
    super_id_in,
    super_name_in,
)
from bottomless_server.runtime.http.app import message_response, parse_query


def add_internal_super_routes(api: FastAPI, registry: Registry) -> None:
    async def by_name(request: Request) -> Response:
        asked = ByNameAsked(**parse_query(request.scope, BY_NAME_QUERY))
        record = await registry.supers.find(super_name_in(request.path_params, asked.tenant))
        return message_response(encode_super_stream(record))

    async def by_id(request: Request) -> Response:
        parse_query(request.scope, {})
        record = await registry.supers.load(super_id_in(request.path_params))
        return message_response(encode_super_stream(record))

    api.add_api_route(SUPER_BY_NAME, by_name, methods=["GET"])
    api.add_api_route(SUPER_BY_ID, by_id, methods=["GET"])
