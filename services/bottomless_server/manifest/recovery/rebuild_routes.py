"""The rebuild over HTTP.

Contract: openapi/manifest.yaml.
"""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.recovery.rebuild import Rebuild
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import header, negotiate, parse_query


def add_rebuild_routes(api: FastAPI, rebuild: Rebuild) -> None:
    async def post(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        return accepted(await rebuild.begin(principal_of(request.scope).tenant))

    api.add_api_route("/v1/admin/rebuild", post, methods=["POST"])
