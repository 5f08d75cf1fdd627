"""An S3 server that answers what a test wrote down, reply by reply, in bytes."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from support.connections import Connections

CLOSE = b""
"""Take the request and close the connection instead of answering."""


class Request(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class ScriptedS3:
    """Answers with the next of `replies`; None stalls for as long as the server lives."""

    def __init__(self) -> None:
        self.replies: list[bytes | None] = []
        self.requests: list[Request] = []
        self.connection_count = 0
        self.endpoint = ""
        self.paired = ""
        """Requests of this method are answered two at a time: the first waits for another."""
        self.under_way = 0
        self.under_way_max = 0
        self._pair = asyncio.Barrier(2)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        try:
            while head := await _head(reader):
                lines = head.decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ")
                named = (line.split(": ", 1) for line in lines[1:] if line)
                headers = {name.lower(): value for name, value in named}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(Request(method, target, headers, body))
                if method == self.paired:
                    await self._wait_for_another()
                reply = self.replies.pop(0)
                if reply is None:
                    await asyncio.Event().wait()
                elif reply == CLOSE:
                    return
                else:
                    writer.write(reply)
                    await writer.drain()
                    if b"connection: close" in reply:
                        return
        finally:
            writer.close()

    async def _wait_for_another(self) -> None:
        self.under_way += 1
        await self._pair.wait()
        for _ in range(50):
            # Whoever else would come at the same time has every chance to.
            await asyncio.sleep(0)
        self.under_way_max = max(self.under_way_max, self.under_way)
        self.under_way -= 1


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def reply(status: int, body: bytes = b"", *, cut: int = 0, **headers: str) -> bytes:
    """An answer; `cut` leaves out that many of the bytes it promises, and closes."""
    named = {"content-length": str(len(body)), "last-modified": "Sat, 01 Jan 2000 00:00:00 GMT"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    if cut:
        named["connection"] = "close"
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status} Answer\r\n{head}\r\n".encode() + body[: len(body) - cut]


def refusal(status: int, code: str) -> bytes:
    """An error as S3 words it."""
    return reply(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())


@asynccontextmanager
async def scripted_s3(secure: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedS3]:
    scripted = ScriptedS3()
    connections = Connections(scripted.serve)
    server = await asyncio.start_server(connections, "127.0.0.1", 0, ssl=secure)
    host, port = server.sockets[0].getsockname()[:2]
    scripted.endpoint = f"{'https' if secure else 'http'}://{host}:{port}"
    try:
        yield scripted
    finally:
        server.close()
        await connections.end()
