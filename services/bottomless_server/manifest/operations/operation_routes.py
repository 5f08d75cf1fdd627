"""Operations over HTTP: what became of the work that a 202 promised.

Contract: openapi/manifest.yaml.
"""

from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.model.offset_spec import format_timestamp
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.stores.operations import Operation


def add_operation_routes(api: FastAPI, operations: Operations) -> None:
    async def get(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        operation = await operations.find_of(
            principal_of(request.scope).tenant, request.path_params["operation_id"]
        )
        return json_response(describe_operation(operation), 200, {"cache-control": "no-store"})

    api.add_api_route("/v1/operations/{operation_id}", get, methods=["GET"])


def accepted(operation: Operation, **members: Any) -> Response:
    """The answer of a request whose work goes on: 202, and where to ask for its end."""
    body = {"operation_id": operation.operation_id, **members}
    where = f"/v1/operations/{operation.operation_id}"
    return json_response(body, 202, {"location": where})


def describe_operation(operation: Operation) -> dict[str, Any]:
    shown = {name: value for name, value in operation.progress.items() if name[0] != "_"}
    return {
        "operation_id": operation.operation_id,
        "kind": operation.kind,
        "stream_id": operation.stream_id,
        "state": operation.state.value,
        "created_at": format_timestamp(operation.created_at),
        "updated_at": format_timestamp(operation.updated_at),
        "progress": shown,
        "result": operation.result,
        "error": operation.error,
    }
