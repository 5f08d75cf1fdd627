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
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.preconditions import check_stream_id
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.retention import records_lost
from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.removal.retention_operations import RETENTION, TRIM
from bottomless_server.manifest.tree.core.retention_decision import RetentionDecision
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import ClosedBody, read_closed_body
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.stores.consumers import ConsumerOffsets


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
        decision = await self._mutators.of(record.stream_id).preview(_retention(asked))
        affected = await _affected_consumers(self._context, record, decision)
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

        effective = await self._mutators.of(record.stream_id).preview_trim(
            asked.before_offset, allow_empty=asked.allow_empty
        )
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


async def _affected_consumers(
    context: Context, record: StreamRecord, decision: RetentionDecision
) -> list[dict[str, Any]]:
    """Consumers whose stored offset is below the floor to be, with what lies between.

    Only records that are there now count: what an earlier cut removed is lost already.
    """
    if decision.cut.floor == decision.root.first_offset:
        return []
    affected = []
    for stored in await ConsumerOffsets(context.coordination, context.served).all(record.stream_id):
        lost = await records_lost(context, record.tenant, decision, stored.next_offset)
        if lost:
            affected.append(
                {
                    "consumer": stored.consumer,
                    "next_offset": stored.next_offset,
                    "would_lose_records": lost,
                }
            )
    return affected
