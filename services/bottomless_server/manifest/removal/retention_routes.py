"""Retention and trim over HTTP: preview, evaluate now, trim before an offset.

Contract: openapi/manifest.yaml.
"""

from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.model.config import RetentionConfig, parse_config
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.closed_body import ClosedBody, read_closed_body
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.preconditions import check_stream_id
from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.removal.affected import affected_consumers
from bottomless_server.manifest.removal.retention import find_trim, floor_after, preview
from bottomless_server.manifest.removal.retention_operations import RETENTION, TRIM
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.retention_decision import RetentionDecision
from bottomless_server.manifest.tree.mutator import Mutators
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.full_names import full_name_of


class _Preview(ClosedBody):
    retention: Any = None
    """Checked as that of PUT is."""


class _Evaluate(ClosedBody):
    pass


class _Trim(ClosedBody):
    before_offset: Annotated[int, Field(ge=0, le=OFFSET_MAX + 1)]
    expect_stream_id: str | None = None
    allow_empty: bool = False


def add_retention_routes(
    api: FastAPI, context: Context, registry: Registry, mutators: Mutators, operations: Operations
) -> None:
    routes = _RetentionRoutes(context, registry, mutators, operations)
    path = "/v1/streams/{s}"
    api.add_api_route(path + "/retention/preview", routes.preview, methods=["POST"])
    api.add_api_route(path + "/retention/evaluate", routes.evaluate, methods=["POST"])
    api.add_api_route(path + "/trim", routes.trim, methods=["POST"])


class _RetentionRoutes:
    def __init__(
        self, context: Context, registry: Registry, mutators: Mutators, operations: Operations
    ) -> None:
        self._context = context
        self._registry = registry
        self._mutators = mutators
        self._operations = operations

    async def preview(self, request: Request) -> Response:
        record = await self._begin(request)
        asked = await read_closed_body(request, _Preview, optional=True)
        retention = _retention(asked)

        async def work(committer: Committer) -> RetentionDecision:
            return await preview(self._context, committer, retention)

        decision = await self._mutators.at(record.stream_id).ask(work)
        affected = await affected_consumers(self._context, record, decision)
        body = {**decision.described(), "affected_consumers": affected}
        return json_response(body, 200, _headers(record))

    async def evaluate(self, request: Request) -> Response:
        record = await self._begin(request)
        await read_closed_body(request, _Evaluate, optional=True)
        return accepted(await self._operations.begin_for(record, RETENTION))

    async def trim(self, request: Request) -> Response:
        record = await self._begin(request)
        asked = await read_closed_body(request, _Trim)
        check_stream_id(record, asked.expect_stream_id)

        async def floor(committer: Committer) -> int:
            await committer.refresh()
            root = committer.keeper.root
            edit = await find_trim(
                self._context, committer.record, root, asked.before_offset, asked.allow_empty
            )
            return floor_after(edit, root)

        effective = await self._mutators.at(record.stream_id).ask(floor)
        operation = await self._operations.begin_for(
            record,
            TRIM,
            arguments={"before_offset": asked.before_offset, "allow_empty": asked.allow_empty},
        )
        # Below the floor that is there already all is gone too: no more than asked for is said.
        return accepted(operation, effective_before_offset=min(effective, asked.before_offset))

    async def _begin(self, request: Request) -> StreamRecord:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        return await self._registry.find(full_name_of(request.scope, request.path_params["s"]))


def _retention(asked: _Preview) -> RetentionConfig | None:
    if asked.retention is None:
        return None
    return parse_config({"retention": asked.retention}).retention


def _headers(record: StreamRecord) -> dict[str, str]:
    return {"stream-id": record.stream_id, "cache-control": "no-store"}
