"""Fetch bytes over HTTP/1.1, straight into the memory in which they stay.

The reader and the uploader move every stored byte through here, and a general client copies it
three times on its way: out of the event loop, out of the parser, and together at the end. Here
the head goes through a parser, and the body of a known size is received in its place.

An owner sends every byte of a stream with replicas through here too, to each of its nodes: parts of a
body go out as they lie in memory.

GET of our own services and of S3 stores, POST of our own, and no redirects: the rest is what peers.py
and drives/s3.py do by other clients. Why it is our own, and what it saves: decisions 28, 42 and 190.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import httptools
import numpy as np
from starlette.datastructures import Headers

from bottomless.model.limits import GIB, KIB

_HEAD_BUFFER_SIZE: Final = 16 * KIB
"""Bytes for each connection, of which a thousand may wait."""
_HEAD_SIZE_MAX: Final = 256 * KIB
BODY_SIZE_MAX: Final = GIB
"""No answer of a service of ours, and no object, is larger; what claims to be is none."""


class InPlaceAnswer(NamedTuple):
    status: int
    headers: Headers
    data: memoryview


class NoConnection(Exception):
    """None could be opened: nothing was asked."""


class BrokenOff(Exception):
    """The connection ended, or what came is no answer."""


class InPlaceClient:
    """Requests to one address, over connections that are kept for a while."""

    def __init__(
        self,
        connect: Callable[[Callable[[], asyncio.BufferedProtocol]], Any],
        own_headers: Mapping[str, str],
        *,
        connection_count_max: int,
        connect_seconds: float,
        idle_seconds: float,
    ) -> None:
        """`connect` opens a connection for a protocol, as `loop.create_connection` does;
        `own_headers`, the host among them, stand in each request."""
        self._connect = connect
        self._own_headers = own_headers
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._room = asyncio.Semaphore(connection_count_max)
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._closed = False

    def close(self) -> None:
        """End all connections; who waits for an answer meets its end, and none is opened any more."""
        self._closed = True
        for connection in list(self._open):
            connection.abort()

    async def get(
        self,
        target: str,
        headers: Mapping[str, str],
        seconds: float,
        *,
        silence_seconds: float | None = None,
        size_max: int | None = None,
    ) -> InPlaceAnswer:
        """The answer to a GET, whole.

        A kept connection that turns out to be closed is no reason to fail: another is opened.
        Nothing heard for `silence_seconds` is a TimeoutError too, and a body of more than
        `size_max` bytes, by default BODY_SIZE_MAX, is no answer.

        Raises:
            NoConnection, BrokenOff, TimeoutError
        """
        request = _Request(
            self._head("GET", target, headers),
            silence_seconds,
            BODY_SIZE_MAX if size_max is None else size_max,
        )
        async with asyncio.timeout(seconds):
            async with self._room:
                connection = self._kept()
                if connection is not None:
                    try:
                        return await self._ask(connection, request)
                    except BrokenOff:
                        if connection.heard:
                            raise
                return await self._ask(await self._opened(), request)

    async def post(
        self,
        target: str,
        headers: Mapping[str, str],
        parts: Sequence[bytes | memoryview],
        seconds: float,
    ) -> InPlaceAnswer:
        """The answer to a POST, whole; the parts of its body are not copied on their way out.

        It is sent once: after BrokenOff or TimeoutError nobody knows whether it was done.

        Raises:
            NoConnection, BrokenOff, TimeoutError
        """
        sized = {**headers, "content-length": str(sum(map(len, parts)))}
        request = _Request(self._head("POST", target, sized), None, BODY_SIZE_MAX, parts)
        async with asyncio.timeout(seconds):
            async with self._room:
                return await self._ask(self._kept() or await self._opened(), request)

    def _head(self, method: str, target: str, headers: Mapping[str, str]) -> bytes:
        lines = {**self._own_headers, **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        assert head.count("\n") == len(lines), "no header has a line end in it"
        return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1")

    async def _ask(self, connection: "_Connection", request: "_Request") -> InPlaceAnswer:
        try:
            answer = await connection.ask(request)
        except BaseException:
            # Also where nobody waits any more: what still comes would be the next one's answer.
            connection.abort()
            raise
        if connection.reusable:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()
        return answer

    def _kept(self) -> "_Connection | None":
        now = asyncio.get_running_loop().time()
        while self._idle:
            # The youngest first, so that the others grow old and go.
            connection = self._idle.pop()
            if connection.reusable and now - connection.idle_since < self._idle_seconds:
                return connection
            connection.abort()
        return None

    async def _opened(self) -> "_Connection":
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await self._connect(lambda: _Connection(self._open))
        except (OSError, TimeoutError) as error:
            raise NoConnection from error
        opened = cast("_Connection", connection)
        if self._closed:
            # It was on its way, so nobody else would ever end it.
            opened.abort()
            raise NoConnection
        return opened


class _Request(NamedTuple):
    head: bytes
    silence_seconds: float | None
    size_max: int
    """Bytes of the body of the answer."""
    parts: Sequence[bytes | memoryview] = ()
    """The body of the request."""


class _Connection(asyncio.BufferedProtocol):
    """One request at a time."""

    def __init__(self, open_: "set[_Connection]") -> None:
        self._open = open_
        self._transport: asyncio.Transport | None = None
        self._scratch = memoryview(bytearray(_HEAD_BUFFER_SIZE))
        self._answer: asyncio.Future[InPlaceAnswer] | None = None
        self._keep = False
        self.heard = False
        """Whether anything came of the answer that is waited for."""
        self.idle_since = 0.0
        self._size_max = BODY_SIZE_MAX
        self._heard_at = 0.0
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_size = 0
        self._head_complete = False
        self._body: memoryview | None = None
        """Where the body is received, once its size is known."""
        self._body_size = 0
        self._parts: list[bytes] = []
        """What came so far of a body without a size."""

    @property
    def reusable(self) -> bool:
        transport = self._transport
        return self._keep and transport is not None and not transport.is_closing()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, request: _Request) -> InPlaceAnswer:
        """Send a request and wait for its answer.

        Raises:
            BrokenOff, TimeoutError
        """
        if self._transport is None or self._transport.is_closing():
            raise BrokenOff
        assert self._answer is None
        self._begin()
        self.heard = self._keep = False
        self._size_max = request.size_max
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        try:
            self._transport.writelines([request.head, *request.parts])
            if request.silence_seconds is None:
                return await self._answer
            return await self._answer_in_time(self._answer, request.silence_seconds)
        finally:
            self._answer = None

    async def _answer_in_time(
        self, answer: "asyncio.Future[InPlaceAnswer]", seconds: float
    ) -> InPlaceAnswer:
        """The answer, unless nothing is heard for so long."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        while not answer.done():
            left = self._heard_at + seconds - loop.time()
            if left <= 0:
                raise TimeoutError
            await asyncio.wait({answer}, timeout=left)
        return answer.result()

    # What the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._open.discard(self)
        self._fail()
        # The parser holds this connection, and this the parser: what is not let go of here, half
        # a body of many MiB among it, would stay until the collector of cycles comes by.
        del self._parser
        self._body = None
        self._parts = []
        self._transport = None

    def get_buffer(self, _: int) -> memoryview:
        if self._body is None:
            return self._scratch
        rest = self._body[self._body_size :]
        return rest or self._scratch

    def buffer_updated(self, size: int) -> None:
        if self._answer is None or self._answer.done():
            # Nobody asked: what a connection says now would be taken for the next answer.
            self.abort()
            return
        self.heard = True
        self._heard_at = asyncio.get_running_loop().time()
        if self._body is not None:
            self._body_size += size
            self._finish_if_whole()
            return
        self._head_size += 0 if self._head_complete else size
        try:
            self._parser.feed_data(bytes(self._scratch[:size]))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail()
            return
        if self._head_size > _HEAD_SIZE_MAX:
            self._fail()
        elif self._body is not None:
            self._finish_if_whole()

    # What the parser says

    def on_message_begin(self) -> None:
        if self._head_complete:
            raise BrokenOff

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._head_complete = True
        self._keep = self._parser.should_keep_alive()
        sizes = {value for name, value in self._headers if name == b"content-length"}
        chunked = any(name == b"transfer-encoding" for name, _ in self._headers)
        if len(sizes) == 1 and not chunked and self._parser.get_status_code() not in (204, 304):
            size = int(sizes.pop())
            if size > self._size_max:
                raise BrokenOff
            # Not a bytearray, which would be filled with zeros first.
            self._body = np.empty(size, dtype=np.uint8).data

    def on_body(self, data: bytes) -> None:
        if self._body is None:
            self._body_size += len(data)
            if self._body_size > self._size_max:
                raise BrokenOff
            self._parts.append(data)
            return
        # What came with the head; the parser gives no more than the size that stood in it.
        self._body[self._body_size : self._body_size + len(data)] = data
        self._body_size += len(data)

    def on_message_complete(self) -> None:
        if self._body is None:
            self._finish(memoryview(b"".join(self._parts)))

    def _finish_if_whole(self) -> None:
        if self._body is not None and self._body_size == len(self._body):
            self._finish(self._body)

    def _finish(self, data: memoryview) -> None:
        if self._answer is not None and not self._answer.done():
            status = self._parser.get_status_code()
            self._answer.set_result(
                InPlaceAnswer(status, Headers(raw=self._headers), data.toreadonly())
            )
        # Else the body would stay in memory for as long as the connection is kept.
        self._body = None
        self._parts = []

    def _fail(self) -> None:
        self._keep = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BrokenOff())
