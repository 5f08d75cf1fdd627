"""Answers that stay open between simulated processes, with a connection that holds only so much.

The connection does as uvicorn's and the kernel's do together: what is sent goes into a buffer;
once that holds too much, who sends next waits until the client has taken most of it, and only
then writes. A client that takes nothing can be cut off, with last words that stand after what
waits already, and a little time to take both.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Final

from starlette.types import ASGIApp, Message
from support.wire import Mishap

from bottomless_server.runtime.listener.protocol import CUT_SECONDS
from simulation.loop import Process
from simulation.network import Exchange, Network, NoAnswer, NoConnection, Request, scope_of

HELD_HIGH: Final = 3_000
"""Bytes in the buffer from which on a sender waits."""
HELD_LOW: Final = 1_000


class OpenExchange(Exchange):
    """One request whose answer is taken piece by piece."""

    def __init__(
        self, process: Process, app: ASGIApp, request: Request, is_cut: Callable[[], bool]
    ) -> None:
        super().__init__(process, app, request, is_cut)
        self.status = 0
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._over = False
        """Nothing more is written; what is held can still be taken."""
        self._broken = False
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    async def piece(self) -> bytes:
        """What comes next; empty where the answer ended in good order.

        Raises:
            NoAnswer: the connection broke off.
        """
        while True:
            if self._broken or self._is_cut():
                raise NoAnswer
            if self._pieces:
                break
            if self._over:
                return b""
            self._changed.clear()
            await self._changed.wait()
        taken = self._pieces.popleft()
        self._held -= len(taken)
        if self._held <= HELD_LOW:
            self._writable.set()
        return taken

    async def _serve(self) -> None:
        scope = scope_of(self._request)
        scope["bottomless.cut"] = self._cut_off
        await self._app(scope, self._receive, self._send)

    async def _send(self, message: Message) -> None:
        await self._writable.wait()
        if self._over or self._broken:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self._write(bytes(message.get("body", b"")))
        if not message.get("more_body", False):
            self._over = True
            self._changed.set()

    def _write(self, data: bytes) -> None:
        # In parts, as they arrive at a client: a connection that breaks off does so anywhere.
        for begin in range(0, len(data), 500):
            self._pieces.append(data[begin : begin + 500])
        self._held += len(data)
        if self._held > HELD_HIGH:
            self._writable.clear()
        self._changed.set()

    def _cut_off(self, last: bytes | None) -> None:
        if self._over or self._broken:
            return
        if last is None:
            self._break()
            return
        self._write(last)
        self._over = True
        asyncio.get_running_loop().call_later(CUT_SECONDS, self._break, context=Context())

    def _served(self, task: "asyncio.Task[None]") -> None:
        if self._break in self._process.on_death:
            self._process.on_death.remove(self._break)
        if not task.cancelled():
            task.exception()
        if not self._over:
            self._break()

    def _break(self) -> None:
        self._broken = True
        self._writable.set()
        self._changed.set()
        self.leave()


@asynccontextmanager
async def opened(
    network: Network, source: str, url: str, request: Request
) -> AsyncIterator[OpenExchange]:
    """An answer that stays open until the block is left.

    Raises:
        NoConnection, NoAnswer
    """
    process, app = network.served_at(url)
    passage = network.weather.passage(f"network.{process.name}")
    if frozenset((source, process.name)) in network.apart or passage.mishap is not Mishap.NONE:
        await asyncio.sleep(passage.silence_seconds)
        raise NoConnection
    exchange = OpenExchange(process, app, request, lambda: network.is_apart(source, process))
    await asyncio.sleep(passage.there_seconds)
    exchange.begin()
    try:
        yield exchange
    finally:
        exchange.leave()
