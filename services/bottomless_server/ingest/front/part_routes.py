"""The internal listener: parts of requests to super streams, which another node has divided.

A part is read and appended as an append is: its body by the same function, its room from the same
memory, its records by the same task. After a crash it is stored or not, as an append is, and whoever
sent it does not know: the request comes again.

On the record's path: after remote_partitions.py on another node, before records/intake.py.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.responses import Response

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import BINARY_BODY_SIZE_MAX, DECOMPRESSED_SIZE_MAX
from bottomless.model.names import NodeId, parse_stream_id
from bottomless_server.ingest.front.forms import INLINE_SIZE
from bottomless_server.ingest.ports import Partitions
from bottomless_server.ingest.producers import super_requests
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.frames import is_plain
from bottomless_server.ingest.records.intake import Append, take_frames
from bottomless_server.node.meant import require_meant
from bottomless_server.node.room import MemoryRoom
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.protocol.parts import (
    LAYOUT,
    PART_QUERY,
    PARTS,
    PARTS_MEDIA_TYPE,
    STEPS,
    LayoutTold,
    PartAsked,
    PartSaid,
    StepBody,
    decode_part_asked,
    encode_part,
    encode_step_said,
)
from bottomless_server.runtime.http.app import (
    content_type,
    header,
    message_response,
    parse_json,
    parse_query,
    read_body,
)
from bottomless_server.runtime.http.problems import enough_memory

PART_SIZE_MAX: Final = DECOMPRESSED_SIZE_MAX + BINARY_BODY_SIZE_MAX
"""Bytes of a part: all records of a request may have one partition, and frames of the smallest
records are larger than what was sent."""
_SMALL_BODY_SIZE: Final = 65_536


class PartRoutes:
    """What the routes are made of."""

    def __init__(
        self,
        partitions: Partitions,
        under_way: RequestsUnderWay,
        room: MemoryRoom,
        frame_size_max: int,
        mine: Callable[[], NodeId],
    ) -> None:
        """`mine` tells which node this is."""
        self._mine = mine
        self._partitions = partitions
        self._under_way = under_way
        self._room = room
        self._frame_size_max = frame_size_max

    async def append_part(self, stream_id: str, request: Request) -> Response:
        """Append a part, and answer where its records are."""
        asked = decode_part_asked(parse_query(request.scope, PART_QUERY))
        content_type(request.scope, (PARTS_MEDIA_TYPE,))
        declared = header(request.scope, b"content-length")
        size = int(declared) if declared is not None and declared.isdigit() else PART_SIZE_MAX
        self._under_way.require_accepting()
        with self._under_way.counted():
            found = parse_stream_id(stream_id)
            partition = await self._partitions.get(found)
            async with self._room.body(found, min(size, PART_SIZE_MAX)) as room:
                with enough_memory():
                    receive = room.noting(request.receive)
                    body = await read_body(request.scope, receive, PART_SIZE_MAX)
                    append = await self._read(body, asked)
                appended = await partition.append_part(append)
        return message_response(encode_part(said_of(appended)))

    async def do_step(self, stream_id: str, request: Request) -> Response:
        """Do a step, and answer what the partition says of it."""
        asked = StepBody.asked(await _body(request, StepBody))
        self._under_way.require_accepting()
        with self._under_way.counted():
            partition = await self._partitions.get(parse_stream_id(stream_id))
            return message_response(encode_step_said(await partition.do_step(asked)))

    async def fence_layouts(self, stream_id: str, request: Request) -> Response:
        """Take no part of an older layout from now on."""
        require_meant(request.scope, self._mine())
        told = await _body(request, LayoutTold)
        partition = await self._partitions.get(parse_stream_id(stream_id))
        await partition.fence_layouts(told.layout)
        return message_response({})

    async def _read(self, body: bytes, asked: PartAsked) -> Append:
        if len(body) <= INLINE_SIZE and is_plain(body):
            return take_part(body, asked, self._frame_size_max)
        return await asyncio.to_thread(take_part, body, asked, self._frame_size_max)


def add_part_routes(api: FastAPI, routes: PartRoutes) -> None:
    """Serve parts beside what `api` serves."""
    api.add_api_route(PARTS, routes.append_part, methods=["POST"])
    api.add_api_route(STEPS, routes.do_step, methods=["POST"])
    api.add_api_route(LAYOUT, routes.fence_layouts, methods=["PUT"])


def take_part(body: bytes, asked: PartAsked, frame_size_max: int) -> Append:
    """Make the append that a part is.

    Raises:
        InvalidRequest: 413 or 422.
    """
    request = None
    if asked.producer_id is not None:
        request = super_requests.Request(
            asked.producer_id, asked.epoch, asked.first, asked.last, asked.body_crc
        )
    conditions = super_requests.conditions_of_part(
        request, asked.layout, resumed=bool(asked.resumed)
    )
    append = take_frames(body, frame_size_max, conditions)
    # A repeat is told by the whole request, of which this is a part.
    return append if request is None else replace(append, body_crc=asked.body_crc)


def said_of(appended: Appended) -> PartSaid:
    """What is told of a part that is stored."""
    return PartSaid(**appended._asdict())


async def _body(request: Request, kind: type[Any]) -> Any:
    parse_query(request.scope, {})
    assert issubclass(kind, ClosedBody)
    value = parse_json(await read_body(request.scope, request.receive, _SMALL_BODY_SIZE))
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        sentence = "the body does not fit its schema"
        raise InvalidRequest(sentence, code=Code.VALIDATION_FAILED) from error
