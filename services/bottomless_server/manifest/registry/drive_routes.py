"""Drives over HTTP: which there are, and the registration of one. Contract: openapi/manifest.yaml."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.drive import parse_drive_name
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.registry.drive_registration import DriveRegistration
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import ClosedBody, read_closed_body


class _Registration(ClosedBody):
    name: str


def add_drive_routes(api: FastAPI, context: Context) -> None:
    drives = DriveRegistration(context)

    async def get(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        told = {"items": await drives.describe()}
        return json_response(told, headers={"cache-control": "no-store"})

    async def post(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        asked = await read_closed_body(request, _Registration)
        try:
            name = parse_drive_name(asked.name)
        except ValueError as error:
            raise InvalidRequest(
                "the body is not valid",
                code=Code.VALIDATION_FAILED,
                faults=[Fault("value-error", str(error), "/name")],
            ) from error
        drive = await drives.register(name)
        return json_response({"name": drive.name, "number": drive.number, "state": "used"})

    api.add_api_route("/v1/drives", get, methods=["GET"])
    api.add_api_route("/v1/admin/drives", post, methods=["POST"])
