"""What operators ask of a node of queues: its disk, a compaction, a takeover.

Contract: openapi/queues.yaml.
"""

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.model.names import NodeId, parse_tenant
from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.queues.calls import StorageFigures
from bottomless_server.queues.engine import QueueEngine
from bottomless_server.queues.homes import TenantHomes
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import JSON, ClosedBody, read_closed_body
from bottomless_server.runtime.identity.audit import note_target


class _TakeoverBody(ClosedBody):
    tenant: str
    accept_loss: Literal[True]
    """Nothing else is accepted: this is the sentence that has to be said."""
    expect_home: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


def add_admin_routes(
    api: FastAPI,
    engine: Callable[[], QueueEngine],
    homes: TenantHomes,
    directory: DataDirectory,
) -> None:
    async def get_store(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), [JSON])
        found = await engine().storage()
        answer = {"node_id": directory.node_id, **_storage_members(found)}
        return json_response(answer, headers={"cache-control": "private, no-cache"})

    async def post_compact(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), [JSON])
        return json_response({"scheduled": await engine().compact()})

    async def post_takeover(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), [JSON])
        asked = await read_closed_body(request, _TakeoverBody)
        tenant = parse_tenant(asked.tenant)
        note_target(request.scope, tenant)
        said = await homes.take_over(tenant, NodeId(asked.expect_home))
        return json_response({"tenant": tenant, "home": said.node_id, "term": said.term})

    api.add_api_route("/v1/admin/queue-store", get_store, methods=["GET"])
    api.add_api_route("/v1/admin/queue-store/compact", post_compact, methods=["POST"])
    api.add_api_route("/v1/admin/queues/takeover", post_takeover, methods=["POST"])


def _storage_members(found: StorageFigures) -> dict[str, Any]:
    states = Counter(file.state.name.lower() for file in found.files)
    return {
        "store_id": found.store_id.hex(),
        "round": found.round,
        "files": dict(states),
        "damaged_files": found.damaged_files,
        "disk_bytes": found.disk_bytes,
        "live_bytes": found.live_bytes,
        "ledger_bytes": found.ledger_bytes,
        "log_bytes": found.log_bytes,
        "last_v1_file": found.last_v1_file,
        "outgoing": [one._asdict() for one in found.outgoing],
        "pins": found.pins,
        "compactions": dict(found.compactions),
        "moved_bytes": found.moved_bytes,
    }
