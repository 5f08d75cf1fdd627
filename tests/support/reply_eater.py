"""A proxy before a Redis that loses the reply to EXEC or a script, and may deliver that EXEC late."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from support.connections import Connections


class ReplyEater:
    """The client of an EXEC that is to be eaten loses its connection instead of a reply."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._wanted: list[bytes] = []
        self.late_seconds = 0.0
        """How late everything reaches the server."""
        self.deliver = asyncio.Event()
        """An eaten EXEC waits for this on its way to the server."""
        self.deliver.set()
        self.answered = asyncio.Event()
        """The server has answered an EXEC whose client is gone."""

    def eat(self, *containing: bytes) -> None:
        """Eat the next EXEC; with words, one for each of them, in this order, each the next one that
        writes something with that word in it."""
        self._wanted = list(containing or (b"",))

    @property
    def hungry(self) -> bool:
        """Whether an EXEC that is to be eaten has not come yet."""
        return bool(self._wanted)

    def _eats(self, data: bytes) -> bool:
        if not self._wanted or not (b"EXEC" in data or b"EVAL" in data):
            return False
        if self._wanted[0] not in data:
            return False
        del self._wanted[0]
        return True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self._server)
        except OSError:
            writer.transport.abort()
            return
        replies = asyncio.create_task(_pump(server_reader, writer))
        try:
            while data := await reader.read(1 << 16):
                if self._eats(data):
                    replies.cancel()
                    await asyncio.gather(replies, return_exceptions=True)
                    writer.close()
                    await self.deliver.wait()
                    server_writer.write(data)
                    await server_reader.read(1 << 16)
                    self.answered.set()
                    return
                await asyncio.sleep(self.late_seconds)
                server_writer.write(data)
                await server_writer.drain()
        finally:
            # Before anything is waited for: who is cancelled twice comes no further than here.
            for side in (writer, server_writer):
                side.transport.abort()
            replies.cancel()
            await asyncio.gather(replies, return_exceptions=True)


@asynccontextmanager
async def reply_eater(server: Path, listen: Path) -> AsyncIterator[ReplyEater]:
    """Listen on one unix socket, for the server at another."""
    eater = ReplyEater(server)
    connections = Connections(eater.serve)
    proxy = await asyncio.start_unix_server(connections, listen)
    try:
        yield eater
    finally:
        proxy.close()
        await connections.end()


class EaterThread:
    """A reply eater on a thread with a loop of its own, for tests without one."""

    def __init__(self, server: Path, listen: Path) -> None:
        self.listen = listen
        self._loop = asyncio.new_event_loop()
        self._serving = reply_eater(server, listen)
        self._thread = threading.Thread(target=self._loop.run_forever, name="reply eater")

    def __enter__(self) -> Self:
        self._thread.start()
        begun = asyncio.run_coroutine_threadsafe(self._serving.__aenter__(), self._loop)
        self._eater = begun.result(30)
        return self

    def __exit__(self, *_: object) -> None:
        ended = asyncio.run_coroutine_threadsafe(
            self._serving.__aexit__(None, None, None), self._loop
        )
        ended.result(30)
        # What was ended closes its sockets in the next turn of the loop.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def eat(self, *containing: bytes, late: bool = False) -> None:
        """As `ReplyEater.eat`; with `late` they reach the server when `deliver` is called."""
        if late:
            self._call(self._eater.deliver.clear)
        self._call(self._eater.eat, *containing)

    def delay(self, seconds: float) -> None:
        """Let everything reach the server so much later from now on."""
        self._eater.late_seconds = seconds

    @property
    def hungry(self) -> bool:
        """As `ReplyEater.hungry`."""
        return self._eater.hungry

    def deliver(self) -> None:
        """Let what was eaten reach the server now."""
        self._call(self._eater.deliver.set)

    def await_answered(self) -> None:
        """Return when the server has answered what was eaten and delivered."""
        answered = asyncio.run_coroutine_threadsafe(self._eater.answered.wait(), self._loop)
        answered.result(60)
        self._call(self._eater.answered.clear)

    def _call(self, what: Callable[..., object], *given: object) -> None:
        async def call() -> None:
            what(*given)

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
