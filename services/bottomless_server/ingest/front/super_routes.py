"""The public routes of super streams that are ingest's: openapi/ingest.yaml.

On the record's path: before super_produce.py.
"""

from typing import Final

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import KIB
from bottomless.model.names import parse_reference
from bottomless_server.ingest.front.super_answers import answer_of
from bottomless_server.ingest.front.super_produce import SuperProduce
from bottomless_server.runtime.http.app import (
    header,
    json_response,
    negotiate,
    parse_query,
    read_body,
    request_id_of,
)

_SUPER_STREAM: Final = "/v1/super-streams/{s}"
OPERATIONS: Final = frozenset({"append_to_super_stream", "raise_super_producer_epoch"})
"""What ingest answers of super streams, for which no stream's owner is asked first."""


class SuperRoutes:
    """The routes of super streams; `s` and `p` are the names of super stream and producer."""

    def __init__(self, produce: SuperProduce) -> None:
        self._produce = produce

    async def append(self, s: str, request: Request) -> Response:
        """Append records to the partitions of their keys."""
        results = await self._produce.take(s, request.scope, request.receive)
        answer = answer_of(results, request_id_of(request.scope))
        headers = {"idempotent-replayed": "true"} if answer.replayed else None
        return json_response(answer.members, answer.status, headers)

    async def raise_epoch(self, s: str, p: str, request: Request) -> Response:
        """Lock earlier runs of a producer out, and answer its new epoch."""
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        producer_id = parse_reference(p)
        if await read_body(request.scope, request.receive, KIB):
            raise InvalidRequest("this request takes no body", code=Code.VALIDATION_FAILED)
        said = await self._produce.raise_epoch(s, producer_id, request.scope)
        return json_response(
            {"producer_id": producer_id, "epoch": said.epoch, "last_seq": said.last}
        )


def add_super_routes(api: FastAPI, produce: SuperProduce) -> None:
    """Serve super streams beside what `api` serves."""
    routes = SuperRoutes(produce)
    api.add_api_route(
        f"{_SUPER_STREAM}/records",
        routes.append,
        methods=["POST"],
        operation_id="append_to_super_stream",
    )
    api.add_api_route(
        f"{_SUPER_STREAM}/producers/{{p}}/epoch",
        routes.raise_epoch,
        methods=["POST"],
        operation_id="raise_super_producer_epoch",
    )
