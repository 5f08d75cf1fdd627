"""An answer whose client takes nothing can be ended, and its connection with it."""

import asyncio

from starlette.types import Receive, Scope, Send
from support.asgi import on_tcp

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Stuck:
    """Sends more than a connection takes, is cut, and waits for the client to be gone."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.was_cut = asyncio.Event()
        self.is_gone = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(self._size), "more_body": True})
        scope["bottomless.cut"](b"last words")
        scope["bottomless.cut"](b"once is enough")
        self.was_cut.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        self.is_gone.set()


async def test_who_takes_what_waits_gets_the_last_words_too() -> None:
    app = Stuck(8_000_000)
    async with on_tcp(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        writer.write(REQUEST)
        await app.was_cut.wait()
        data = await reader.read()
        writer.close()

    assert len(data) > 8_000_000
    assert data.endswith(b"\r\na\r\nlast words\r\n0\r\n\r\n")


async def test_who_takes_nothing_is_gone_after_a_while() -> None:
    app = Stuck(64_000_000)
    async with on_tcp(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        writer.write(REQUEST)
        async with asyncio.timeout(240):
            await app.is_gone.wait()
        writer.close()
