"""Connections between processes that a test can disturb, whatever they talk.

A link listens where callers look for a server and passes bytes on to where it is. So it knows
neither HTTP nor RESP, and what it does to one is what a network, or a peer that dies, does:
connections are reset, answers get lost, bytes stand still and arrive late, or never. It alters
no byte: that is for paths whose bytes carry checksums (`fault_proxy`).

All links of a deployment share a thread with a loop of its own.
"""

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any, Final

from support.connections import Connections, Serve

PIECE_SIZE: Final = 65_536
CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group, as the kernel tells them of the other end of a unix socket."""
DELAY_SECONDS_MAX: Final = 0.15
LOST_SECONDS: Final = 0.05
"""So long after its first lost answer a connection is reset, as by a peer that died."""

Address = str | tuple[str, int]
"""Path of a unix socket, or host and port."""


class Trouble(StrEnum):
    REFUSE = "nobody answers"
    STALL = "bytes stand still, and arrive in the end"
    BLACK_HOLE = "bytes stand still, and are lost in the end"
    LOSE_ANSWERS = "answers are lost"
    TRUNCATE = "answers end in the middle"
    DELAY = "every piece is late"


class Link:
    """One way to a server."""

    def __init__(self, name: str, server: Address, seed: int) -> None:
        self.name = name
        self.address: Address = ""
        self.happened: Counter[Trouble] = Counter()
        self._server = server
        self._chance = random.Random(f"{seed} {name}")
        self._trouble: Trouble | None = None
        self._calm = asyncio.Event()
        self._calm.set()
        self.connections = Connections(self._converse)

    def disturb(self, trouble: Trouble) -> None:
        """From now on, on the loop of the links."""
        self._trouble = trouble
        self._calm.clear()
        if trouble is Trouble.REFUSE:
            self.happened[trouble] += len(self.connections)
            self.reset()

    def calm(self) -> None:
        if self._trouble is Trouble.BLACK_HOLE:
            self.reset()
        self._trouble = None
        self._calm.set()

    def reset(self) -> None:
        """End every connection at once."""
        self.connections.break_off()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            if self._trouble is Trouble.REFUSE:
                self.happened[Trouble.REFUSE] += 1
                return
            server = await _open(self._server)
            ends.append(server[1])
            pumps = [
                asyncio.ensure_future(self._pump(reader, server[1], answers=False)),
                asyncio.ensure_future(self._pump(server[0], writer, answers=True)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in ends:
                end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE_SIZE):
                trouble = self._trouble
                if trouble is not None:
                    self.happened[trouble] += answers or trouble is not Trouble.LOSE_ANSWERS
                match trouble:
                    case Trouble.STALL | Trouble.BLACK_HOLE:
                        # Where bytes are lost in the end, `calm` ends this connection.
                        await self._calm.wait()
                    case Trouble.DELAY:
                        await asyncio.sleep(self._chance.uniform(0, DELAY_SECONDS_MAX))
                    case Trouble.LOSE_ANSWERS if answers:
                        await asyncio.sleep(LOST_SECONDS)
                        return
                    case Trouble.TRUNCATE if answers:
                        writer.write(piece[: len(piece) // 2])
                        await writer.drain()
                        return
                writer.write(piece)
                await writer.drain()


async def _open(server: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(server, str):
        return await asyncio.open_unix_connection(server)
    return await asyncio.open_connection(*server)


def _caller(writer: asyncio.StreamWriter) -> int:
    """The process id of who has called by a unix socket."""
    called: socket.socket = writer.get_extra_info("socket")
    told = called.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid: int = CREDENTIALS.unpack(told)[0]
    return pid


class Links:
    """All links of a deployment; every method may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int) -> None:
        self.by_name: dict[str, Link] = {}
        self._loop = loop
        self._seed = seed
        self._servers: list[asyncio.Server] = []

    def open(self, name: str, listen: Address, server: Address) -> Link:
        """Listen at `listen`, where port 0 is any port, for who wants to reach `server`."""
        link = self.by_name[name] = Link(name, server, self._seed)
        self._run(self._open(link, listen))
        return link

    def open_by_caller(
        self, listen: str, server: str, name_of: Callable[[int], str], names: Iterable[str]
    ) -> None:
        """Listen at a unix socket for callers who go a link each, one of `names`: which, `name_of` says by
        the process id of the caller."""
        for name in names:
            link = self.by_name[name] = Link(name, server, self._seed)
            link.address = listen

        async def go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.by_name[name_of(_caller(writer))].connections(reader, writer)

        self._run(self._listen(go, listen))

    def disturb(self, name: str, trouble: Trouble) -> None:
        self._loop.call_soon_threadsafe(self.by_name[name].disturb, trouble)

    def calm(self) -> None:
        for link in self.by_name.values():
            self._loop.call_soon_threadsafe(link.calm)

    @property
    def happened(self) -> Counter[Trouble]:
        """How many pieces and connections met which trouble."""
        total = Counter[Trouble]()
        for link in self.by_name.values():
            total += link.happened
        return total

    def close(self) -> None:
        self._run(self._close())

    async def _open(self, link: Link, listen: Address) -> None:
        if isinstance(listen, str):
            server = await asyncio.start_unix_server(link.connections, listen)
            link.address = listen
        else:
            server = await asyncio.start_server(link.connections, *listen)
            link.address = server.sockets[0].getsockname()[:2]
        self._servers.append(server)

    async def _listen(self, serve: Serve, path: str) -> None:
        self._servers.append(await asyncio.start_unix_server(serve, path))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for link in self.by_name.values():
            # Every connection ends before its loop does.
            await link.connections.end()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@contextmanager
def running_links(seed: int = 0) -> Iterator[Links]:
    """None yet; they live as long as the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="links")
    thread.start()
    links = Links(loop, seed)
    try:
        yield links
    finally:
        links.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
