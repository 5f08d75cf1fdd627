"""Consumer groups over HTTP: join, heartbeats, leave; list, show, activate, delete.

Contract: openapi/manifest.yaml. A member is known by its id, which nobody else is told: whoever
has it is the member. So no answer but that of the join has one, and no log.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import KIB, PARTITION_COUNT_MAX
from bottomless.model.names import FullName, Reference, parse_reference
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.super_stream import SuperRecord
from bottomless_server.core.consumer_group import (
    GENERATION_MAX,
    ConsumerGroup,
    Partition,
    Strategy,
)
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.consumers.core.consumers import describe_lag
from bottomless_server.manifest.consumers.core.groups import differs, held_by, revoked_from
from bottomless_server.manifest.consumers.core.lag import Lag
from bottomless_server.manifest.consumers.group_changes import (
    GroupChanges,
    Joining,
    group_not_found,
    member_expired,
)
from bottomless_server.manifest.consumers.group_scopes import GroupScope, Scopes
from bottomless_server.manifest.consumers.group_watch import GroupWatch
from bottomless_server.manifest.consumers.lags import Lags
from bottomless_server.manifest.mutators.bounds import StreamBounds
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.protocol.parameters import integer
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import JSON, ClosedBody, read_closed_body
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.paging import PAGE_COUNT_DEFAULT, PAGING, Paging
from bottomless_server.stores.consumers import ConsumerOffsets

LEASE_MS_MIN: Final = 5_000
LEASE_MS_MAX: Final = 300_000
_LEASE_MS_DEFAULT: Final = 30_000
_WAIT_MS_MAX: Final = 20_000
_BODY_SIZE_MAX: Final = 4 * KIB
_BEAT_SIZE_MAX: Final = 128 * KIB
"""Two numbers of each of a thousand partitions, twice."""
_AT_ONCE: Final = 32
"""Partitions of one answer that are asked about side by side."""
_CLOCKS_MS: Final = 60_000
"""How far the clocks of a manifest and of coordination may be apart: a group that began that long after
a growth may have begun before it."""
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)
_UNSEEN: Final = {"cache-control": "no-store"}


class _Join(ClosedBody):
    member: str
    lease_ms: Annotated[int, Field(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)] = _LEASE_MS_DEFAULT
    strategy: str | None = None


class _Beat(ClosedBody):
    holding: Annotated[dict[str, Any], Field(default_factory=dict)]
    released: Annotated[dict[str, Any], Field(default_factory=dict)]


class _Activate(ClosedBody):
    partition: Annotated[int, Field(ge=0, lt=PARTITION_COUNT_MAX)]
    member: str


def add_group_routes(
    api: FastAPI,
    context: Context,
    registry: Registry,
    bounds: StreamBounds,
    changes: GroupChanges,
    watch: GroupWatch,
    paging: Paging,
) -> None:
    scopes = Scopes(registry)
    for above, find in (("streams", scopes.of_stream), ("super-streams", scopes.of_super)):
        routes = _GroupRoutes(context, find, bounds, changes, watch, paging)
        _add(api, f"/v1/{above}/{{s}}/groups", routes)


def _add(api: FastAPI, groups: str, routes: "_GroupRoutes") -> None:
    group, member = groups + "/{g}", groups + "/{g}/members/{m}"
    api.add_api_route(groups, routes.list, methods=["GET"])
    api.add_api_route(group, routes.show, methods=["GET"])
    api.add_api_route(group, routes.delete, methods=["DELETE"])
    api.add_api_route(group + "/activate", routes.activate, methods=["POST"])
    api.add_api_route(group + "/members", routes.join, methods=["POST"])
    api.add_api_route(member, routes.leave, methods=["DELETE"])
    api.add_api_route(member + "/heartbeat", routes.beat, methods=["POST"])


class _GroupRoutes:
    def __init__(
        self,
        context: Context,
        find: Callable[[FullName], Awaitable[GroupScope]],
        bounds: StreamBounds,
        changes: GroupChanges,
        watch: GroupWatch,
        paging: Paging,
    ) -> None:
        self._context = context
        self._by_name = find
        self._bounds = bounds
        self._lags = Lags(context)
        self._changes = changes
        self._watch = watch
        self._paging = paging
        self._offsets = ConsumerOffsets(context.coordination, context.served)

    async def join(self, request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), [JSON])
        group = parse_reference(request.path_params["g"])
        body = await read_closed_body(request, _Join, size_max=_BODY_SIZE_MAX)
        name, strategy = _reference(body.member, "/member"), _strategy(body.strategy)
        found = await self._find(request)
        asked = Joining(name, body.lease_ms, strategy)
        member_id, after = await self._changes.join(found.shared, group, asked)
        found = await self._with_all(request, found, after)
        answer = {
            "member_id": member_id,
            "member": name,
            "lease_ms": body.lease_ms,
            "strategy": after.strategy.value,
            **await self._work(found, after, member_id, {}),
        }
        return json_response(answer, 201, {**_UNSEEN, **found.headers})

    async def beat(self, request: Request) -> Response:
        query = parse_query(request.scope, {"wait_ms": integer(0, _WAIT_MS_MAX)})
        negotiate(header(request.scope, b"accept"), [JSON])
        group, member_id = parse_reference(request.path_params["g"]), request.path_params["m"]
        body = await read_closed_body(request, _Beat, optional=True, size_max=_BEAT_SIZE_MAX)
        holding = _generations(body.holding, "/holding")
        released = _generations(body.released, "/released")
        shared = await self._find(request)
        scope = shared.scope
        # Watched from before it is read: no change after that is missed.
        with self._watch.watching(scope, group) as wait:
            found = await self._changes.beat(scope, group, member_id, holding, released)
            member = found.member(member_id)
            assert member is not None
            wait_ms = min(query.get("wait_ms", 0), member.lease_ms // 3)
            deadline = asyncio.get_running_loop().time() + wait_ms / 1000
            while not differs(found, member_id, holding) and await wait.until(deadline):
                again = await self._changes.groups.find(scope, group)
                if again is None or again.member(member_id) is None:
                    raise member_expired()
                found = again
        shared = await self._with_all(request, shared, found)
        answer = await self._work(shared, found, member_id, holding)
        return json_response(answer, 200, {**_UNSEEN, **shared.headers})

    async def leave(self, request: Request) -> Response:
        parse_query(request.scope, {})
        group = parse_reference(request.path_params["g"])
        found = await self._find(request)
        await self._changes.leave(found.scope, group, request.path_params["m"])
        return Response(status_code=204, headers=found.headers)

    async def list(self, request: Request) -> Response:
        query = parse_query(request.scope, PAGING)
        negotiate(header(request.scope, b"accept"), [JSON])
        shared = await self._find(request)
        scope = ("groups", shared.scope)
        after = await self._paging.start_of(query.get("page_token"), scope)
        limit = query.get("limit", PAGE_COUNT_DEFAULT)
        found = await self._changes.groups.listed(shared.scope, after, limit + 1)
        if not found.names:
            await self._context.streams.check_generation()
        page = found.names[:limit]
        items = [self._summary(found.groups[one]) for one in page if one in found.groups]
        unreadable = [
            {"group": one, "code": found.unreadable[one].code.value}
            for one in page
            if one in found.unreadable
        ]
        token = None
        if len(found.names) > limit:
            token = await self._paging.token_for(page[-1], scope)
        answer = {"items": items, "unreadable": unreadable, "next_page_token": token}
        return json_response(answer, 200, _headers(shared))

    async def show(self, request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), [JSON])
        group = parse_reference(request.path_params["g"])
        shared = await self._find(request)
        found = await self._changes.groups.find(shared.scope, group)
        if found is None:
            await self._context.streams.check_generation()
            raise group_not_found()
        shared = await self._with_all(request, shared, found)
        return json_response(await self._describe(shared, found), 200, _headers(shared))

    async def activate(self, request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), [JSON])
        group = parse_reference(request.path_params["g"])
        body = await read_closed_body(request, _Activate, size_max=_BODY_SIZE_MAX)
        name = _reference(body.member, "/member")
        found = await self._find(request)
        after = await self._changes.activate(found.scope, group, body.partition, name)
        found = await self._with_all(request, found, after)
        return json_response(await self._describe(found, after), 200, _headers(found))

    async def delete(self, request: Request) -> Response:
        parse_query(request.scope, {})
        group = parse_reference(request.path_params["g"])
        found = await self._find(request)
        await self._changes.remove(found.scope, group)
        return Response(status_code=204, headers=found.headers)

    async def _find(self, request: Request) -> GroupScope:
        return await self._by_name(full_name_of(request.scope, request.path_params["s"]))

    async def _with_all(
        self, request: Request, found: GroupScope, group: ConsumerGroup
    ) -> GroupScope:
        """What is shared, found again where it has grown since and the group shares more of it."""
        if len(group.partitions) <= len(found.places):
            return found
        again = await self._find(request)
        if again.scope != found.scope:
            raise group_not_found()
        return again

    async def _work(
        self, found: GroupScope, group: ConsumerGroup, member_id: str, holding: dict[int, int]
    ) -> dict[str, Any]:
        """What a member is to read, and what it has to release."""
        held = held_by(group, member_id).values()
        revoked = revoked_from(group, member_id)
        # Most of the time nothing is, and nobody needs the time.
        now = await self._context.coordination.clock() if revoked else 0
        return {
            "assignments": await _side_by_side(
                [partial(self._assignment, found, group, one, holding) for one in held]
            ),
            "revoked": [
                {
                    "partition": one.number,
                    "generation": one.generation,
                    "deadline_ms": max(0, (one.revoke_at or 0) - now),
                }
                for one in revoked
            ],
        }

    async def _assignment(
        self, found: GroupScope, group: ConsumerGroup, one: Partition, holding: dict[int, int]
    ) -> dict[str, Any]:
        next_offset, source, place = None, "held", found.places[one.number]
        if holding.get(one.number) != one.generation:
            stored = await self._offsets.find(place.stream_id, group.name)
            next_offset = None if stored is None else stored.next_offset
            source = "stored" if stored is not None else _source_of_new(found, group, one.number)
        return {
            "partition": one.number,
            "stream": place.name,
            "stream_id": place.stream_id,
            "generation": one.generation,
            "next_offset": next_offset,
            "source": source,
        }

    def _summary(self, group: ConsumerGroup) -> dict[str, Any]:
        return {
            "group": group.name,
            "strategy": group.strategy.value,
            "created_at": format_timestamp(group.created_at),
            "member_count": len(group.members),
            "partition_count": len(group.partitions),
        }

    async def _describe(self, found: GroupScope, group: ConsumerGroup) -> dict[str, Any]:
        names = {one.member_id: one.name for one in group.members}
        now = await self._context.coordination.clock()
        empty = group.empty_since
        progress = await _side_by_side(
            [partial(self._progress, found, one.number, group.name) for one in group.partitions]
        )
        return {
            **self._summary(group),
            "revoke_ms": group.revoke_ms,
            "seconds_without_holder": None if empty is None else max(0, now - empty) / 1000,
            "members": [
                {
                    "member": one.name,
                    "joined_at": format_timestamp(one.joined_at),
                    "lease_ms": one.lease_ms,
                }
                for one in group.members
            ],
            "partitions": [
                {
                    "partition": one.number,
                    "stream": found.places[one.number].name,
                    "stream_id": found.places[one.number].stream_id,
                    "member": None if one.holder is None else names[one.holder],
                    "generation": one.generation,
                    "following": None if one.following is None else names[one.following],
                    **told,
                }
                for one, told in zip(group.partitions, progress, strict=True)
            ],
        }

    async def _progress(self, found: GroupScope, index: int, group: Reference) -> dict[str, Any]:
        """How far the group has come in a partition."""
        stream_id = found.places[index].stream_id
        stored = await self._offsets.find(stream_id, group)
        if stored is None:
            return {"next_offset": None, **describe_lag(Lag(None, None, None))}
        record = (
            await self._context.streams.load(stream_id)
            if isinstance(found.shared, SuperRecord)
            else found.shared
        )
        root = await self._bounds.root(record)
        committed_next = await self._bounds.committed_next(record)
        (lag,) = await self._lags.of(record, root, committed_next, [stored.next_offset])
        return {"next_offset": stored.next_offset, **describe_lag(lag)}


def _source_of_new(found: GroupScope, group: ConsumerGroup, number: int) -> str:
    """Where a member begins that the group has stored nothing for: where groups begin, or at the first
    record of a partition that came by growth after the group had begun."""
    shared = found.shared
    if not isinstance(shared, SuperRecord):
        return "none"
    came_by = next(one for one in shared.layouts if one.count > number)
    grown = came_by.version > shared.layouts[0].version
    return "growth" if grown and came_by.created_at + _CLOCKS_MS > group.created_at else "none"


def _headers(found: GroupScope) -> dict[str, str]:
    return {**found.headers, "cache-control": "private, no-cache"}


async def _side_by_side(
    asked: Sequence[Callable[[], Awaitable[dict[str, Any]]]],
) -> list[dict[str, Any]]:
    """What is asked of many partitions, some at once, in their order."""
    answers: list[dict[str, Any]] = []
    for start in range(0, len(asked), _AT_ONCE):
        answers += await asyncio.gather(*(one() for one in asked[start : start + _AT_ONCE]))
    return answers


def _reference(text: str, pointer: str) -> Reference:
    try:
        return parse_reference(text)
    except InvalidRequest as error:
        raise _refused(error.message, pointer) from error


def _strategy(text: str | None) -> Strategy | None:
    if text is None:
        return None
    try:
        return Strategy(text)
    except ValueError as error:
        raise _refused(f"must be one of {', '.join(Strategy)}", "/strategy") from error


def _generations(members: dict[str, Any], pointer: str) -> dict[int, int]:
    """Generations by the number of the partition."""
    if len(members) > PARTITION_COUNT_MAX:
        raise _refused(f"must have at most {PARTITION_COUNT_MAX} members", pointer)
    for name, value in members.items():
        # Not isinstance: JSON's true is not a number.
        if not _PARTITION.fullmatch(name) or type(value) is not int:
            raise _refused("must map numbers of partitions to generations", pointer)
        if not 0 <= value <= GENERATION_MAX:
            raise _refused(f"a generation is from 0 to {GENERATION_MAX}", pointer)
    return {int(name): value for name, value in members.items()}


def _refused(sentence: str, pointer: str) -> InvalidRequest:
    return InvalidRequest(
        sentence, code=Code.VALIDATION_FAILED, faults=[Fault("value", sentence, pointer)]
    )
