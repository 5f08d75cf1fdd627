"""Super streams over HTTP: declare, describe, list, change, delete; and where a key goes.

Contract: openapi/manifest.yaml.
"""

from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, Corrupt, Fault, InvalidRequest, NotFound
from bottomless.formats.stream_record import TIERS
from bottomless.model.config import StreamConfig, patch_config
from bottomless.model.filter import parse_key, parse_key_base64
from bottomless.model.limits import KIB
from bottomless.model.names import SuperId
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.core.preconditions import matches, require_match, require_precondition
from bottomless_server.core.scopes import Operation
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.registry.policy_drives import require_usable, usable_drives
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.registry.stream_description import Shown
from bottomless_server.manifest.registry.super_asked import parse_super_config
from bottomless_server.manifest.registry.super_description import (
    describe_partition,
    describe_super,
    describe_super_item,
    partition_of_key,
    super_etag,
)
from bottomless_server.manifest.streams.stream_routes import PATCH_TYPES
from bottomless_server.manifest.streams.super_deletion import SuperDeletions
from bottomless_server.manifest.streams.super_growth import SuperGrowth, asked_growth
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import JSON, read_json
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.paging import PAGE_COUNT_DEFAULT, PAGING, Paging

_BODY_SIZE_MAX: Final = 1_024 * KIB
"""Room for a thousand keys of partitions, and the largest set of labels, escaped."""
_UNCACHED: Final = {"cache-control": "private, no-cache"}


def add_super_routes(
    api: FastAPI,
    context: Context,
    registry: Registry,
    growth: SuperGrowth,
    deletions: SuperDeletions,
    paging: Paging,
) -> None:
    routes = _SuperRoutes(context, registry, growth, deletions, paging)
    path = "/v1/super-streams/{s}"
    api.add_api_route("/v1/super-streams", routes.list, methods=["GET"])
    api.add_api_route(path, routes.put, methods=["PUT"])
    api.add_api_route(path, routes.get, methods=["GET"])
    api.add_api_route(path, routes.patch, methods=["PATCH"])
    api.add_api_route(path, routes.delete, methods=["DELETE"])
    api.add_api_route(path + "/route", routes.route, methods=["GET"])


class _SuperRoutes:
    def __init__(
        self,
        context: Context,
        registry: Registry,
        growth: SuperGrowth,
        deletions: SuperDeletions,
        paging: Paging,
    ) -> None:
        self._context = context
        self._registry = registry
        self._supers = registry.supers
        self._growth = growth
        self._deletions = deletions
        self._paging = paging

    async def list(self, request: Request) -> Response:
        query = parse_query(request.scope, PAGING)
        negotiate(header(request.scope, b"accept"), [JSON])
        principal = principal_of(request.scope)
        scope = ("super-streams", principal.tenant)
        limit = query.get("limit", PAGE_COUNT_DEFAULT)
        after = await self._paging.start_of(query.get("page_token"), scope)
        stored = self._supers.supers
        named = await stored.names(principal.tenant, after.encode("ascii"), limit + 1)
        items, unreadable = [], []
        for one in named[:limit]:
            if not principal.grants.allow(Operation.DESCRIBE, one.name):
                continue
            super_id = SuperId(one.stream_id)
            try:
                record = await stored.load(super_id)
            except NotFound:
                # Deleted between the two reads.
                continue
            except Corrupt as error:
                unreadable.append(
                    {"name": one.name, "super_id": super_id, "code": error.code.value}
                )
            else:
                items.append(describe_super_item(record, self._shown()))
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
        body = await read_json(request, size_max=_BODY_SIZE_MAX)
        asked = parse_super_config(body, tiered=self._tiered)
        if asked.config.tiers:
            require_usable(asked.config.tiers, await usable_drives(self._context))
        record, created = await self._supers.declare(name, asked)
        headers = self._headers(record)
        if created:
            headers["location"] = f"/v1/super-streams/{name.name}"
        answer = describe_super(record, self._shown())
        return json_response(answer, 201 if created else 200, headers)

    async def get(self, request: Request) -> Response:
        parse_query(request.scope, {})
        name = full_name_of(request.scope, request.path_params["s"])
        negotiate(header(request.scope, b"accept"), [JSON])
        record = await self._supers.find(name)
        headers = self._headers(record)
        if matches(header(request.scope, b"if-none-match"), super_etag(record)):
            return Response(status_code=304, headers=headers)
        return json_response(describe_super(record, self._shown()), 200, headers)

    async def patch(self, request: Request) -> Response:
        parse_query(request.scope, {})
        name = full_name_of(request.scope, request.path_params["s"])
        negotiate(header(request.scope, b"accept"), [JSON])
        if_match = require_precondition(header(request.scope, b"if-match"))
        patch = await read_json(request, PATCH_TYPES, size_max=_BODY_SIZE_MAX)

        growth = asked_growth(patch)
        if growth is not None:
            record, operation = await self._growth.begin(name, if_match, growth)
            if operation is not None:
                grows = {"state": SuperState.GROWING, "super_id": record.super_id}
                return accepted(operation, **grows)
            return json_response(describe_super(record, self._shown()), 200, self._headers(record))

        says_tiers = self._tiered and isinstance(patch, dict) and bool(patch.get("tiers"))
        usable = await usable_drives(self._context) if says_tiers else frozenset()

        def change(record: SuperRecord) -> StreamConfig:
            require_match(if_match, super_etag(record))
            config = patch_config(record.config, patch, tiered=self._tiered)
            if says_tiers:
                require_usable(config.tiers, usable)
            return config

        record = await self._supers.update(name, change)
        return json_response(describe_super(record, self._shown()), 200, self._headers(record))

    async def delete(self, request: Request) -> Response:
        parse_query(request.scope, {})
        name = full_name_of(request.scope, request.path_params["s"])
        negotiate(header(request.scope, b"accept"), [JSON])
        operation = await self._deletions.begin(name, header(request.scope, b"if-match"))
        super_id = operation.arguments["super_id"]
        return accepted(operation, state=SuperState.DELETING, super_id=super_id)

    async def route(self, request: Request) -> Response:
        query = parse_query(request.scope, {"key": parse_key, "key_base64": parse_key_base64})
        name = full_name_of(request.scope, request.path_params["s"])
        negotiate(header(request.scope, b"accept"), [JSON])
        if len(query) != 1:
            sentence = "must have exactly one of key and key_base64"
            fault = Fault(Code.BAD_PARAMETER, sentence, parameter="key")
            raise InvalidRequest(sentence, faults=[fault])
        [key] = query.values()
        record = await self._supers.find(name)
        found = partition_of_key(record, key)
        answer = {"partitions": [] if found is None else [describe_partition(found)]}
        return json_response(answer, 200, self._headers(record))

    @property
    def _tiered(self) -> bool:
        """Whether a request may say on which nodes and drives partitions are to be."""
        return TIERS in self._context.served

    def _shown(self) -> Shown:
        return Shown(self._context.settings.retention_default(), self._context.served)

    def _headers(self, record: SuperRecord) -> dict[str, str]:
        return {"etag": super_etag(record), **_UNCACHED}
