"""The internal paths by which a node of queues is let in, and becomes the home of a tenant's queues.

Contract: openapi/internal.yaml.
"""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.model.names import NodeId
from bottomless.model.queue_start import QueueStart
from bottomless_server.manifest.queue_homes.core.home_decision import HomeAsked
from bottomless_server.manifest.queue_homes.core.start_decision import StartAsked
from bottomless_server.manifest.queue_homes.homes import Homes
from bottomless_server.manifest.queue_homes.starts import Starts
from bottomless_server.protocol.queue_homes import (
    QUEUE_HOME,
    HomeAskedBody,
    encode_home_said,
    home_tenant_in,
)
from bottomless_server.protocol.queue_starts import (
    QUEUE_START,
    StartAskedBody,
    encode_start_said,
    start_node_in,
)
from bottomless_server.runtime.http.app import message_response, parse_query
from bottomless_server.runtime.http.closed_body import read_closed_body


def add_internal_home_routes(api: FastAPI, homes: Homes, starts: Starts) -> None:
    async def post(request: Request) -> Response:
        parse_query(request.scope, {})
        tenant = home_tenant_in(request.path_params)
        body = await read_closed_body(request, HomeAskedBody)
        expected = None if body.expect_home is None else NodeId(body.expect_home)
        asked = HomeAsked(NodeId(body.node_id), body.url, expected)
        return message_response(encode_home_said(await homes.settle(tenant, asked)))

    async def post_start(request: Request) -> Response:
        parse_query(request.scope, {})
        node_id = start_node_in(request.path_params)
        body = await read_closed_body(request, StartAskedBody)
        start = QueueStart(node_id, 0, body.token, body.lock, body.url, body.started_at)
        asked = StartAsked(start, body.known, body.accept_loss)
        said = await (starts.look(asked) if body.only_look else starts.settle(asked))
        return message_response(encode_start_said(said))

    api.add_api_route(QUEUE_HOME, post, methods=["POST"])
    api.add_api_route(QUEUE_START, post_start, methods=["POST"])
