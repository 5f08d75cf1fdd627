"""The nodes of a stream over HTTP. Contract: openapi/manifest.yaml."""

import re
from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, InvalidRequest
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.streams.replica_members import (
    ADD_REPLICA,
    REMOVE_REPLICA,
    check_addition,
    check_removal,
)
from bottomless_server.manifest.streams.replicas import CHANGE_OWNER, check_new_owner, replicas_of
from bottomless_server.runtime.http.app import header, message_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import ClosedBody, read_closed_body
from bottomless_server.runtime.http.full_names import full_name_of

_NODE: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class _OwnerBody(ClosedBody):
    node: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


def node_in(path_params: Mapping[str, str]) -> NodeId:
    """The node that a path is about.

    Raises:
        InvalidRequest: it is not the id of a node.
    """
    node = path_params["node"]
    if not _NODE.fullmatch(node):
        sentence = "the id of a node has 32 hexadecimal digits"
        raise InvalidRequest(sentence, code=Code.BAD_NAME)
    return NodeId(node)


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

    async def put_replica(request: Request) -> Response:
        record, node = await named(request)
        await check_addition(context, record, node)
        return accepted(await operations.begin_for(record, ADD_REPLICA, arguments={"node": node}))

    async def delete_replica(request: Request) -> Response:
        record, node = await named(request)
        check_removal(record, node)
        begun = await operations.begin_for(record, REMOVE_REPLICA, arguments={"node": node})
        return accepted(begun)

    async def named(request: Request) -> tuple[StreamRecord, NodeId]:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        record = await registry.find(full_name_of(request.scope, request.path_params["s"]))
        return record, node_in(request.path_params)

    api.add_api_route("/v1/streams/{s}/replicas/{node}", put_replica, methods=["PUT"])
    api.add_api_route("/v1/streams/{s}/replicas/{node}", delete_replica, methods=["DELETE"])
    api.add_api_route("/v1/streams/{s}/replicas", get_replicas, methods=["GET"])
    api.add_api_route("/v1/admin/streams/{s}/owner", post_owner, methods=["POST"])
