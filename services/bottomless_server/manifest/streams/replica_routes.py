"""The nodes of a stream over HTTP. Contract: openapi/manifest.yaml."""

from typing import Annotated

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.model.names import NodeId
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.streams.replicas import CHANGE_OWNER, check_new_owner, replicas_of
from bottomless_server.runtime.http.app import header, message_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import ClosedBody, read_closed_body
from bottomless_server.runtime.http.full_names import full_name_of


class _OwnerBody(ClosedBody):
    node: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


def add_replica_routes(
    api: FastAPI, context: Context, registry: Registry, operations: Operations
) -> None:
    async def get_replicas(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        record = await registry.find(full_name_of(request.scope, request.path_params["s"]))
        return message_response(await replicas_of(context, record))

    async def post_owner(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        record = await registry.find(full_name_of(request.scope, request.path_params["s"]))
        node = NodeId((await read_closed_body(request, _OwnerBody)).node)
        await check_new_owner(context, record, node)
        return accepted(await operations.begin_for(record, CHANGE_OWNER, arguments={"node": node}))

    api.add_api_route("/v1/streams/{s}/replicas", get_replicas, methods=["GET"])
    api.add_api_route("/v1/admin/streams/{s}/owner", post_owner, methods=["POST"])
