"""How a body is framed: by a length or in chunks, and for HTTP/1.0 by the end of the connection."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send
from support.asgi import listening, on_tcp
from unit.runtime.test_runtime_cut import Stuck
from unit.runtime.test_runtime_protocol import GET, App, as_served, connected

from bottomless_server.runtime.http.app import wrap

PIECES = (b"one", b"", b"three and more")


class Pieces:
    """Answers in pieces, without a length."""

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in PIECES:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})


async def asked(port: int, request: bytes) -> tuple[bytes, bytes]:
    """The whole answer, until the connection ends: head and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(60):
        writer.write(request)
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    writer.close()
    return head.lower(), body


async def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    """Answers without a length were tested in HTTP/1.1 alone."""
    async with on_tcp(Pieces()) as port:
        head, body = await asked(port, b"GET / HTTP/1.0\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert body == b"".join(PIECES) + b"end"

        head, body = await asked(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        assert body.endswith(b"\r\nend\r\n0\r\n\r\n")

        _, body = await asked(port, b"HEAD / HTTP/1.0\r\n\r\n")
        assert body == b""


@as_served
async def test_a_length_is_said_to_a_client_of_http_1_0_too() -> None:
    async with listening(wrap(App())) as listener, connected(listener) as client:
        await client.send(b"GET /small HTTP/1.0\r\n\r\n")
        assert await client.answer() == (200, b"/small")
        assert await client.reader.read() == b""


async def test_the_last_words_to_a_client_of_http_1_0_are_bare() -> None:
    app = Stuck(8_000_000)
    async with on_tcp(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        await app.was_cut.wait()
        _, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        writer.close()

    assert body == bytes(8_000_000) + b"last words"


@pytest.mark.parametrize(
    ("version", "framing", "code"),
    [
        (b"1.1", b"Transfer-Encoding: gzip, chunked", "unsupported-media-type"),
        (b"1.1", b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", "unsupported-media-type"),
        (b"1.1", b"Transfer-Encoding: chunked, chunked", "bad-header"),
        (b"1.0", b"Transfer-Encoding: chunked", "bad-header"),
    ],
)  # fmt: skip
@as_served
async def test_only_chunks_are_taken_and_only_in_http_1_1(
    version: bytes, framing: bytes, code: str
) -> None:
    """Bodies packed on their way were tested with Content-Encoding alone: what Transfer-Encoding
    said was packed was stored as it came."""
    app = App()
    async with listening(wrap(app)) as listener, connected(listener) as client:
        body = b"\r\n\r\n2\r\nab\r\n0\r\n\r\n"
        await client.send(b"POST /body HTTP/%b\r\nHost: x\r\n%b%b" % (version, framing, body))
        assert (await client.problem())["code"] == code
        assert app.count == 0


@as_served
async def test_chunks_are_taken_however_their_header_is_written() -> None:
    async with listening(wrap(App())) as listener, connected(listener) as client:
        for value in (b"chunked", b"Chunked", b" CHUNKED "):
            head = b"POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:%b\r\n\r\n" % value
            await client.send(head + b"2\r\nab\r\n0\r\n\r\n" + GET)
            assert await client.answer() == (200, b"2")
            assert await client.answer() == (200, b"/small")
