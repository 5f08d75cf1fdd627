"""The public application of ingest: `POST /v1/streams/{name}/records`, spoken as raw ASGI.

FastAPI costs four times as much as the rest of a small append, so it stands beside this route and
serves everything else.

On the record's path: after openapi/ingest.yaml, before append_requests.py.
"""

from collections.abc import Awaitable
from typing import Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Outcome, StoreError
from bottomless_server.ingest.front.answers import answer_to, wants_minimal
from bottomless_server.ingest.front.append_requests import AppendedTo, AppendRequests
from bottomless_server.ingest.front.lookup import AppenderLookup
from bottomless_server.ingest.front.super_routes import OPERATIONS as SUPER_OPERATIONS
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.forwarded import ForwardedRequests
from bottomless_server.node.forwarding import is_forwarded, send_forwarded
from bottomless_server.runtime.http.app import ClientGone, request_id_of, send_problem
from bottomless_server.runtime.http.endpoint_table import STREAM
from bottomless_server.runtime.http.endpoints import find
from bottomless_server.runtime.http.expecting import Expecting
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.problems import unexpected
from bottomless_server.runtime.http.whole_answer import send_whole

log = structlog.get_logger(__name__)

APPEND: Final = "append_records"
_OURS: Final = ("ingest",)


class AppendRoute:
    """Answers appends itself and leaves everything else to `others`.

    A request about a stream that another node owns is passed on to that node.
    """

    def __init__(
        self,
        requests: AppendRequests,
        lookup: AppenderLookup,
        forwarded: ForwardedRequests,
        others: ASGIApp,
    ) -> None:
        self._requests = requests
        self._lookup = lookup
        self._forwarded = forwarded
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
            if owner is None:
                await self._others(scope, receive, send)
            else:
                await self._answer(self._forward(owner, scope, receive, send), scope, send)
            return
        expecting = Expecting(scope, receive, send)
        work = self._append(stream, scope, expecting.receive, expecting.send)
        await self._answer(work, scope, expecting.send)

    async def _append(self, text: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            done = await self._take(text, scope, receive)
        except OwnedElsewhere as owner:
            if is_forwarded(scope):
                raise
            await self._forward(owner, scope, receive, send)
            return
        await send_whole(send, answer_to(done, minimal=wants_minimal(scope)))

    async def _take(self, text: str, scope: Scope, receive: Receive) -> AppendedTo:
        try:
            return await self._requests.take(text, scope, receive)
        except OwnedElsewhere as owner:
            if not is_forwarded(scope):
                raise
            # Before its body was read. Another node takes this one for the owner, perhaps since the stream
            # has just been given to it; what is remembered here may be older than that.
            self._forwarded.forget(owner)
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
        self, owner: OwnedElsewhere, scope: Scope, receive: Receive, send: Send
    ) -> None:
        await send_forwarded(send, await self._forwarded.ask(owner, scope, receive))

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
