"""The retirement of a drive, and its loss, over HTTP. Contract: openapi/manifest.yaml."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, InvalidRequest
from bottomless.model.drive import DEFAULT_NAME, parse_drive_name
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.removal.drive_loss import DriveLoss
from bottomless_server.manifest.removal.drive_retirement import DriveRetirement
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import header, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import ClosedBody, read_closed_body


class _Loss(ClosedBody):
    confirm: str


def add_retirement_routes(
    api: FastAPI, context: Context, operations: Operations, mutators: Mutators
) -> None:
    retirement = DriveRetirement(context, operations)
    loss = DriveLoss(context, operations, mutators)

    async def delete(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        tenant = principal_of(request.scope).tenant
        return accepted(await retirement.begin(_name_in(request.path_params["d"]), tenant))

    async def post_lost(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        name = _name_in(request.path_params["d"])
        asked = await read_closed_body(request, _Loss)
        tenant = principal_of(request.scope).tenant
        return accepted(await loss.begin(name, asked.confirm, tenant))

    api.add_api_route("/v1/admin/drives/{d}", delete, methods=["DELETE"])
    api.add_api_route("/v1/admin/drives/{d}/lost", post_lost, methods=["POST"])


def _name_in(text: str) -> str:
    """The name of a drive in a path; that of drive 0 is one too, which is in no registry.

    Raises:
        InvalidRequest: `bad-name`.
    """
    try:
        return text if text == DEFAULT_NAME else parse_drive_name(text)
    except ValueError as error:
        raise InvalidRequest(str(error), code=Code.BAD_NAME) from error
