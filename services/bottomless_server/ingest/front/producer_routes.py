"""What a stream knows of its producers, shown and changed: openapi/ingest.yaml.

Changes go through the appender of the stream, in order with its appends, and are answered when
they are durable.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import KIB
from bottomless.model.names import StreamId, parse_reference
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.core.tracking.known_producers import Producer
from bottomless_server.ingest.front.lookup import AppenderLookup
from bottomless_server.ingest.ports import Appender
from bottomless_server.ingest.producers.producer_changes import producer_not_found
from bottomless_server.ingest.producers.producers import MODES
from bottomless_server.runtime.http.app import (
    header,
    integer,
    json_response,
    negotiate,
    parse_query,
    read_body,
    text,
)
from bottomless_server.runtime.http.full_names import full_name_of

_PAGE_COUNT_DEFAULT: Final = 100
_PAGE_COUNT_MAX: Final = 1000


class ProducerRoutes:
    """The routes of producers; `s` and `p` are the names of stream and producer in a path."""

    def __init__(self, lookup: AppenderLookup) -> None:
        self._lookup = lookup

    async def show_all(self, s: str, request: Request) -> Response:
        """Answer a page of the producers of a stream."""
        asked = parse_query(
            request.scope, {"limit": integer(1, _PAGE_COUNT_MAX), "page_token": text}
        )
        _require_json(request)
        limit = asked.get("limit", _PAGE_COUNT_DEFAULT)
        appender = await self._find(request, s)
        after = _after(asked.get("page_token"), appender.stream_id)
        # One more than is asked for tells whether there is a next page.
        known = await appender.list_producers(after, limit + 1)
        page = known[:limit]
        body = {
            "items": [_shown(name, producer) for name, producer in page],
            "next_page_token": _token(appender.stream_id, page[-1][0])
            if len(known) > limit
            else None,
        }
        return json_response(body, headers={"stream-id": appender.stream_id})

    async def show(self, s: str, p: str, request: Request) -> Response:
        """Answer what is known of one producer."""
        parse_query(request.scope, {})
        _require_json(request)
        producer_id = parse_reference(p)
        return await _answer(await self._find(request, s), producer_id)

    async def raise_epoch(self, s: str, p: str, request: Request) -> Response:
        """Lock earlier writers of a producer out, and answer its new epoch."""
        parse_query(request.scope, {})
        _require_json(request)
        producer_id = parse_reference(p)
        if await read_body(request.scope, request.receive, KIB):
            raise InvalidRequest("this request takes no body", code=Code.VALIDATION_FAILED)
        appender = await self._find(request, s)
        await appender.raise_epoch(producer_id)
        return await _answer(appender, producer_id)

    async def forget(self, s: str, p: str, request: Request) -> Response:
        """Make a producer unknown to a stream."""
        parse_query(request.scope, {})
        producer_id = parse_reference(p)
        appender = await self._find(request, s)
        await appender.forget_producer(producer_id)
        return Response(status_code=204, headers={"stream-id": appender.stream_id})

    async def _find(self, request: Request, s: str) -> Appender:
        return await self._lookup.find(full_name_of(request.scope, s))


def add_producer_routes(api: FastAPI, lookup: AppenderLookup) -> None:
    """Serve producers beside what `api` serves."""
    routes = ProducerRoutes(lookup)
    several = "/v1/streams/{s}/producers"
    one = f"{several}/{{p}}"
    api.add_api_route(several, routes.show_all, methods=["GET"], operation_id="list_producers")
    api.add_api_route(one, routes.show, methods=["GET"], operation_id="get_producer")
    api.add_api_route(one, routes.forget, methods=["DELETE"], operation_id="forget_producer")
    api.add_api_route(
        f"{one}/epoch", routes.raise_epoch, methods=["POST"], operation_id="raise_producer_epoch"
    )


def _require_json(request: Request) -> None:
    negotiate(header(request.scope, b"accept"), ["application/json"])


async def _answer(appender: Appender, producer_id: str) -> Response:
    producer = await appender.find_producer(producer_id)
    if producer is None:
        raise producer_not_found()
    return json_response(_shown(producer_id, producer), headers={"stream-id": appender.stream_id})


def _shown(producer_id: str, producer: Producer) -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "mode": MODES.get(producer.mode),
        "epoch": producer.epoch,
        "last_seq": producer.last_sequence,
        "updated_at": format_timestamp(producer.timestamp),
    }


def _token(stream_id: StreamId, name: str) -> str:
    # Says nothing that the page did not; the stream is in it so that it goes on with no other.
    place = f"{stream_id}:{name}".encode("ascii")
    return urlsafe_b64encode(place).decode("ascii").rstrip("=")


def _after(token: str | None, stream_id: StreamId) -> str:
    """The producer after which a page begins.

    Raises:
        InvalidRequest: the token was not made for this list.
    """
    if token is None:
        return ""
    try:
        padded = token.encode("ascii") + b"=" * (-len(token) % 4)
        of_stream, _, name = urlsafe_b64decode(padded).decode("ascii").partition(":")
        if of_stream == stream_id:
            return parse_reference(name)
    except (binascii.Error, UnicodeError, InvalidRequest):
        pass
    sentence = "the page token was not made for this list; begin the list anew, without a token"
    fault = Fault(Code.BAD_PARAMETER, sentence, parameter="page_token")
    raise InvalidRequest(sentence, faults=[fault])
