"""Refusals of what is not read as a request to its end: the protocol's own errors, as bytes.

No application sees such a request, so the answer is made here, in the shape that all have.
"""

from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from bottomless.errors import Code, InvalidRequest, Overloaded, StoreError
from bottomless_server.runtime.http.problems import PROBLEM_TYPE, problem_response, request_id_of


def refusal_bytes(error: StoreError, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A whole answer, after which the connection ends."""
    scope: dict[str, Any] = {}
    answer = problem_response(error, request_id_of(scope))
    body = bytes(answer.body)
    named = {
        **{name: value for name, value in answer.headers.items() if name == "retry-after"},
        "content-type": PROBLEM_TYPE,
        "content-length": str(len(body)),
        "request-id": request_id_of(scope),
        "x-content-type-options": "nosniff",
        "connection": "close",
    }
    lines = [
        STATUS_LINE[answer.status_code],
        *(b"%s: %s\r\n" % pair for pair in default_headers),
        *(f"{name}: {value}\r\n".encode() for name, value in named.items()),
        b"\r\n",
        body,
    ]
    return b"".join(lines)


def not_http() -> InvalidRequest:
    return InvalidRequest("this is not an HTTP/1.1 request", code=Code.BAD_HEADER)


def url_too_long() -> InvalidRequest:
    return InvalidRequest("the URL is too long", code=Code.URI_TOO_LONG)


def headers_too_large() -> InvalidRequest:
    return InvalidRequest("the headers are too large", code=Code.HEADERS_TOO_LARGE)


def unknown_framing(headers: Iterable[tuple[bytes, bytes]], version: str) -> StoreError | None:
    """Why a body is not read whose head says `Transfer-Encoding`, if it is not.

    What was packed on the way would be stored packed, since nobody unpacks it; and version 1.0
    knows no such header, so that a proxy may have read another end of the body.
    """
    values = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if not values:
        return None
    if version != "1.1":
        return InvalidRequest("HTTP/1.0 has no Transfer-Encoding", code=Code.BAD_HEADER)
    if values == [b"chunked"]:
        return None
    return InvalidRequest(
        "the only transfer encoding that is taken is chunked; name others as Content-Encoding",
        code=Code.UNSUPPORTED_MEDIA_TYPE,
    )


def too_slow(sentence: str) -> Overloaded:
    return Overloaded(sentence, code=Code.REQUEST_TIMEOUT)
