"""A server that answers with whatever bytes a test wants, also wrong ones, on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeAlias

import orjson

from support.http_bytes import Head, body_of, read_head


class Asked(NamedTuple):
    """One request as it arrived."""

    head: Head
    body: bytes

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        return self.head.path

    def header(self, name: str) -> str | None:
        return self.head.headers.get(name.lower())


class Cut(bytes):
    """Bytes after which the connection ends."""


NOTHING = Cut()
"""The connection ends without an answer."""

Script: TypeAlias = Callable[[Asked], bytes | Awaitable[bytes]]


def answer(
    status: int = 200,
    value: Any = None,
    *,
    body: bytes | None = None,
    media_type: str = "application/json",
    headers: dict[str, str] | None = None,
) -> bytes:
    """A whole answer as our services give it."""
    content = orjson.dumps(value) if body is None else body
    named = {
        "Content-Type": media_type,
        "Content-Length": str(len(content)),
        "Request-Id": "01TEST",
        **(headers or {}),
    }
    lines = [f"HTTP/1.1 {status} Answer", *(f"{name}: {text}" for name, text in named.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def problem(status: int, code: str, *, headers: dict[str, str] | None = None, **more: Any) -> bytes:
    """A problem as our services give it."""
    members = {"title": code, "status": status, "code": code, "outcome": "none", **more}
    return answer(status, members, media_type="application/problem+json", headers=headers)


class RawServer:
    """Answers by a script, and keeps what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.url = ""
        self._connections: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (head := await read_head(reader)) is not None:
                asked = Asked(head, b"".join([piece async for piece in body_of(head, reader)]))
                self.asked.append(asked)
                said = self.script(asked)
                reply = said if isinstance(said, bytes) else await said
                writer.write(reply)
                await writer.drain()
                if isinstance(reply, Cut):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def leave(self) -> None:
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


@asynccontextmanager
async def raw_server(script: Script) -> AsyncIterator[RawServer]:
    """Listen on a free port for as long as the block lasts."""
    server = RawServer(script)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            await server.connected(reader, writer)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()[:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        listening.close()
        await server.leave()
