"""API keys over HTTP: create, list, show, rotate, revoke.

Contract: openapi/manifest.yaml. The gate lets in only who may administrate a whole tenant; what
such a principal may give away is decided in keys/core/granting.py. A secret stands in the answer that
made it and nowhere else, which no cache may keep.
"""

from typing import Annotated, Any, Final

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, Fault, InvalidRequest, StoreError
from bottomless.model.api_key import (
    LABEL_SIZE_MAX,
    SCOPE_COUNT_MAX,
    ApiKey,
    KeyId,
    overlap_ends_at,
    parse_key_id,
)
from bottomless.model.limits import KIB, TIMESTAMP_MAX
from bottomless.model.names import parse_tenant
from bottomless.model.offset_spec import format_timestamp, parse_timestamp
from bottomless_server.core.principal import Principal
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.keys.core.granting import (
    check_granting,
    check_scopes,
    is_operator,
    tenant_for,
)
from bottomless_server.manifest.keys.keys import Issued, Keys
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import JSON, ClosedBody, read_closed_body
from bottomless_server.runtime.http.paging import PAGE_COUNT_DEFAULT, PAGING, Paging
from bottomless_server.runtime.identity.audit import note_target
from bottomless_server.stores.keys import key_not_found

_BODY_SIZE_MAX: Final = 16 * KIB
_SCOPE_SIZE_MAX: Final = 160
"""Longer than any scope."""
_TTL_SECONDS_MAX: Final = 100 * 365 * 86_400
_OVERLAP_SECONDS_MAX: Final = 7 * 86_400
_UNSEEN: Final = {"cache-control": "no-store"}


class _Create(ClosedBody):
    label: Annotated[str, Field(max_length=LABEL_SIZE_MAX)] = ""
    scopes: Annotated[
        list[Annotated[str, Field(max_length=_SCOPE_SIZE_MAX)]],
        Field(min_length=1, max_length=SCOPE_COUNT_MAX),
    ]
    tenant: str | None = None
    expires_at: str | None = None
    ttl_seconds: Annotated[int, Field(ge=1, le=_TTL_SECONDS_MAX)] | None = None


class _Rotate(ClosedBody):
    overlap_seconds: Annotated[int, Field(ge=0, le=_OVERLAP_SECONDS_MAX)] = 3_600


def add_key_routes(api: FastAPI, context: Context, keys: Keys, paging: Paging) -> None:
    routes = _KeyRoutes(context, keys, paging)
    api.add_api_route("/v1/keys", routes.list, methods=["GET"])
    api.add_api_route("/v1/keys", routes.create, methods=["POST"])
    api.add_api_route("/v1/keys/{key_id}", routes.get, methods=["GET"])
    api.add_api_route("/v1/keys/{key_id}", routes.revoke, methods=["DELETE"])
    api.add_api_route("/v1/keys/{key_id}/rotate", routes.rotate, methods=["POST"])


