"""The ingest nodes over HTTP: which there are, one emptied, all spread. Contract: openapi/manifest.yaml."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, NotFound
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.streams.node_moves import EVACUATE, REBALANCE
from bottomless_server.manifest.streams.replica_routes import node_in
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import header, message_response, negotiate, parse_query
from bottomless_server.stores.ingest_nodes import known_nodes, mark_emptied


def add_node_routes(api: FastAPI, context: Context, operations: Operations) -> None:
    async def get_nodes(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        items = [
            {
                "node": one.node_id,
                "url": one.url,
                "zone": None if one.facts is None else one.facts.zone,
                "release": None if one.facts is None else one.facts.release,
                "state": one.state,
                "left": one.left,
            }
            for one in await known_nodes(context.coordination)
        ]
        return message_response({"items": items})

    async def post_evacuate(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        node = node_in(request.path_params)
        if node not in {one.node_id for one in await known_nodes(context.coordination)}:
            raise NotFound("there is no node of this id", code=Code.NOT_FOUND)
        await mark_emptied(context.coordination, node)
        tenant = principal_of(request.scope).tenant
        return accepted(await operations.begin(EVACUATE, tenant=tenant, arguments={"node": node}))

    async def post_rebalance(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        tenant = principal_of(request.scope).tenant
        return accepted(await operations.begin(REBALANCE, tenant=tenant))

    api.add_api_route("/v1/nodes", get_nodes, methods=["GET"])
    api.add_api_route("/v1/admin/nodes/{node}/evacuate", post_evacuate, methods=["POST"])
    api.add_api_route("/v1/admin/rebalance", post_rebalance, methods=["POST"])
