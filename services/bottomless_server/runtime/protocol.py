"""The HTTP/1.1 protocol of our listeners: uvicorn's, with bounds and with problems.

Uvicorn's own has no bound on the bytes of a request's head, and answers what is not
HTTP in plain text.
"""

from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import KIB
from bottomless_server.runtime.http import PROBLEM_TYPE, problem_response, request_id_of

HEAD_SIZE_MAX: Final = 64 * KIB
"""Bytes of names and values of all headers of a request; a URL may have as many before 414."""

CUT_SECONDS: Final = 2.0
"""For a client that was cut off to take what waits for it."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    _head_size = 0
    _refusal = InvalidRequest("this is not an HTTP/1.1 request", code=Code.BAD_HEADER)

    def on_message_begin(self) -> None:
        self._head_size = 0
        super().on_message_begin()
        # ASGI has no word for it: a server can only wait for a client that takes nothing.
        self.scope["bottomless.cut"] = self.cut  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        self._count(len(url), InvalidRequest("the URL is too long", code=Code.URI_TOO_LONG))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        too_large = InvalidRequest("the headers are too large", code=Code.HEADERS_TOO_LARGE)
        self._count(len(name) + len(value), too_large)
        super().on_header(name, value)

    def cut(self, last: bytes) -> None:
        """End an answer in chunks whose client takes nothing: its last bytes stand behind what
        waits already, and some seconds later the connection is gone, with whatever is left."""
        if self.transport.is_closing():
            return
        self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
        self.transport.close()
        self.loop.call_later(CUT_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Called after the parser gave up, for whatever reason."""
        del msg
        if self.cycle is not None and self.cycle.response_started:
            # Bytes of a second answer must not stand in the middle of a first.
            self.transport.close()
            return
        scope: dict[str, Any] = {}
        answer = problem_response(self._refusal, request_id_of(scope))
        body = bytes(answer.body)
        lines = [
            STATUS_LINE[answer.status_code],
            *(b"%s: %s\r\n" % pair for pair in self.server_state.default_headers),
            b"content-type: %s\r\n" % PROBLEM_TYPE.encode(),
            b"content-length: %d\r\n" % len(body),
            b"request-id: %s\r\n" % request_id_of(scope).encode(),
            b"x-content-type-options: nosniff\r\nconnection: close\r\n\r\n",
            body,
        ]
        self.transport.write(b"".join(lines))
        self.transport.close()

    def _count(self, size: int, refusal: InvalidRequest) -> None:
        self._head_size += size
        if self._head_size > HEAD_SIZE_MAX:
            self._refusal = refusal
            raise httptools.HttpParserError