class _KeyRoutes:
    def __init__(self, context: Context, keys: Keys, paging: Paging) -> None:
        self._context = context
        self._keys = keys
        self._paging = paging

    async def list(self, request: Request) -> Response:
        query = parse_query(request.scope, {**PAGING, "tenant": parse_tenant})
        negotiate(header(request.scope, b"accept"), [JSON])
        tenant = tenant_for(principal_of(request.scope), query.get("tenant"))
        scope = ("keys", tenant)
        after = await self._paging.start_of(query.get("page_token"), scope)
        limit = query.get("limit", PAGE_COUNT_DEFAULT)
        found = await self._keys.records.listed(tenant, after, limit + 1)
        token = None
        if len(found.ids) > limit:
            token = await self._paging.token_for(found.ids[limit - 1], scope)
        page = found.ids[:limit]
        items = [self._describe(found.records[one].key) for one in page if one in found.records]
        unreadable = [
            {"key_id": one, "code": found.unreadable[one].code.value}
            for one in page
            if one in found.unreadable
        ]
        answer = {"items": items, "unreadable": unreadable, "next_page_token": token}
        return json_response(answer, 200, _UNSEEN)

    async def create(self, request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), [JSON])
        asked = await read_closed_body(request, _Create, size_max=_BODY_SIZE_MAX)
        principal = principal_of(request.scope)
        check_scopes(asked.scopes)
        ends_at = _ends_at(asked, self._context.time.passed())
        tenant = tenant_for(principal, _tenant(asked))
        check_granting(principal, asked.scopes)
        issued = await self._keys.create(
            tenant=tenant,
            label=asked.label,
            scopes=tuple(asked.scopes),
            ends_at=ends_at,
            actor=principal.actor,
        )
        note_target(request.scope, issued.key.key_id)
        where = {"location": f"/v1/keys/{issued.key.key_id}"}
        return json_response(self._show(issued), 201, {**_UNSEEN, **where})

    async def get(self, request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), [JSON])
        record = await self._keys.records.find(_key_id(request))
        _check_theirs(principal_of(request.scope), record.key)
        return json_response(self._describe(record.key), 200, _UNSEEN)

    async def revoke(self, request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), [JSON])
        principal = principal_of(request.scope)
        key = await self._keys.revoke(
            _key_id(request), lambda found: _check_theirs(principal, found)
        )
        return json_response(self._describe(key), 200, _UNSEEN)

    async def rotate(self, request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), [JSON])
        key_id, principal = _key_id(request), principal_of(request.scope)
        asked = await read_closed_body(request, _Rotate, optional=True, size_max=_BODY_SIZE_MAX)

        def check(key: ApiKey) -> None:
            _check_theirs(principal, key)
            # Who sees the new secret can do what the key can.
            check_granting(principal, key.scopes)

        issued = await self._keys.rotate(key_id, asked.overlap_seconds * 1000, check)
        return json_response(self._show(issued), 200, _UNSEEN)

    def _show(self, issued: Issued) -> dict[str, Any]:
        return {**self._describe(issued.key), "secret": issued.credential}

    def _describe(self, key: ApiKey) -> dict[str, Any]:
        now = self._context.clock()
        return {
            "key_id": key.key_id,
            "label": key.label,
            "tenant": key.tenant,
            "scopes": list(key.scopes),
            "state": key.state(now).value,
            "created_at": format_timestamp(key.created_at),
            "created_by": key.created_by,
            "rotated_at": _time(key.rotated_at),
            "overlap_ends_at": _time(overlap_ends_at(key.secrets, now)),
            "expires_at": _time(key.expires_at),
            "revoked_at": _time(key.revoked_at),
        }


def _check_theirs(principal: Principal, key: ApiKey) -> None:
    # To others it is not there at all: its id alone says nothing.
    if key.tenant != principal.tenant and not is_operator(principal):
        raise key_not_found()


def _key_id(request: Request) -> KeyId:
    key_id = parse_key_id(request.path_params["key_id"])
    if key_id is None:
        raise key_not_found()
    return key_id


def _tenant(asked: _Create) -> str | None:
    if asked.tenant is None:
        return None
    try:
        return parse_tenant(asked.tenant)
    except StoreError as error:
        raise _refused(error.message, "/tenant") from error


def _ends_at(asked: _Create, now: int) -> int | None:
    if asked.expires_at is not None and asked.ttl_seconds is not None:
        raise _refused("give at most one of expires_at and ttl_seconds", "")
    if asked.ttl_seconds is not None:
        return min(now + asked.ttl_seconds * 1000, TIMESTAMP_MAX)
    if asked.expires_at is None:
        return None
    try:
        ends_at = parse_timestamp(asked.expires_at)
    except InvalidRequest as error:
        raise _refused(error.message, "/expires_at") from error
    if ends_at <= now:
        raise _refused("a key must end in the future", "/expires_at")
    return ends_at


def _refused(sentence: str, pointer: str) -> InvalidRequest:
    return InvalidRequest(
        sentence,
        code=Code.VALIDATION_FAILED,
        faults=[Fault("value", sentence, pointer)],
    )


def _time(timestamp: int | None) -> str | None:
    return None if timestamp is None else format_timestamp(timestamp)
