"""A proxy before a Redis that loses the reply to EXEC or a script, and may deliver that EXEC late."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.connections import Connections


class ReplyEater:
    """Set `eating`, and the client of the next EXEC loses its connection instead of a reply."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self.eating = False
        self.deliver = asyncio.Event()
        """An eaten EXEC waits for this on its way to the server."""
        self.deliver.set()
        self.answered = asyncio.Event()
        """The server has answered an EXEC whose client is gone."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_unix_connection(self._server)
        replies = asyncio.create_task(_pump(behind_reader, writer))
        try:
            while data := await reader.read(1 << 16):
                if self.eating and (b"EXEC" in data or b"EVAL" in data):
                    self.eating = False
                    replies.cancel()
                    await asyncio.gather(replies, return_exceptions=True)
                    writer.close()
                    await self.deliver.wait()
                    behind_writer.write(data)
                    await behind_reader.read(1 << 16)
                    self.answered.set()
                    return
                behind_writer.write(data)
                await behind_writer.drain()
        finally:
            replies.cancel()
            await asyncio.gather(replies, return_exceptions=True)
            for side in (writer, behind_writer):
                side.close()


@asynccontextmanager
async def reply_eater(server: Path, listen: Path) -> AsyncIterator[ReplyEater]:
    """Listen on one unix socket, for the server behind another."""
    eater = ReplyEater(server)
    connections = Connections(eater.serve)
    proxy = await asyncio.start_unix_server(connections, listen)
    try:
        yield eater
    finally:
        proxy.close()
        await connections.end()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
