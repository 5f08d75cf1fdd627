"""Requests as bytes on a socket: client libraries repair, or refuse to send, what is tested here."""

import socket
from collections.abc import Sequence
from http.client import HTTPResponse
from urllib.parse import urlsplit

from support.contract import Answer, received

TIMEOUT_SECONDS = 240

Headers = Sequence[tuple[str, str | bytes]]


def send(
    url: str, method: str, target: str | bytes, headers: Headers = (), body: bytes | None = None
) -> Answer:
    """One request on a connection of its own; with a body, its length is said."""
    lines = [
        method.encode() + b" " + _bytes(target) + b" HTTP/1.1",
        *([] if any(name == "Host" for name, _ in headers) else [b"Host: bottomless"]),
        b"Connection: close",
        *(name.encode() + b": " + _bytes(value) for name, value in headers),
    ]
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return send_bytes(url, b"\r\n".join(lines) + b"\r\n\r\n" + (body or b""), method)


def send_bytes(url: str, message: bytes, method: str = "GET") -> Answer:
    """Whatever these bytes are; the method says whether the answer has a body."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname or "", where.port or 0), TIMEOUT_SECONDS) as peer:
        peer.sendall(message)
        with HTTPResponse(peer, method=method) as answer:
            answer.begin()
            return received(answer)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")
