"""Streams over HTTP: declare, describe, list, change, delete.

Contract: openapi/manifest.yaml.
"""

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.formats.stream_record import LEADERLESS, TIERS
from bottomless.model.config import StreamConfig, parse_config, patch_config
from bottomless.model.limits import KIB
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.core.preconditions import matches, require_match, require_precondition
from bottomless_server.core.scopes import Operation
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.preconditions import require_no_partition
from bottomless_server.manifest.mutators.bounds import StreamBounds
from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.registry.policy_drives import require_usable, usable_drives
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.registry.stream_description import (
    Shown,
    describe,
    describe_item,
    etag,
)
from bottomless_server.manifest.streams.deletion import Deletions
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import choice, header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import JSON, read_json
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.paging import (
    PAGE_COUNT_DEFAULT,
    PAGING,
    Paging,
    prefix_of_names,
)

CONFIG_BODY_SIZE_MAX: Final = 256 * KIB
"""Room for the largest set of labels, escaped."""
PATCH_TYPES: Final = ("application/merge-patch+json", JSON)
"""The second is what clients send that have no word for the first."""


def add_stream_routes(
    api: FastAPI,
    context: Context,
    registry: Registry,
    bounds: StreamBounds,
    deletions: Deletions,
    paging: Paging,
) -> None:
    routes = _StreamRoutes(context, registry, bounds, deletions, paging)
    path = "/v1/streams/{s}"
    api.add_api_route("/v1/streams", routes.list, methods=["GET"])
    api.add_api_route(path, routes.put, methods=["PUT"])
    api.add_api_route(path, routes.get, methods=["GET"])
    api.add_api_route(path, routes.head, methods=["HEAD"])
    api.add_api_route(path, routes.patch, methods=["PATCH"])
    api.add_api_route(path, routes.delete, methods=["DELETE"])


