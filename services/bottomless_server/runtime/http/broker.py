"""What both services of the broker contract say over HTTP: bodies in, results out, and health.

The answer to a request about several partitions is its results, whatever became of them: a problem
tells of one thing, and these are many. A request that is refused as a whole is a problem like any
other, with 400 where the contract of this interface says so.
"""

import asyncio
import os
import time
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import JSON_BODY_SIZE_MAX, KIB
from bottomless_server.core.broker.results import Verdict, Whole
from bottomless_server.runtime.http.app import (
    content_encoding,
    content_type,
    header,
    json_response,
    negotiate,
    parse_json,
    parse_query,
    read_body,
)
from bottomless_server.runtime.http.problems import STATUS

PRODUCE: Final = "/produce"
CONSUME: Final = "/consume"
HEALTH: Final = "/health"
JSON: Final = "application/json"
INLINE_SIZE: Final = 64 * KIB
"""Larger bodies are parsed in a thread."""

_STATUS: Final = {
    Verdict.GOOD: 200,
    Verdict.HELD_BACK: STATUS[Code.OVERLOADED],
    Verdict.FAILED: STATUS[Code.STREAM_EXISTS],
}


def check_form(scope: Scope) -> int:
    """Refuse what is no request of this contract, before its body is read; returns how many bytes
    that may have.

    Raises:
        InvalidRequest: 400, 406 or 415.
    """
    parse_query(scope, {})
    negotiate(header(scope, b"accept"), [JSON])
    content_type(scope, [JSON])
    content_encoding(scope)
    declared = header(scope, b"content-length")
    if declared is None or not declared.isdigit():
        return JSON_BODY_SIZE_MAX
    return min(int(declared), JSON_BODY_SIZE_MAX)


async def read_value(scope: Scope, receive: Receive) -> Any:
    """The JSON of a body.

    Raises:
        InvalidRequest: 400, 413.
        ClientGone
    """
    body = await read_body(scope, receive, JSON_BODY_SIZE_MAX)
    return _parsed(body) if len(body) <= INLINE_SIZE else await asyncio.to_thread(_parsed, body)


def _parsed(body: bytes) -> Any:
    try:
        return parse_json(body)
    except InvalidRequest as error:
        if error.code is not Code.NUMBER_OUT_OF_RANGE:
            raise
        # Elsewhere the body is JSON whose values are stored; here no member takes such a number.
        raise InvalidRequest(error.message, code=Code.BAD_PARAMETER) from None


def results_response(answer: Whole) -> Response:
    """The results, with the status that they make."""
    headers = {}
    if answer.retry_after_seconds is not None:
        headers["retry-after"] = str(answer.retry_after_seconds)
    return json_response(answer.members, _STATUS[answer.verdict], headers)


class BrokerHealth:
    """`GET /health` of one process."""

    def __init__(self, host: str, port: int) -> None:
        """`host` and `port` are said where a connection does not tell its own address."""
        self._broker_id = os.urandom(16).hex()
        self._started_at = time.time_ns() // 1_000_000
        self._host = host
        self._port = port

    async def show(self, request: Request) -> Response:
        """Answer that the process runs, which one it is, and where it was asked."""
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), [JSON])
        # A port of 0 took a free one, and an address of 0.0.0.0 is any of the machine's.
        host, port = request.scope.get("server") or (self._host, self._port)
        members = {
            "status": "ok",
            "broker_id": self._broker_id,
            "host": host if port is not None else self._host,
            "port": self._port if port is None else port,
            "started_at_ms": self._started_at,
        }
        return json_response(members, headers={"cache-control": "no-store"})
