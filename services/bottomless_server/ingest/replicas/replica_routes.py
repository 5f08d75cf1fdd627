"""The internal listener: what owners send to the logs that follow theirs here.

A body is received whole, in memory that is reserved for it, and verified to the last chunk before
anything of it is taken. After a crash its items are there or not, each as its stream says
(followed_stream.py); whoever sent it asks for the ends of the logs before it sends more.
"""

from collections.abc import Callable

import structlog
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Scope

from bottomless.errors import Code, Corrupt, InvalidRequest, Unavailable
from bottomless.model.names import NodeId, parse_stream_id
from bottomless_server.ingest.replicas.following import Following
from bottomless_server.node.core.following import OpenRefusal
from bottomless_server.node.core.troubles import Troubles
from bottomless_server.node.meant import require_meant
from bottomless_server.node.room import MemoryRoom
from bottomless_server.protocol.replica import (
    BODY_SIZE_MAX,
    ITEMS,
    MEDIA_TYPE,
    NODE_HEADER,
    OPEN,
    OPENING_SIZE_MAX,
    OpenSaid,
    decode_items,
    decode_opening,
    encode_answers,
    encode_open_said,
)
from bottomless_server.runtime.http.app import (
    content_type,
    header,
    parse_query,
    read_body,
    said_in_log,
    with_shortcut,
)
from bottomless_server.runtime.http.problems import enough_memory

log = structlog.get_logger(__name__)

_JSON = "application/json"
_NODE_SIZE = 32
"""Digits of the id of a node, of which no more are kept than these."""
_OWNER = "replicas"
"""Under which all bodies together reserve memory."""


class ReplicaRoutes:
    """What the routes are made of."""

    def __init__(
        self,
        following: Following,
        room: MemoryRoom,
        mine: Callable[[], NodeId],
        monotonic: Callable[[], float],
    ) -> None:
        """`mine` tells which node this is, which the data directory says; `monotonic` is a clock in seconds."""
        self._following = following
        self._room = room
        self._mine = mine
        self._monotonic = monotonic
        self._troubles = Troubles()

    async def open(self, stream_id: str, request: Request) -> Response:
        """Open the log of a stream for its owner, and answer where it ends or why it is not open."""
        parse_query(request.scope, {})
        self._require_meant(request.scope)
        body = await read_body(request.scope, request.receive, OPENING_SIZE_MAX)
        try:
            opening = decode_opening(body)
        except Corrupt as error:
            sentence = "the body does not open a replica"
            raise InvalidRequest(sentence, code=Code.VALIDATION_FAILED) from error
        opened = await self._following.open(parse_stream_id(stream_id), opening)
        if isinstance(opened, OpenRefusal):
            said = OpenSaid(opened.value, None)
        else:
            said = OpenSaid(None, opened)
        return Response(encode_open_said(said), 200, media_type=_JSON)

    async def take(self, request: Request) -> Response:
        """Take items of many streams, and answer each of them."""
        parse_query(request.scope, {})
        self._require_meant(request.scope)
        content_type(request.scope, (MEDIA_TYPE,))
        declared = header(request.scope, b"content-length")
        size = int(declared) if declared is not None and declared.isdigit() else BODY_SIZE_MAX
        async with self._room.body(_OWNER, min(size, BODY_SIZE_MAX)) as room:
            with enough_memory():
                receive = room.noting(request.receive)
                body = await read_body(request.scope, receive, BODY_SIZE_MAX)
            try:
                answers = await self._following.take(decode_items(body))
            except Corrupt as error:
                sentence = "the body is damaged, or no body of replicas"
                raise InvalidRequest(sentence, code=Code.CRC_MISMATCH) from error
        return Response(encode_answers(answers), 200, media_type=_JSON)

    def _require_meant(self, scope: Scope) -> None:
        try:
            require_meant(scope, self._mine())
        except Unavailable:
            # An owner tries a node whose disk is lost every two seconds, until it has replaced it.
            said_in_log(scope)
            meant = (header(scope, NODE_HEADER.encode()) or "")[:_NODE_SIZE]
            lasting = self._troubles.meet(meant, self._monotonic())
            if lasting is not None:
                log.warning(
                    "owners send for a node that had this address before",
                    node=meant,
                    seconds=lasting.seconds,
                    attempts=lasting.times,
                )
            raise


def add_replica_routes(api: FastAPI, routes: ReplicaRoutes) -> ASGIApp:
    """Serve them beside what `api` serves; returns the application that is to be asked from now on."""
    api.add_api_route(OPEN, routes.open, methods=["POST"])
    api.add_api_route(ITEMS, routes.take, methods=["POST"])
    return with_shortcut(api, "POST", ITEMS, routes.take)