class _StreamRoutes:
    def __init__(
        self,
        context: Context,
        registry: Registry,
        bounds: StreamBounds,
        deletions: Deletions,
        paging: Paging,
    ) -> None:
        self._context = context
        self._registry = registry
        self._bounds = bounds
        self._deletions = deletions
        self._paging = paging

    async def list(self, request: Request) -> Response:
        parsers = {"prefix": prefix_of_names, "state": choice(*StreamState), **PAGING}
        query = parse_query(request.scope, parsers)
        negotiate(header(request.scope, b"accept"), [JSON])
        prefix, limit = query.get("prefix", ""), query.get("limit", PAGE_COUNT_DEFAULT)
        state = StreamState(query.get("state", StreamState.ACTIVE))
        principal = principal_of(request.scope)
        tenant = principal.tenant
        scope = ("streams", tenant, state, prefix)
        # Every member that starts with the prefix sorts after it: names end with NUL there.
        after = await self._paging.start_of(query.get("page_token"), scope) or prefix
        streams = self._context.streams
        found = await streams.names(tenant, state, after.encode("ascii"), limit + 1)
        named = [one for one in found if one.name.startswith(prefix)]
        page = named[:limit]
        loaded = await streams.load_many([one.stream_id for one in page])
        if len(loaded.records) + len(loaded.unreadable) < len(page):
            # Nothing is where the generation is not.
            await streams.check_generation()
        # One that was deleted between the two reads is not among them any more.
        shown = self._shown()
        items = [
            describe_item(record, shown)
            for record in loaded.records
            if record.state is state and principal.grants.allow(Operation.DESCRIBE, record.name)
        ]
        unreadable = [
            {"name": one.name, "stream_id": one.stream_id, "code": error.code.value}
            for one in page
            if (error := loaded.unreadable.get(one.stream_id)) is not None
            and principal.grants.allow(Operation.DESCRIBE, one.name)
        ]
        token = None
        if len(named) > limit:
            last = named[limit - 1].member().decode("ascii")
            token = await self._paging.token_for(last, scope)
        answer = {"items": items, "unreadable": unreadable, "next_page_token": token}
        return json_response(answer, headers=_UNCACHED)

    async def put(self, request: Request) -> Response:
        parse_query(request.scope, {})
        name = full_name_of(request.scope, request.path_params["s"])
        negotiate(header(request.scope, b"accept"), [JSON])
        config = await self._read_config(request)
        await self._require_drives(config)
        record, created = await self._registry.declare(name, config)
        members = await self._describe(record)
        headers = self._headers(record, members)
        if created:
            headers["location"] = f"/v1/streams/{name.name}"
        return json_response(members, 201 if created else 200, headers)

    async def get(self, request: Request) -> Response:
        parse_query(request.scope, {})
        name = full_name_of(request.scope, request.path_params["s"])
        negotiate(header(request.scope, b"accept"), [JSON])
        record = await self._registry.find(name)
        members = await self._describe(record)
        headers = self._headers(record, members)
        if matches(header(request.scope, b"if-none-match"), etag(record)):
            return Response(status_code=304, headers=headers)
        return json_response(members, 200, headers)

    async def head(self, request: Request) -> Response:
        answer = await self.get(request)
        headers = dict(answer.headers)
        return Response(status_code=answer.status_code, headers=headers)

    async def patch(self, request: Request) -> Response:
        parse_query(request.scope, {})
        name = full_name_of(request.scope, request.path_params["s"])
        negotiate(header(request.scope, b"accept"), [JSON])
        if_match = require_precondition(header(request.scope, b"if-match"))
        patch = await read_json(request, PATCH_TYPES, size_max=CONFIG_BODY_SIZE_MAX)
        says_tiers = self._tiered and isinstance(patch, dict) and bool(patch.get("tiers"))
        usable = await usable_drives(self._context) if says_tiers else frozenset()

        def change(record: StreamRecord) -> StreamConfig:
            require_no_partition(record)
            require_match(if_match, etag(record))
            config = patch_config(
                record.config, patch, leaderless=self._leaderless, tiered=self._tiered
            )
            if says_tiers:
                require_usable(config.tiers, usable)
            return config

        record = await self._registry.update(name, change)
        members = await self._describe(record)
        return json_response(members, 200, self._headers(record, members))

    async def delete(self, request: Request) -> Response:
        parse_query(request.scope, {})
        name = full_name_of(request.scope, request.path_params["s"])
        negotiate(header(request.scope, b"accept"), [JSON])
        operation = await self._deletions.begin(name, header(request.scope, b"if-match"))
        return accepted(operation, state=StreamState.DELETING, stream_id=operation.stream_id)

    async def _describe(self, record: StreamRecord) -> dict[str, Any]:
        root = await self._bounds.root(record)
        tail = await self._bounds.tail(record)
        if tail is None:
            committed_next = await self._bounds.committed_next(record)
        else:
            committed_next = tail.tail.next_offset
        return describe(record, root, committed_next, self._shown(), tail)

    def _shown(self) -> Shown:
        return Shown(self._context.settings.retention_default(), self._context.served)

    @property
    def _leaderless(self) -> bool:
        """Whether a request may ask for a stream without an owner."""
        return LEADERLESS in self._context.served

    @property
    def _tiered(self) -> bool:
        """Whether a request may say on which drives fragments belong."""
        return TIERS in self._context.served

    async def _read_config(self, request: Request) -> StreamConfig:
        """The configuration of a PUT; an empty body means defaults."""
        value = await read_json(request, optional=True, size_max=CONFIG_BODY_SIZE_MAX)
        return parse_config(value, leaderless=self._leaderless, tiered=self._tiered)

    async def _require_drives(self, config: StreamConfig) -> None:
        if config.tiers:
            require_usable(config.tiers, await usable_drives(self._context))

    def _headers(self, record: StreamRecord, members: Mapping[str, Any]) -> dict[str, str]:
        offsets = members["offsets"]
        headers = {
            "etag": etag(record),
            "stream-id": record.stream_id,
            "stream-first-offset": str(offsets["first"]),
            **_UNCACHED,
        }
        if offsets["next"] is not None:
            headers["stream-next-offset"] = str(offsets["next"])
        return headers


_UNCACHED: Final = {"cache-control": "private, no-cache"}
