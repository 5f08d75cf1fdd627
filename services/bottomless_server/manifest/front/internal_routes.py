"""The internal paths of the manifest: for ingest, uploader and reader.

Contract: openapi/internal.yaml. Bodies are checked as strictly as public ones, since a
peer of another version is the usual reason for a wrong one.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, Fenced, InvalidRequest, Overloaded, StoreError
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import LONG_POLL_MS_MAX, NAMES_TOGETHER_COUNT_MAX, OFFSET_MAX
from bottomless.model.names import (
    TENANT_DEFAULT,
    FullName,
    StreamId,
    Uid,
    parse_stream_id,
    parse_stream_name,
    parse_tenant,
)
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.closed_body import ClosedBody, read_closed_body
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.fault_routes import add_fault_routes
from bottomless_server.manifest.front.internal_registry_routes import add_internal_registry_routes
from bottomless_server.manifest.keys.internal_key_routes import add_internal_key_routes
from bottomless_server.manifest.keys.keys import Keys
from bottomless_server.manifest.keys.root_key import RootKey
from bottomless_server.manifest.mutators.mutator import Mutator, Mutators
from bottomless_server.manifest.mutators.sessions import INTENT_COUNT_MAX
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.registry.stream_description import (
    describe_record,
    describe_root,
    matches,
    root_etag,
)
from bottomless_server.manifest.tree.core.events import Why
from bottomless_server.manifest.tree.outcomes import FragmentOutcome
from bottomless_server.runtime.base.on_loop import loop_time
from bottomless_server.runtime.http.app import (
    create_api,
    header,
    integer,
    json_response,
    parse_query,
)

_FRAGMENT_COUNT_MAX: Final = 1_024
_REREAD_SECONDS: Final = 1.0
"""How late a long poll may hear of what another process published."""

_Uid = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_Session = Annotated[str, Field(min_length=1, max_length=128)]
_Offset = Annotated[int, Field(ge=0, le=OFFSET_MAX + 1)]
_U64 = Annotated[int, Field(ge=0, lt=2**63)]
_U32 = Annotated[int, Field(ge=0, lt=2**32)]


class _Name(ClosedBody):
    tenant: str
    name: str


class _Names(ClosedBody):
    names: Annotated[list[_Name], Field(min_length=1, max_length=NAMES_TOGETHER_COUNT_MAX)]


class _Begin(ClosedBody):
    session: _Session


class _Intents(ClosedBody):
    session: _Session
    first_offsets: Annotated[list[_Offset], Field(min_length=1, max_length=INTENT_COUNT_MAX)]


class _Fragment(ClosedBody):
    uid: _Uid
    first_offset: _Offset
    next_offset: _Offset
    first_timestamp: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    last_timestamp: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    epoch: _U64
    record_count: Annotated[int, Field(ge=1, lt=2**63)]
    size: _U64
    index_size: _U32
    crc: _U32


class _Fragments(ClosedBody):
    session: _Session
    fragments: Annotated[list[_Fragment], Field(min_length=1, max_length=_FRAGMENT_COUNT_MAX)]


class _Abandon(ClosedBody):
    session: _Session
    uids: Annotated[list[_Uid], Field(max_length=_FRAGMENT_COUNT_MAX)]


def internal_api(
    context: Context, registry: Registry, mutators: Mutators, keys: Keys, root_key: RootKey
) -> FastAPI:
    api = create_api("Bottomless manifest, internal")
    routes = _InternalRoutes(context, registry, mutators)
    base = "/internal/v1/streams"
    api.add_api_route("/internal/v1/names", routes.by_names, methods=["POST"])
    api.add_api_route(base + "/by-name/{name}", routes.by_name, methods=["GET"])
    api.add_api_route(base + "/{stream_id}", routes.by_id, methods=["GET"])
    api.add_api_route(base + "/{stream_id}/root", routes.root, methods=["GET"])
    api.add_api_route(base + "/{stream_id}/uploads", routes.uploads, methods=["POST"])
    api.add_api_route(base + "/{stream_id}/intents", routes.intents, methods=["POST"])
    api.add_api_route(base + "/{stream_id}/fragments", routes.fragments, methods=["POST"])
    api.add_api_route(base + "/{stream_id}/abandon", routes.abandon, methods=["POST"])
    add_internal_registry_routes(api, context, registry)
    add_internal_key_routes(api, context, keys, root_key)
    add_fault_routes(api, enabled=context.settings.fault_points)
    return api


class _InternalRoutes:
    def __init__(self, context: Context, registry: Registry, mutators: Mutators) -> None:
        self._context = context
        self._registry = registry
        self._mutators = mutators

    async def by_name(self, request: Request) -> Response:
        query = parse_query(request.scope, {"tenant": parse_tenant})
        tenant = query.get("tenant", TENANT_DEFAULT)
        name = FullName(tenant, parse_stream_name(request.path_params["name"]))
        return json_response(describe_record(await self._registry.find(name)))

    async def by_names(self, request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, _Names)
        names = [
            FullName(parse_tenant(one.tenant), parse_stream_name(one.name)) for one in asked.names
        ]
        found = await self._registry.find_many(names)
        return json_response(
            {
                "streams": [
                    {"tenant": name.tenant, "name": name.name, "stream_id": stream_id}
                    for name, stream_id in found.items()
                ]
            }
        )

    async def by_id(self, request: Request) -> Response:
        parse_query(request.scope, {})
        return json_response(describe_record(await self._registry.load(_stream_id(request))))

    async def root(self, request: Request) -> Response:
        query = parse_query(request.scope, {"wait_ms": integer(0, LONG_POLL_MS_MAX)})
        known = header(request.scope, b"if-none-match")
        mutator = self._mutators.of(_stream_id(request))
        deadline = loop_time() + query.get("wait_ms", 0) / 1000
        while True:
            change = mutator.next_change
            record, root = await mutator.refresh()
            left = deadline - loop_time()
            if not matches(known, root_etag(record)):
                return json_response(describe_root(record, root), 200, {"etag": root_etag(record)})
            if left <= 0:
                return Response(status_code=304, headers={"etag": root_etag(record)})
            # Another process may publish too, which only its record tells.
            await _wait(change, min(left, _REREAD_SECONDS))

    async def uploads(self, request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, _Begin)
        mutator = self._mutators.of(_stream_id(request))
        record = await mutator.begin(asked.session)
        mutator.tell_again()
        return json_response(
            {
                "published_next": record.published_next,
                "version": record.version,
                "epoch": record.epoch,
                "tenant": record.tenant,
            }
        )

    async def intents(self, request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, _Intents)
        uids = await self._mutators.of(_stream_id(request)).intend(
            asked.session, asked.first_offsets
        )
        return json_response({"uids": list(uids)})

    async def abandon(self, request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, _Abandon)
        uids = {Uid(uid) for uid in asked.uids}
        await self._mutators.of(_stream_id(request)).abandon(asked.session, uids)
        return json_response({})

    async def fragments(self, request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, _Fragments)
        fragments = [_info(fragment) for fragment in asked.fragments]
        uids = [fragment.uid for fragment in fragments]
        mutator = self._mutators.of(_stream_id(request))

        record = await mutator.register(asked.session, fragments)
        seconds = self._context.settings.manifest_register_wait_ms / 1000
        outcomes = await _wait_applied(mutator, uids, seconds)
        record = mutator.record or record
        return json_response(
            {
                "published_next": record.published_next,
                "version": record.version,
                "applied": [uid for uid in uids if outcomes[uid] is True],
                "waiting": [uid for uid in uids if outcomes[uid] is not True],
            }
        )


async def _wait_applied(
    mutator: Mutator, uids: Sequence[Uid], seconds: float
) -> dict[Uid, FragmentOutcome]:
    """Wait until all are applied or the time is over; what is then known of each.

    Raises:
        Fenced, Overloaded: one of them is refused.
    """
    deadline = loop_time() + seconds
    while True:
        change = mutator.next_change
        outcomes = mutator.outcomes(uids)
        for uid, outcome in outcomes.items():
            if isinstance(outcome, Why):
                raise _refusal(mutator.record, uid, outcome)
        done = all(outcome is True for outcome in outcomes.values())
        # Without a record the manifest was put aside, and nothing of it waits any more: the
        # stream is deleted, or who asks again makes it load what is stored.
        if done or mutator.record is None or loop_time() >= deadline:
            return outcomes
        await _wait(change, deadline - loop_time())


async def _wait(change: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await change.wait()


def _refusal(record: StreamRecord | None, uid: Uid, why: Why) -> StoreError:
    facts: dict[str, object] = {"uid": uid}
    if record is not None:
        facts |= {"published_next": record.published_next, "epoch": record.epoch}
    if why is Why.FULL:
        return Overloaded(f"a fragment is refused: {why.value}", facts=facts)
    return Fenced(f"a fragment is refused: {why.value}", facts=facts)


def _info(fragment: _Fragment) -> FragmentInfo:
    info = FragmentInfo(**{**fragment.model_dump(), "uid": Uid(fragment.uid)})
    dense = info.next_offset - info.first_offset == info.record_count
    if not dense or info.first_timestamp > info.last_timestamp or info.size <= info.index_size:
        raise InvalidRequest("a fragment contradicts itself", code=Code.VALIDATION_FAILED)
    return info


def _stream_id(request: Request) -> StreamId:
    return parse_stream_id(request.path_params["stream_id"])
