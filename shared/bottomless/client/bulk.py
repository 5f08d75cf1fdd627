"""Bulk bytes, carried by aiohttp: bodies of appends, pages, fragments, answers that stay open.

This is the only module that knows aiohttp; a test passes in what makes its connections. httpx
carried a twelfth as many small pages a second, measured side by side.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any, Final, TypeAlias

import aiohttp

from bottomless.client.transport import (
    ANSWER_SIZE_MAX,
    Answer,
    OpenAnswer,
    Request,
    Target,
    broken_off,
    fail_without_answer,
    too_long,
)

CONNECTION_COUNT_MAX: Final = 64
"""Connections of one client; more requests wait for a free one."""

_IDLE_SECONDS: Final = 30.0
"""Below the time after which servers and proxies close what is idle: an append on a connection
that is being closed would have an unknown outcome."""

_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)

MakeConnector: TypeAlias = Callable[[], aiohttp.BaseConnector]


class Bulk:
    """A pool of connections to one server, for the event loop that it is first used on."""

    def __init__(self, target: Target, connector: MakeConnector | None = None) -> None:
        self._target = target
        self._connector = connector or _connector
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: Request) -> Answer:
        """Send a request over the connections for bulk bytes; returns the whole answer.

        Raises:
            Unavailable: there was no whole answer; its outcome says what may have happened.
        """
        timeouts = self._target.timeouts
        limits = aiohttp.ClientTimeout(total=timeouts.answer, sock_connect=timeouts.connect)
        try:
            async with self._request(request, limits) as answer:
                body = await _read(request, answer)
        except _NOT_SENT as error:
            fail_without_answer(self._target.url, request, error, sent=False)
        except aiohttp.ClientPayloadError as error:
            raise broken_off(request) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            fail_without_answer(self._target.url, request, error, sent=True)
        return Answer(answer.status, answer.headers, body)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[OpenAnswer]:
        """GET an answer that may be longer than memory, or never end.

        Leaving the block closes it.

        Raises:
            Unavailable: no answer began.
        """
        timeouts = self._target.timeouts
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=timeouts.connect, sock_read=timeouts.silence
        )
        try:
            answer = await self._request(request, limits)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            fail_without_answer(self._target.url, request, error, sent=False)
        try:
            yield OpenAnswer(answer.status, answer.headers, _pieces(request, answer))
        finally:
            # Not `release`, which would wait for the rest of what may have no end.
            answer.close()

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _request(self, request: Request, limits: aiohttp.ClientTimeout) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                headers=self._target.headers(),
                cookie_jar=aiohttp.DummyCookieJar(),
                # As for the control calls: no proxy that nobody named.
                trust_env=False,
            )
        return self._session.request(
            request.method,
            self._target.url + request.path,
            params=request.query,
            headers=request.headers,
            # A file, not bytes: those are copied whole into the connection's buffer at once.
            data=None if request.body is None else BytesIO(request.body),
            timeout=limits,
            allow_redirects=False,
            ssl=True if self._target.tls is None else self._target.tls,
        )


def _connector() -> aiohttp.BaseConnector:
    return aiohttp.TCPConnector(limit=CONNECTION_COUNT_MAX, keepalive_timeout=_IDLE_SECONDS)


async def _read(request: Request, answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > ANSWER_SIZE_MAX:
            raise too_long(request)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _pieces(request: Request, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.content.iter_any():
            yield piece
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise broken_off(request) from error
