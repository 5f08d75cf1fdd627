"""A request that offers another protocol (`Upgrade: h2c`, as some clients do at every first one)
and has a body: it is answered as HTTP/1.1, body and all.

The parser takes every such request for one without a body, and what follows for the other
protocol. Its body would be lost, and read as the next request. So the body is read by another
parser, which is told the same framing.
"""

from collections.abc import Iterable
from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_FRAMING: Final = (b"content-length", b"transfer-encoding")


def framing_of(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that say where a body ends; none where there is no body."""
    return [pair for pair in headers if pair[0] in _FRAMING]


def body_parser(
    connection: HttpToolsProtocol, framing: Iterable[tuple[bytes, bytes]]
) -> httptools.HttpRequestParser:
    """A parser that stands before the body of a request whose head was read by another, and goes
    on with the requests after it.

    Raises:
        HttpParserError: that is no framing.
    """
    parser = httptools.HttpRequestParser(_AfterHead(connection))
    # As uvicorn has its own.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    lines = b"".join(b"%b: %b\r\n" % pair for pair in framing)
    parser.feed_data(b"POST / HTTP/1.1\r\n" + lines + b"\r\n")
    return parser


class _AfterHead:
    """What is told of all that follows the first head."""

    def __init__(self, connection: HttpToolsProtocol) -> None:
        self._connection = connection
        self._telling = False
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete

    def on_message_begin(self) -> None:
        if self._telling:
            self._connection.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._telling:
            self._connection.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._telling:
            self._connection.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._telling:
            self._connection.on_headers_complete()
        self._telling = True
