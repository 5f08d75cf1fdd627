"""The internal path that says what members of consumer groups hold: for the reader.

Contract: openapi/internal.yaml.
"""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless_server.manifest.common.context import Context
from bottomless_server.protocol.group_members import HELD, HeldAsked, encode_held
from bottomless_server.runtime.http.app import message_response, parse_query
from bottomless_server.runtime.http.closed_body import read_closed_body
from bottomless_server.stores.groups import ConsumerGroups


def add_internal_group_routes(api: FastAPI, context: Context) -> None:
    groups = ConsumerGroups(context.coordination, context.served)

    async def find_held(request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, HeldAsked)
        return message_response(encode_held(await groups.held(asked.places())))

    api.add_api_route(HELD, find_held, methods=["POST"])
