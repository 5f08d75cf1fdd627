"""Control calls over a transport of httpx, for a program that passes one in, such as a test.

This is the only module that knows httpx. Without such a transport `exchange.py` carries them.
"""

import asyncio

import httpx

from bottomless.client.transport import (
    ANSWER_SIZE_MAX,
    Answer,
    Request,
    Target,
    broken_off,
    fail_without_answer,
    too_long,
)

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class Control:
    """A pool of connections to one server, for the event loop that it is first used on."""

    def __init__(self, target: Target, transport: httpx.AsyncBaseTransport) -> None:
        self._target = target
        timeouts = target.timeouts
        self._http = httpx.AsyncClient(
            headers=target.headers(),
            timeout=httpx.Timeout(timeouts.answer, connect=timeouts.connect),
            # No proxy from the environment: a stream server is named, never found. And no
            # redirect: it could lead the credential to another host.
            trust_env=False,
            follow_redirects=False,
            transport=transport,
            # Without TLS nothing is verified, and loading authorities takes longer than a call.
            verify=target.tls or False,
        )

    async def send(self, request: Request) -> Answer:
        """Send a control call; returns the whole answer.

        Raises:
            Unavailable: there was no whole answer; its outcome says what may have happened.
        """
        sending = self._http.build_request(
            request.method,
            self._target.url + request.path,
            params=request.query,
            content=request.body,
            headers=request.headers,
        )
        try:
            async with asyncio.timeout(self._target.timeouts.answer):
                answer = await self._http.send(sending, stream=True)
                try:
                    body = await _read(request, answer)
                finally:
                    await answer.aclose()
        except _NOT_SENT as error:
            fail_without_answer(self._target.url, request, error, sent=False)
        except httpx.RemoteProtocolError as error:
            raise broken_off(request) from error
        except (httpx.RequestError, TimeoutError) as error:
            fail_without_answer(self._target.url, request, error, sent=True)
        return Answer(answer.status_code, answer.headers, body)

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()


async def _read(request: Request, answer: httpx.Response) -> bytes:
    parts, size = [], 0
    async for part in answer.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > ANSWER_SIZE_MAX:
            raise too_long(request)
    return b"".join(parts)
