"""The public application of ingest: `POST /v1/streams/{name}/records`, spoken as raw ASGI.

FastAPI costs four times as much as the rest of a small append, so it stands beside this route and
serves everything else.

On the record's path: after openapi/ingest.yaml, before append_requests.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Code, Outcome, StoreError, Unavailable
from bottomless.model.names import FullName
from bottomless_server.ingest.front.answers import answer_to, wants_minimal
from bottomless_server.ingest.front.append_requests import AppendedTo, AppendRequests
from bottomless_server.ingest.front.lookup import AppenderLookup
from bottomless_server.ingest.front.super_routes import OPERATIONS as SUPER_OPERATIONS
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.forwarded import ForwardedRequests
from bottomless_server.node.forwarding import (
    Answer,
    is_forwarded,
    is_undone,
    send_forwarded,
)
from bottomless_server.node.kept_body import KeptBody
from bottomless_server.node.room import MemoryRoom
from bottomless_server.runtime.http.app import ClientGone, request_id_of, send_problem
from bottomless_server.runtime.http.endpoint_table import STREAM
from bottomless_server.runtime.http.endpoints import find
from bottomless_server.runtime.http.expecting import Expecting
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.problems import unexpected
from bottomless_server.runtime.http.whole_answer import send_whole

log = structlog.get_logger(__name__)

APPEND: Final = "append_records"
GIVEN_AWAY_SECONDS: Final = 2.0
"""How long a request waits for the next owner where the one before is about to stop: it gives its streams
to other nodes meanwhile."""
_LOOK_SECONDS: Final = 0.2
_OURS: Final = ("ingest",)

Here = Callable[[Receive], Awaitable[None]]
"""Answers a request on this node, whose body comes by what it is given."""


class _Here(Enum):
    """The node that was asked is the owner by now."""

    HERE = "here"


_HERE: Final = _Here.HERE


class AppendRoute:
    """Answers appends itself and leaves everything else to `others`.

    A request about a stream that another node owns is passed on to that node. Where that one turns out
    to own it no more, and has done nothing, it is passed on once more, to the next owner.
    """

    def __init__(
        self,
        requests: AppendRequests,
        lookup: AppenderLookup,
        forwarded: ForwardedRequests,
        room: MemoryRoom,
        others: ASGIApp,
    ) -> None:
        """`room` is where bodies that are passed on are kept as long as they may have to be sent again."""
        self._requests = requests
        self._lookup = lookup
        self._forwarded = forwarded
        self._room = room
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = find(scope)
        endpoint = found.endpoints.get(scope["method"])
        stream = found.parts.get(STREAM)
        if stream is None or endpoint is None or endpoint.operation_id != APPEND:
            owner = None
            of_super = endpoint is not None and endpoint.operation_id in SUPER_OPERATIONS
            if stream is not None and not of_super and found.services(scope["method"]) == _OURS:
                # A path of ingest alone: what it is about is the owner's.
                owner = await self._owner_elsewhere(stream, scope)
            if owner is None or stream is None:
                await self._others(scope, receive, send)
            else:

                async def others(received: Receive) -> None:
                    await self._others(scope, received, send)

                work = self._forward(owner, stream, scope, receive, send, others)
                await self._answer(work, scope, send)
            return
        expecting = Expecting(scope, receive, send)
        work = self._append(stream, scope, expecting.receive, expecting.send)
        await self._answer(work, scope, expecting.send)

    async def _append(self, text: str, scope: Scope, receive: Receive, send: Send) -> None:
        async def here(received: Receive) -> None:
            done = await self._requests.take(text, scope, received)
            await send_whole(send, answer_to(done, minimal=wants_minimal(scope)))

        try:
            done = await self._take(text, scope, receive)
        except OwnedElsewhere as owner:
            if is_forwarded(scope):
                raise
            await self._forward(owner, text, scope, receive, send, here)
            return
        await send_whole(send, answer_to(done, minimal=wants_minimal(scope)))

    async def _take(self, text: str, scope: Scope, receive: Receive) -> AppendedTo:
        try:
            return await self._requests.take(text, scope, receive)
        except OwnedElsewhere:
            if not is_forwarded(scope):
                raise
            # Before its body was read. Another node takes this one for the owner, perhaps since the stream
            # has just been given to it; what is remembered here may be older than that.
            await self._lookup.forget_owner(full_name_of(scope, text))
            return await self._requests.take(text, scope, receive)

    async def _owner_elsewhere(self, text: str, scope: Scope) -> OwnedElsewhere | None:
        """The node that has to be asked instead of this one; None where this one answers, also if
        it refuses."""
        if is_forwarded(scope):
            return None
        try:
            await self._lookup.find(full_name_of(scope, text))
        except OwnedElsewhere as owner:
            return owner
        except StoreError:
            pass
        return None

    async def _forward(
        self,
        owner: OwnedElsewhere,
        text: str,
        scope: Scope,
        receive: Receive,
        send: Send,
        here: Here,
    ) -> None:
        """Pass a request on to the owner of its stream, and to the next one if the stream has moved.

        It is passed on marked, and no node passes on what is; so two that take each other for the owner
        form no loop, and a request is sent twice at most.
        """
        name = full_name_of(scope, text)
        with KeptBody(receive, self._room, name) as body:
            answer: Answer | Unavailable
            try:
                answer = await self._forwarded.ask(owner, scope, body.receive)
            except Unavailable as error:
                if error.code is not Code.NOT_OWNER or not is_undone(error.outcome):
                    raise
                answer = error
            try:
                moved = await self._next_owner(name, owner, answer) if body.is_kept else None
                if moved is _HERE:
                    await here(body.again())
                    return
                if isinstance(moved, OwnedElsewhere):
                    answer = await self._forwarded.ask(moved, scope, body.again())
                if isinstance(answer, Unavailable):
                    raise answer
                await send_forwarded(send, answer)
            finally:
                # An error refers to this frame.
                del answer

    async def _next_owner(
        self, name: FullName, before: OwnedElsewhere, answer: Answer | Unavailable
    ) -> OwnedElsewhere | _Here | None:
        """The node that owns a stream by now, after one that answered this; None where nobody else does,
        or something may have been done.

        One that is about to stop gives its streams to others meanwhile, which is waited for.
        """
        draining = False
        if isinstance(answer, Answer):
            if not answer.undone:
                return None
            draining = answer.draining
        clock = asyncio.get_running_loop().time
        deadline = clock() + (GIVEN_AWAY_SECONDS if draining else 0)
        while True:
            try:
                await self._lookup.find(name)
            except OwnedElsewhere as owner:
                if owner.owner_url != before.owner_url:
                    return owner
                # It is remembered for a while.
                await self._lookup.forget_owner(name)
            except StoreError as error:
                if error.code is Code.DRAINING:
                    # This node: it finds out nothing any more.
                    return None
            else:
                return _HERE
            if clock() >= deadline:
                return None
            await asyncio.sleep(_LOOK_SECONDS)

    async def _answer(self, work: Awaitable[None], scope: Scope, send: Send) -> None:
        request_id = request_id_of(scope)
        try:
            await work
        except ClientGone:
            # Nobody is there to answer, and nothing was stored.
            return
        except StoreError as error:
            await send_problem(send, error, request_id, scope["path"])
        except Exception as error:
            log.exception("an append met a bug", request_id=request_id)
            await send_problem(send, unexpected(error, Outcome.UNKNOWN), request_id)
