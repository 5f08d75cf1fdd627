"""Exchange: requests with short answers, by connections of our own; appends too.

It is what the client needs of HTTP/1.1 and nothing else: whole bodies with their length, whole
answers, no redirects, no proxies of the environment, no cookies. It loads no library, which is most
of what a short command takes (docs/decisions/0046-the-client-has-connections-of-its-own.md).

A request has a connection to itself until it is answered, unless it names a line. Requests of one
line go over one connection in the order in which they were handed over, and do not wait for each
other's answers. Only what may be sent twice can name one: when a connection ends, nobody knows of
any request on it whether it was done.
"""

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from bottomless.client.address import require_text
from bottomless.client.answer_parser import NotHttp, TooLong
from bottomless.client.pipe import BrokenOff, Pipe
from bottomless.client.transport import (
    Answer,
    Request,
    Target,
    broken_off,
    fail_without_answer,
    too_long,
)
from bottomless.client.unreachable import HungUp
from bottomless.errors import Code, InvalidRequest
from bottomless.guards import guard

CONNECTION_COUNT_MAX: Final = 64
"""Connections of one client; more requests wait for a free one."""

IDLE_SECONDS: Final = 30.0
"""Below the time after which servers and proxies close what is idle: an append on a connection
that is being closed would have an unknown outcome."""

_NEXT_ADDRESS_SECONDS: Final = 1.0
"""A host's address that is silent for so long gives way to the next one."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = frozenset(
    {"authorization", "connection", "content-length", "host", "transfer-encoding", "user-agent"}
)
"""Headers that no caller gives: two of them would be read in two ways."""


class Exchange:
    """A pool of connections to one server, for the event loop that it is first used on."""

    def __init__(self, target: Target) -> None:
        self._target = target
        parts = urlsplit(target.url)
        assert parts.hostname is not None
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path
        named = {"Host": parts.netloc, **target.headers()}
        self._same = _Hidden("".join(map(_line, named, named.values())).encode())
        """The headers of every request."""
        self._room = asyncio.Semaphore(CONNECTION_COUNT_MAX)
        self._idle: list[Pipe] = []
        self._open: set[Pipe] = set()
        self._lines: dict[str, _Line] = {}
        self._closed = False
        self._emptied = asyncio.Event()

    async def send(self, request: Request) -> Answer:
        """Send a request; returns the whole answer.

        Raises:
            Unavailable: there was no whole answer; its outcome says what may have happened.
            InvalidRequest: a header holds what no header can.
        """
        head = self._head_of(request)
        with self._failures_of(request) as attempt:
            async with asyncio.timeout(self._target.timeouts.answer):
                if request.line is None:
                    return await self._alone(attempt, head, request.body)
                return await self._in_line(attempt, request.line, head, request.body)

    async def close(self) -> None:
        """Close every connection; calls that are in flight fail."""
        self._closed = True
        for pipe in self._open:
            pipe.abort()
        # Where the loop ends next, they would be left lying.
        while self._open:
            self._emptied.clear()
            await self._emptied.wait()

    async def _alone(self, attempt: "_Attempt", head: bytes, body: bytes | None) -> Answer:
        async with self._room:
            pipe = await self._take()
            try:
                attempt.sent = True
                return await (await pipe.write(head, body))
            finally:
                self._give_back(pipe)

    async def _in_line(
        self, attempt: "_Attempt", name: str, head: bytes, body: bytes | None
    ) -> Answer:
        line = self._lines.setdefault(name, _Line())
        line.users += 1
        pipe: Pipe | None = None
        try:
            # In the order of the calls, also where a connection has to be made first.
            async with line.turn:
                if not line.has_room:
                    line.has_room = await self._room.acquire()
                if line.pipe is None or not line.pipe.usable:
                    if line.pipe is not None and not line.pipe.busy:
                        line.pipe.close()
                    line.pipe = await self._take()
                pipe = line.pipe
                attempt.sent = True
                answer = await pipe.write(head, body)
            return await answer
        except BaseException:
            # What comes after it on this connection would wait for an answer that is late, or for
            # the rest of a body. All of it may be sent again.
            if pipe is not None:
                pipe.abort()
            raise
        finally:
            line.users -= 1
            if not line.users:
                self._end(self._lines.pop(name))

    def _end(self, line: "_Line") -> None:
        if line.pipe is not None:
            self._give_back(line.pipe)
        if line.has_room:
            self._room.release()

    async def _take(self) -> Pipe:
        """Take a connection that nobody uses, or make one."""
        if self._closed:
            raise RuntimeError("the client is closed")
        now = asyncio.get_running_loop().time()
        while self._idle:
            pipe = self._idle.pop()
            if pipe.usable and now - pipe.idle_since < IDLE_SECONDS and not pipe.has_news:
                return pipe
            pipe.close()
        try:
            async with asyncio.timeout(self._target.timeouts.connect):
                pipe = await self._connect()
        except (OSError, TimeoutError) as error:
            raise _NotConnected from error
        if not pipe.usable:
            # It hung up while nothing was asked yet.
            raise _NotConnected from HungUp()
        self._open.add(pipe)
        if self._closed:
            pipe.abort()
            raise RuntimeError("the client is closed")
        return pipe

    async def _connect(self) -> Pipe:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            # A part of it is empty, or too long for a name.
            raise socket.gaierror(socket.EAI_NONAME, "no name") from error
        last: OSError | TimeoutError | None = None
        for number, (family, *_, address) in enumerate(found, 1):
            try:
                async with asyncio.timeout(_NEXT_ADDRESS_SECONDS if number < len(found) else None):
                    _, pipe = await loop.create_connection(
                        partial(Pipe, self._lost),
                        str(address[0]),
                        self._port,
                        family=family,
                        ssl=self._target.tls,
                        server_hostname=self._host if self._target.tls else None,
                    )
                    return pipe
            except (OSError, TimeoutError) as error:
                last = error
        assert last is not None
        raise last

    def _give_back(self, pipe: Pipe) -> None:
        if pipe.busy:
            # Whoever was cancelled does not want the answer that is still to come.
            pipe.abort()
        elif pipe.usable:
            self._idle.append(pipe)
        else:
            pipe.close()

    def _lost(self, pipe: Pipe) -> None:
        self._open.discard(pipe)
        if pipe in self._idle:
            self._idle.remove(pipe)
        if not self._open:
            self._emptied.set()

    def _head_of(self, request: Request) -> "_Hidden":
        path = self._prefix + request.path
        if request.query:
            path = f"{path}?{_query_of(request)}"
        more = "".join(_field(name, text) for name, text in request.headers.items())
        if request.body is not None or request.method in ("POST", "PUT", "PATCH"):
            more += _line("Content-Length", str(len(request.body or b"")))
        first = f"{request.method} {path} HTTP/1.1\r\n".encode()
        return _Hidden(first + self._same + f"{more}\r\n".encode())

    @contextmanager
    def _failures_of(self, request: Request) -> "Iterator[_Attempt]":
        attempt = _Attempt()
        url = self._target.url
        try:
            yield attempt
        except TooLong as error:
            raise too_long(request) from error
        except (BrokenOff, NotHttp) as error:
            raise broken_off(request) from error
        except _NotConnected as error:
            fail_without_answer(url, request, error, sent=False)
        except (HungUp, OSError, TimeoutError) as error:
            fail_without_answer(url, request, error, sent=attempt.sent)


class _NotConnected(Exception):
    """There is no connection; the cause says why."""


class _Attempt:
    """What is known of one request."""

    sent = False
    """Whether the server may have got something of it."""


class _Line:
    """The requests of one line that are under way."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.users = 0
        self.has_room = False
        """Whether it counts as one of the client's connections."""
        self.pipe: Pipe | None = None
        """The one that the next request goes over."""


