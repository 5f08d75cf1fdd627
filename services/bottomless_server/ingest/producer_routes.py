"""What a stream knows of its producers, shown and changed: openapi/ingest.yaml.

Changes go through the stream's appender, in order with its appends, and are answered when
they are durable: the log holds them, as it holds appends (producer_log.py).
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from heapq import nsmallest
from typing import Any, Final

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import KIB
from bottomless.model.names import parse_reference, parse_stream_name
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.ingest.appender import Appender, StateChange
from bottomless_server.ingest.core.producers import (
    MODES,
    forget,
    producer_not_found,
    raise_epoch,
)
from bottomless_server.ingest.core.tracking import Producer
from bottomless_server.ingest.routes import Appends
from bottomless_server.runtime.http import integer, json_response, parse_query, read_body

_PAGE_COUNT_DEFAULT: Final = 100
_PAGE_COUNT_MAX: Final = 1000


class ProducerRoutes:
    """The routes of producers."""

    def __init__(self, appends: Appends) -> None:
        self._appends = appends

    async def show_all(self, s: str, request: Request) -> Response:
        asked = parse_query(
            request.scope, {"limit": integer(1, _PAGE_COUNT_MAX), "page_token": _last_of_page}
        )
        limit, after = asked.get("limit", _PAGE_COUNT_DEFAULT), asked.get("page_token", "")
        appender = await self._find(s)
        known = appender.tracking.producers
        names = nsmallest(limit + 1, (name for name in known if name > after))
        body = {
            "items": [_shown(name, known[name]) for name in names[:limit]],
            "next_page_token": _token(names[limit - 1]) if len(names) > limit else None,
        }
        return json_response(body, headers={"stream-id": appender.stream_id})

    async def show(self, s: str, p: str, request: Request) -> Response:
        parse_query(request.scope, {})
        producer_id = parse_reference(p)
        return _answer(await self._find(s), producer_id)

    async def raise_epoch(self, s: str, p: str, request: Request) -> Response:
        parse_query(request.scope, {})
        producer_id = parse_reference(p)
        if await read_body(request.scope, request.receive, KIB):
            raise InvalidRequest("there is no body here", code=Code.VALIDATION_FAILED)
        appender = await self._change(
            s, lambda tracking, now: raise_epoch(tracking, producer_id, now)
        )
        return _answer(appender, producer_id)

    async def forget(self, s: str, p: str, request: Request) -> Response:
        parse_query(request.scope, {})
        producer_id = parse_reference(p)
        appender = await self._change(s, lambda tracking, now: forget(tracking, producer_id, now))
        return Response(status_code=204, headers={"stream-id": appender.stream_id})

    async def _change(self, s: str, change: StateChange) -> Appender:
        appender = await self._find(s)
        self._appends.require_disk()
        await appender.change(change)
        return appender

    async def _find(self, s: str) -> Appender:
        return await self._appends.find(parse_stream_name(s))


def add_producer_routes(api: FastAPI, appends: Appends) -> None:
    """Serve producers beside what `api` serves."""
    routes = ProducerRoutes(appends)
    several = "/v1/streams/{s}/producers"
    one = f"{several}/{{p}}"
    api.add_api_route(several, routes.show_all, methods=["GET"], operation_id="list_producers")
    api.add_api_route(one, routes.show, methods=["GET"], operation_id="get_producer")
    api.add_api_route(one, routes.forget, methods=["DELETE"], operation_id="forget_producer")
    api.add_api_route(
        f"{one}/epoch", routes.raise_epoch, methods=["POST"], operation_id="raise_producer_epoch"
    )


def _answer(appender: Appender, producer_id: str) -> Response:
    producer = appender.tracking.producers.get(producer_id)
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


def _token(name: str) -> str:
    return urlsafe_b64encode(name.encode("ascii")).decode("ascii").rstrip("=")


def _last_of_page(token: str) -> str:
    try:
        padded = token.encode("ascii") + b"=" * (-len(token) % 4)
        return parse_reference(urlsafe_b64decode(padded).decode("ascii"))
    except (binascii.Error, UnicodeError, InvalidRequest):
        raise InvalidRequest("it was not made by this service") from None
