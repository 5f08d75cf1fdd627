"""`POST /produce`: appends to several partitions in one request, each an append like any other.

A partition's records become the body of an ordinary append, with the headers that its producer and
its expected offset are; from there on it goes the ordinary way (`append_requests.py`), or to the node
that owns the stream. So bodies, promises, bounds and answers are those of appends, and a repeat is
known also where the original came by the other interface. What is added here is that the scope and
the rate are asked for each stream, and that the first produce may make it.

On the record's path: instead of routes.py, before append_requests.py.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import orjson
import structlog
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Message, Scope

from bottomless.errors import Code, Exists, NotFound, Outcome, StoreError, Unavailable
from bottomless.model.names import FullName, StreamId
from bottomless_server.core.broker.asked import Produced, read_produce
from bottomless_server.core.broker.results import Result, refused, stored, whole
from bottomless_server.core.scopes import Operation
from bottomless_server.ingest.front.append_requests import AppendRequests
from bottomless_server.ingest.front.names import StreamNames
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.forwarded import ForwardedRequests
from bottomless_server.node.forwarding import Answer
from bottomless_server.node.room import MemoryRoom
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.runtime.base.principal import note_principal, principal_of
from bottomless_server.runtime.http.app import request_id_of
from bottomless_server.runtime.http.broker import (
    HEALTH,
    INLINE_SIZE,
    PRODUCE,
    BrokerHealth,
    check_form,
    read_value,
    results_response,
)
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.problems import enough_memory, take_request_id, unexpected
from bottomless_server.runtime.identity.audit import note_action, note_targets
from bottomless_server.runtime.process.rate_limits import count_by_route

log = structlog.get_logger(__name__)

CREATE: Final = "stream.create"
"""What the audit calls a produce that made a stream, as it calls a PUT of one."""


class ProduceRoute:
    """The route of produce."""

    def __init__(
        self,
        requests: AppendRequests,
        forwarded: ForwardedRequests,
        under_way: RequestsUnderWay,
        room: MemoryRoom,
        makes: StreamNames | None,
    ) -> None:
        """`makes` makes the streams of partitions that are not there; None where nobody shall."""
        self._requests = requests
        self._forwarded = forwarded
        self._under_way = under_way
        self._room = room
        self._makes = makes

    async def produce(self, request: Request) -> Response:
        """Answer a request to append to several partitions."""
        scope = request.scope
        size = check_form(scope)
        self._under_way.require_accepting()
        with self._under_way.counted():
            asked = await self._read(request, size)
            made: list[str] = []
            results = await asyncio.gather(*(self._result(scope, one, made) for one in asked))
        if made:
            note_action(scope, CREATE)
            note_targets(scope, sorted(made))
        return results_response(whole(results))

    async def _read(self, request: Request, size: int) -> Sequence[Produced]:
        """What is asked for. Room is held for the body as if it were one stream's of its tenant, until
        each partition takes its own."""
        whose = StreamId(f"produce of {principal_of(request.scope).tenant}")
        async with self._room.body(whose, size) as room:
            with enough_memory():
                value = await read_value(request.scope, room.noting(request.receive))
                if size <= INLINE_SIZE:
                    return read_produce(value)
                return await asyncio.to_thread(read_produce, value)

    async def _result(self, scope: Scope, asked: Produced, made: list[str]) -> Result:
        """What became of one partition; `made` is told of a stream that was made for it."""
        try:
            return await self._append(scope, asked, made)
        except StoreError as error:
            return refused(asked.place, error, write=True)
        except Exception as error:
            log.exception("a produce met a bug", request_id=request_id_of(scope))
            return refused(asked.place, unexpected(error, Outcome.UNKNOWN), write=True)

    async def _append(self, scope: Scope, asked: Produced, made: list[str]) -> Result:
        name = full_name_of(scope, asked.place.stream)
        principal_of(scope).require_visible(Operation.APPEND, name.name)
        count_by_route(scope, len(asked.body))
        try:
            return await self._append_to(scope, name, asked)
        except NotFound as error:
            if self._makes is None or not _is_missing(error):
                raise
            if not principal_of(scope).grants.allow(Operation.MANAGE, name.name):
                raise
            if await _make(self._makes, name):
                made.append(name.name)
        return await self._append_to(scope, name, asked)

    async def _append_to(self, scope: Scope, name: FullName, asked: Produced) -> Result:
        alone = _scope_of(scope, name, asked)
        try:
            done = await self._requests.take(name.name, alone, _body_of(asked))
        except OwnedElsewhere as owner:
            answer = await self._forwarded.ask(owner, alone, _body_of(asked))
            return _told(asked, answer)
        appended = done.appended
        return stored(
            asked.place,
            done.stream_id,
            appended.first_offset,
            appended.next_offset,
            appended.record_count,
        )


def add_produce_route(
    api: FastAPI,
    requests: AppendRequests,
    forwarded: ForwardedRequests,
    under_way: RequestsUnderWay,
    room: MemoryRoom,
    *,
    health: BrokerHealth,
    makes: StreamNames | None,
) -> None:
    """Serve the part of the broker contract that is ingest's, beside what `api` serves."""
    route = ProduceRoute(requests, forwarded, under_way, room, makes)
    api.add_api_route(PRODUCE, route.produce, methods=["POST"], operation_id="produce")
    api.add_api_route(HEALTH, health.show, methods=["GET"], operation_id="get_broker_health")


