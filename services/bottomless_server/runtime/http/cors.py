"""Cross-origin requests: nothing is allowed to a page of another origin that is not listed.

Without a list there are no allow headers at all, and a browser keeps the answer from the
page. A preflight is answered here, before anybody asks who sends it: browsers send it
without credentials.
"""

from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottomless_server.runtime.http.problems import request_id_of

_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_EXPOSED: Final = (
    b"ETag, Link, Location, Request-Id, Retry-After, RateLimit, RateLimit-Policy, Stream-Id, "
    b"Stream-First-Offset, Stream-Next-Offset, Page-Start-Offset, Page-Next-Offset"
)
_PREFLIGHT_SECONDS: Final = b"600"

VARIES: Final = ((b"vary", b"origin"),)
"""What every answer says where some origins are listed."""


def with_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The application, as pages of these origins may call it."""
    allowed = frozenset(origin.encode("ascii") for origin in origins)
    if not allowed:
        return app

    async def shared(scope: Scope, receive: Receive, send: Send) -> None:
        origin = _value(scope, b"origin")
        asked = _value(scope, b"access-control-request-method")
        if origin is not None and asked is not None and scope["method"] == "OPTIONS":
            await _answer_preflight(scope, send, origin if origin in allowed else None)
            return
        added = list(VARIES)
        if origin in allowed and origin is not None:
            added.append((b"access-control-allow-origin", origin))
            added.append((b"access-control-expose-headers", _EXPOSED))

        async def send_shared(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await app(scope, receive, send_shared)

    return shared


async def _answer_preflight(scope: Scope, send: Send, origin: bytes | None) -> None:
    headers = [(b"vary", b"origin"), (b"request-id", request_id_of(scope).encode())]
    if origin is not None:
        wanted = _value(scope, b"access-control-request-headers")
        headers += [
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", _PREFLIGHT_SECONDS),
        ]
        if wanted is not None:
            headers.append((b"access-control-allow-headers", wanted))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _value(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)
