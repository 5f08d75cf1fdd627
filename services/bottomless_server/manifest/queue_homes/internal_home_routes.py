"""The internal path by which a node of the queues service becomes the home of a tenant's queues.

Contract: openapi/internal.yaml.
"""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.model.names import NodeId
from bottomless_server.manifest.queue_homes.core.home_decision import HomeAsked
from bottomless_server.manifest.queue_homes.homes import Homes
from bottomless_server.protocol.queue_homes import (
    QUEUE_HOME,
    HomeAskedBody,
    encode_home_said,
    home_tenant_in,
)
from bottomless_server.runtime.http.app import message_response, parse_query
from bottomless_server.runtime.http.closed_body import read_closed_body


def add_internal_home_routes(api: FastAPI, homes: Homes) -> None:
    async def post(request: Request) -> Response:
        parse_query(request.scope, {})
        tenant = home_tenant_in(request.path_params)
        body = await read_closed_body(request, HomeAskedBody)
        expected = None if body.expect_home is None else NodeId(body.expect_home)
        asked = HomeAsked(NodeId(body.node_id), body.url, expected)
        return message_response(encode_home_said(await homes.settle(tenant, asked)))

    api.add_api_route(QUEUE_HOME, post, methods=["POST"])
