"""Bodies of several pieces: one answer, wherever they are sent."""

import asyncio
from typing import Final

import httpx
import pyarrow as pa
from starlette.types import Receive, Scope, Send
from support.asgi import client_of, listening

from bottomless.model.limits import MIB
from bottomless_server.runtime.listener.gathered import GatheredResponse, Piece

PIECES: Final[list[Piece]] = [
    b"head",
    memoryview(bytes(range(256)) * 4096),
    b"",
    pa.py_buffer(b"x" * MIB),
]
WHOLE: Final = b"".join(PIECES)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await GatheredResponse(PIECES, 200, {"X": "y"}, "text/plain")(scope, receive, send)


async def test_pieces_arrive_as_one_body() -> None:
    async with (
        listening(app) as listener,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}") as client,
    ):
        for _ in range(2):
            answer = await client.get("/")
            assert answer.content == WHOLE
            assert answer.headers["content-length"] == str(len(WHOLE))
            assert answer.headers["x"] == "y"


async def test_a_server_that_takes_bytes_alone_gets_them_joined() -> None:
    async with client_of(app) as client:
        assert (await client.get("/")).content == WHOLE


async def test_all_that_a_slow_client_has_not_taken_is_counted() -> None:
    large = [bytes(MIB)] * 16

    async def much(scope: Scope, receive: Receive, send: Send) -> None:
        await GatheredResponse(large, 200, {}, "text/plain")(scope, receive, send)

    async with listening(much) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(240):
            while listener.connections.waiting_bytes == 0:
                await asyncio.sleep(0.01)
        assert listener.connections.waiting_bytes > 4 * MIB
        writer.transport.abort()
        del reader
