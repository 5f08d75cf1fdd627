"""WAL objects over HTTP. Contract: openapi/manifest.yaml."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.leaderless.wal_report import describe_wal
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query


def add_wal_routes(api: FastAPI, context: Context) -> None:
    async def get(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        return json_response(await describe_wal(context), headers={"cache-control": "no-store"})

    api.add_api_route("/v1/admin/wal", get, methods=["GET"])
