"""Answers for clients of HTTP/1.0, who know no chunks: a body without a length ends with its
connection. Some proxies ask in this version as long as nobody tells them otherwise.

Uvicorn sends chunks whenever an answer names no length. Here it is told that each piece is the
whole of what is left, as it comes; it ends the connection of such a client by itself.
"""

from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def is_old(scope: Mapping[str, Any]) -> bool:
    """Whether its client knows no chunks."""
    return bool(scope["http_version"] != "1.1")


def without_chunks(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """The application, for the one request of `cycle`."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_bare = False

        async def send_bare(message: Message) -> None:
            nonlocal is_bare
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                is_bare = b"content-length" not in names
                if is_bare:
                    cycle.chunked_encoding = False
            elif is_bare:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_bare)

    return answer
