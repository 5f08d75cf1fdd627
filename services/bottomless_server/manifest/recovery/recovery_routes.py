"""Recovery over HTTP: the rebuild of coordination, and what an operator accepts as lost.

Contract: openapi/manifest.yaml.
"""

from typing import Annotated, Literal

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import NodeId
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.accept_gap import check_gap
from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.recovery.home_operations import (
    ACCEPT_GAP,
    TAKEOVER,
    check_takeover,
)
from bottomless_server.manifest.recovery.rebuild import Rebuild
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import header, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import ClosedBody, read_closed_body
from bottomless_server.runtime.http.full_names import full_name_of


class _TakeoverBody(ClosedBody):
    accept_loss: Literal[True]
    """Nothing else is accepted: this is the sentence that has to be said."""
    expect_home: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    node: Annotated[str | None, Field(pattern=r"^[0-9a-f]{32}$")] = None


class _GapBody(ClosedBody):
    accept_loss: Literal[True]
    next_offset: Annotated[int, Field(ge=1, le=OFFSET_MAX)]
    """Where the log of the owner begins, so that nobody accepts a loss that was not looked at."""


def add_recovery_routes(
    api: FastAPI,
    context: Context,
    registry: Registry,
    operations: Operations,
    rebuild: Rebuild,
) -> None:
    async def post_takeover(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        record = await registry.find(full_name_of(request.scope, request.path_params["s"]))
        asked = await read_closed_body(request, _TakeoverBody)
        home = NodeId(asked.expect_home)
        node = None if asked.node is None else NodeId(asked.node)
        named = await check_takeover(context, record, home, node)
        arguments = {"home": home, "epoch": record.epoch}
        if named is not None:
            arguments |= named._asdict()
        operation = await operations.begin_for(record, TAKEOVER, arguments=arguments)
        return accepted(operation)

    async def post_gap(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        record = await registry.find(full_name_of(request.scope, request.path_params["s"]))
        asked = await read_closed_body(request, _GapBody)
        await check_gap(context, record, asked.next_offset)
        operation = await operations.begin_for(
            record, ACCEPT_GAP, arguments={"next_offset": asked.next_offset}
        )
        return accepted(operation)

    async def post_rebuild(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        return accepted(await rebuild.begin(principal_of(request.scope).tenant))

    api.add_api_route("/v1/admin/streams/{s}/takeover", post_takeover, methods=["POST"])
    api.add_api_route("/v1/admin/streams/{s}/gap", post_gap, methods=["POST"])
    api.add_api_route("/v1/admin/rebuild", post_rebuild, methods=["POST"])