def _is_missing(error: NotFound) -> bool:
    return error.code is Code.STREAM_NOT_FOUND


async def _make(names: StreamNames, name: FullName) -> bool:
    """Make a stream; returns whether there was none before, as far as manifest knows.

    Raises:
        StoreError: there is none; outcome none, since nothing was appended.
    """
    try:
        return await names.make(name)
    except Exists:
        # Somebody else made it meanwhile, and otherwise.
        return False
    except Unavailable as error:
        raise Unavailable(
            error.message, code=error.code, retry_after_seconds=error.retry_after_seconds or 1
        ) from error


def _scope_of(scope: Scope, name: FullName, asked: Produced) -> Scope:
    """The scope of the ordinary append of one partition, from the same principal."""
    path = f"/v1/streams/{name.name}/records"
    alone: Scope = {
        "type": "http",
        "asgi": scope["asgi"],
        "http_version": scope["http_version"],
        "method": "POST",
        "scheme": scope["scheme"],
        "path": path,
        "raw_path": path.encode("ascii"),
        "query_string": b"",
        "root_path": "",
        "headers": asked.headers,
        "client": scope.get("client"),
        "server": scope.get("server"),
    }
    note_principal(alone, principal_of(scope))
    take_request_id(alone, request_id_of(scope))
    return alone


def _body_of(asked: Produced) -> Any:
    async def receive() -> Message:
        return {"type": "http.request", "body": asked.body, "more_body": False}

    return receive


def _told(asked: Produced, answer: Answer) -> Result:
    """What the owner of a stream answered to the ordinary append.

    Raises:
        StoreError: what it refused, as it said it.
    """
    try:
        said = orjson.loads(answer.body)
        if answer.status == 200:
            return stored(
                asked.place,
                said["stream_id"],
                said["first_offset"],
                said["next_offset"],
                said["count"],
            )
        error = StoreError(
            said["detail"],
            code=Code(said["code"]),
            retryable=said["retryable"],
            outcome=Outcome(said.get("outcome", Outcome.UNKNOWN)),
            retry_after_seconds=_retry_after(answer),
            facts={"next_offset": said["next_offset"]} if "next_offset" in said else {},
        )
    except (KeyError, TypeError, ValueError) as failure:
        sentence = "the owner of the stream gave an answer that the protocol does not know"
        raise Unavailable(sentence, outcome=Outcome.UNKNOWN) from failure
    raise error


def _retry_after(answer: Answer) -> float | None:
    value = dict(answer.headers).get(b"retry-after", b"")
    return float(value) if value.isdigit() else None
