"""Operations over HTTP: what became of the work that a 202 promised.

Contract: openapi/manifest.yaml.
"""

from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.model.offset_spec import format_timestamp
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import (
    choice,
    header,
    json_response,
    negotiate,
    parse_query,
)
from bottomless_server.runtime.http.paging import PAGE_COUNT_DEFAULT, PAGING, Paging
from bottomless_server.stores.operations import Operation, OperationState

_UNCACHED: Final = {"cache-control": "no-store"}


def add_operation_routes(api: FastAPI, operations: Operations, paging: Paging) -> None:
    async def list_all(request: Request) -> Response:
        query = parse_query(request.scope, {**PAGING, "state": choice(*OperationState)})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        tenant, state = principal_of(request.scope).tenant, query.get("state")
        scope = ("operations", tenant, state or "")
        before = await paging.start_of(query.get("page_token"), scope)
        limit = query.get("limit", PAGE_COUNT_DEFAULT)
        found, after = await operations.listed(tenant, before or None, limit)
        items = [_item(one) for one in found if state in (None, one.state.value)]
        token = None if after is None else await paging.token_for(after, scope)
        answer = {"items": items, "next_page_token": token}
        return json_response(answer, 200, _UNCACHED)

    async def get(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        operation = await operations.find_of(
            principal_of(request.scope).tenant, request.path_params["operation_id"]
        )
        return json_response(describe_operation(operation), 200, _UNCACHED)

    api.add_api_route("/v1/operations", list_all, methods=["GET"])
    api.add_api_route("/v1/operations/{operation_id}", get, methods=["GET"])


def accepted(operation: Operation, **members: Any) -> Response:
    """The answer of a request whose work goes on: 202, and where to ask for its end."""
    body = {"operation_id": operation.operation_id, **members}
    where = f"/v1/operations/{operation.operation_id}"
    return json_response(body, 202, {"location": where})


def _item(operation: Operation) -> dict[str, Any]:
    """What a list says of one: without its progress and result, of which either may be long."""
    return {
        "operation_id": operation.operation_id,
        "kind": operation.kind,
        "stream_id": operation.stream_id,
        "state": operation.state.value,
        "created_at": format_timestamp(operation.created_at),
        "updated_at": format_timestamp(operation.updated_at),
    }


def describe_operation(operation: Operation) -> dict[str, Any]:
    shown = {name: value for name, value in operation.progress.items() if name[0] != "_"}
    return {
        **_item(operation),
        "progress": shown,
        "result": operation.result,
        "error": operation.error,
    }
