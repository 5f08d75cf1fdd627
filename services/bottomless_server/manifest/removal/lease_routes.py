"""Leases over HTTP: hold a range against physical deletion while a long job reads it.

Contract: openapi/manifest.yaml. A lease is a promise of some hours at most: who needs more
renews it, and a job that died holds nothing for ever.
"""

from typing import Annotated, Any, Final

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.stream import LEASE_HOLDER_SIZE_MAX, Lease, StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.preconditions import check_stream_id
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.removal.range_leases import give_back, grant, renew
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import ClosedBody, read_closed_body
from bottomless_server.runtime.http.full_names import full_name_of

TTL_SECONDS_DEFAULT: Final = 600

_Ttl = Annotated[int, Field(ge=1, le=366 * 86_400)]
_Offset = Annotated[int, Field(ge=0, le=OFFSET_MAX + 1)]


class _Grant(ClosedBody):
    first_offset: _Offset
    next_offset: _Offset | None = None
    ttl_seconds: _Ttl = TTL_SECONDS_DEFAULT
    holder: Annotated[str, Field(max_length=LEASE_HOLDER_SIZE_MAX)] = ""
    expect_stream_id: str | None = None


class _Renew(ClosedBody):
    ttl_seconds: _Ttl = TTL_SECONDS_DEFAULT


def add_lease_routes(api: FastAPI, context: Context, registry: Registry) -> None:
    routes = _LeaseRoutes(context, registry)
    path = "/v1/streams/{s}/leases"
    api.add_api_route(path, routes.post, methods=["POST"])
    api.add_api_route(path + "/{lease_id}", routes.put, methods=["PUT"])
    api.add_api_route(path + "/{lease_id}", routes.delete, methods=["DELETE"])


class _LeaseRoutes:
    def __init__(self, context: Context, registry: Registry) -> None:
        self._context = context
        self._registry = registry

    async def post(self, request: Request) -> Response:
        record = await self._begin(request)
        asked = await read_closed_body(request, _Grant)
        check_stream_id(record, asked.expect_stream_id)
        lease = Lease(
            lease_id=f"ls_{self._context.new_uid()}",
            first_offset=asked.first_offset,
            next_offset=self._end(record, asked),
            expires_at=self._context.time.latest() + self._ttl_ms(asked.ttl_seconds),
            holder=asked.holder,
        )
        context = self._context
        await grant(context.streams, record.stream_id, lease, await context.time.over())
        where = f"/v1/streams/{record.name}/leases/{lease.lease_id}"
        return json_response(describe_lease(lease), 201, {"location": where})

    async def put(self, request: Request) -> Response:
        record = await self._begin(request)
        asked = await read_closed_body(request, _Renew, optional=True)
        over = await self._context.time.over()
        lease = await renew(
            self._context.streams,
            record.stream_id,
            request.path_params["lease_id"],
            self._context.time.latest() + self._ttl_ms(asked.ttl_seconds),
            over,
        )
        return json_response(describe_lease(lease))

    async def delete(self, request: Request) -> Response:
        record = await self._begin(request)
        lease_id = request.path_params["lease_id"]
        over = await self._context.time.over()
        await give_back(self._context.streams, record.stream_id, lease_id, over)
        return Response(status_code=204)

    def _end(self, record: StreamRecord, asked: _Grant) -> int:
        end = record.published_next if asked.next_offset is None else asked.next_offset
        if asked.next_offset is not None and asked.next_offset < asked.first_offset:
            raise InvalidRequest(
                "the range must not end before it begins",
                code=Code.VALIDATION_FAILED,
                faults=[Fault("range-reversed", "must not be below first_offset", "/next_offset")],
            )
        return max(end, asked.first_offset)

    def _ttl_ms(self, ttl_seconds: int) -> int:
        return min(ttl_seconds, self._context.settings.manifest_lease_seconds_max) * 1000

    async def _begin(self, request: Request) -> StreamRecord:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        return await self._registry.find(full_name_of(request.scope, request.path_params["s"]))


def describe_lease(lease: Lease) -> dict[str, Any]:
    return {
        "lease_id": lease.lease_id,
        "first_offset": lease.first_offset,
        "next_offset": lease.next_offset,
        "expires_at": format_timestamp(lease.expires_at),
        "holder": lease.holder,
    }
