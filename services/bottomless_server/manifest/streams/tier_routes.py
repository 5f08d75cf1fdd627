"""Tiers over HTTP: what lies where, what the policy wants moved, and moves that somebody asks for.

Contract: openapi/manifest.yaml. Each move that is answered is in the stream's record; what a crash
leaves of it is said in mutators/moves.py. The totals cost the stream's root and a bounded number of
groups, whatever the stream holds.
"""

from typing import Annotated, Final, TypeVar

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, Fault, Fenced, InvalidRequest, NotFound
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.stream import StreamRecord
from bottomless.model.tiers import parse_copy
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.mutator import Mutator, Mutators
from bottomless_server.manifest.registry.policy_drives import usable_drives
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.streams.tier_description import (
    describe_damaged,
    describe_entered,
    describe_tiering,
    describe_tiers,
    drive_names,
)
from bottomless_server.manifest.tree.core.drive_totals import find_drive_totals
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import ClosedBody, read_closed_body
from bottomless_server.runtime.http.full_names import full_name_of

_PATH: Final = "/v1/streams/{s}"


class _Nothing(ClosedBody):
    pass


class _Range(ClosedBody):
    from_offset: Annotated[int, Field(ge=0, le=OFFSET_MAX)]
    to_offset: Annotated[int, Field(ge=1, le=OFFSET_MAX + 1)]


class _Move(_Range):
    drive: str


def add_tier_routes(api: FastAPI, context: Context, registry: Registry, mutators: Mutators) -> None:
    routes = _TierRoutes(context, registry, mutators)
    api.add_api_route(_PATH + "/tiers", routes.get, methods=["GET"])
    api.add_api_route(_PATH + "/tiers/preview", routes.preview, methods=["POST"])
    api.add_api_route(_PATH + "/tiers/evaluate", routes.evaluate, methods=["POST"])
    api.add_api_route(_PATH + "/tiers/promote", routes.promote, methods=["POST"])
    api.add_api_route(_PATH + "/moves", routes.move, methods=["POST"])
    api.add_api_route(_PATH + "/moves/{move}", routes.give_up, methods=["DELETE"])


class _TierRoutes:
    def __init__(self, context: Context, registry: Registry, mutators: Mutators) -> None:
        self._context = context
        self._registry = registry
        self._mutators = mutators

    async def get(self, request: Request) -> Response:
        context = self._context
        record, root = await load_root(context, await self._find(request))
        found = await context.groups.descend(record.tenant, root, find_drive_totals(root))
        names, floor = drive_names(context, record), root.first_offset
        told = describe_tiers(record, found, names, context.clock(), floor)
        damaged = describe_damaged(context, record, floor, names)
        return json_response({**told, "damaged": damaged}, 200, _headers(record))

    async def preview(self, request: Request) -> Response:
        record, mutator = await self._begin(request)
        await read_closed_body(request, _Nothing, optional=True)
        names = drive_names(self._context, record)
        told = describe_tiering(await mutator.preview_tiers(), names)
        damaged = describe_damaged(self._context, record, 0, names)
        return json_response({**told, "damaged": damaged}, 200, _headers(record))

    async def evaluate(self, request: Request) -> Response:
        record, mutator = await self._begin(request)
        await read_closed_body(request, _Nothing, optional=True)
        entered = tuple(await mutator.evaluate_tiers())
        told = describe_entered(entered, None, drive_names(self._context, record))
        return json_response(told, 202, _headers(record))

    async def promote(self, request: Request) -> Response:
        record, mutator = await self._begin(request)
        asked = await _read_range(request, _Range)
        entered = await mutator.promote_range(asked.from_offset, asked.to_offset)
        told = describe_entered(*entered, drive_names(self._context, record))
        return json_response(told, 202, _headers(record))

    async def move(self, request: Request) -> Response:
        record, mutator = await self._begin(request)
        asked = await _read_range(request, _Move)
        names = drive_names(self._context, record)
        number = names.number(asked.drive)
        if number is None or asked.drive not in await usable_drives(self._context):
            raise InvalidRequest(
                "no such drive is registered, or the settings of the manifest service do not have it",
                code=Code.DRIVE_UNKNOWN,
                faults=[Fault("drive-unknown", "is none of the registered drives", "/drive")],
            )
        entered = await mutator.move_range(asked.from_offset, asked.to_offset, number)
        return json_response(describe_entered(*entered, names), 202, _headers(record))

    async def give_up(self, request: Request) -> Response:
        _, mutator = await self._begin(request)
        ended = NotFound("the stream has no such move, or it has ended", code=Code.NOT_FOUND)
        try:
            copy = parse_copy(request.path_params["move"])
        except ValueError:
            raise ended from None
        record, _ = await mutator.refresh()
        if copy not in {move.copy for move in record.moves}:
            raise ended
        try:
            await mutator.give_up_move(copy)
        except Fenced as error:
            raise ended from error
        return Response(status_code=204)

    async def _begin(self, request: Request) -> tuple[StreamRecord, Mutator]:
        record = await self._find(request)
        return record, self._mutators.of(record.stream_id)

    async def _find(self, request: Request) -> StreamRecord:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        return await self._registry.find(full_name_of(request.scope, request.path_params["s"]))


_R = TypeVar("_R", bound=_Range)


async def _read_range(request: Request, model: type[_R]) -> _R:
    asked = await read_closed_body(request, model)
    if asked.from_offset >= asked.to_offset:
        raise InvalidRequest(
            "the range must have an offset in it",
            code=Code.VALIDATION_FAILED,
            faults=[Fault("range-reversed", "must be above from_offset", "/to_offset")],
        )
    return asked


def _headers(record: StreamRecord) -> dict[str, str]:
    return {"stream-id": record.stream_id, "cache-control": "no-store"}