class _Hidden(bytes):
    """Bytes with the credential. Reports of errors show the variables of each function, not these."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


def _query_of(request: Request) -> str:
    try:
        return urlencode(request.query, doseq=True, quote_via=quote)
    except UnicodeEncodeError:
        # Half a character, as Python makes it of bytes that are not UTF-8.
        raise InvalidRequest(
            "a parameter must be text that UTF-8 can encode", code=Code.BAD_PARAMETER
        ) from None


@guard("names and values of headers")
def _field(name: str, text: str) -> str:
    # A line end would make a second header, or a second request, of what a user gave.
    if not _NAME.fullmatch(name):
        raise InvalidRequest("the name of a header must be a token", code=Code.BAD_HEADER)
    if name.lower() in _OURS:
        raise InvalidRequest("this header is made by the client itself", code=Code.BAD_HEADER)
    require_text(text, f"the header {name}")
    if not text.isascii() or not text.isprintable():
        raise InvalidRequest(f"the header {name} must be printable ASCII", code=Code.BAD_HEADER)
    if text != text.strip(" "):
        # Whoever reads them cuts these away: it would be another text without a word.
        raise InvalidRequest(
            f"the header {name} must not begin or end with a space", code=Code.BAD_HEADER
        )
    return _line(name, text)


def _line(name: str, text: str) -> str:
    return f"{name}: {text}\r\n"
