"""HTTP messages as the bytes that they are: enough to tell one from the next, and to cut one."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import unquote

HEAD_BYTES_MAX = 64 * 1024
PIECE_BYTES = 64 * 1024


class Head(NamedTuple):
    """The first line and the headers of a message, with the bytes that said them."""

    raw: bytes
    first_line: str
    headers: dict[str, str]

    @property
    def method(self) -> str:
        return self.first_line.split(" ")[0]

    @property
    def path(self) -> str:
        """Of a request: decoded, with its query."""
        return unquote(self.first_line.split(" ")[1])

    @property
    def status(self) -> int:
        """Of a reply."""
        return int(self.first_line.split(" ")[1])


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head, None where the connection ends before one is whole."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    lines = raw.decode("latin-1").split("\r\n")
    named = (line.split(":", 1) for line in lines[1:] if line)
    return Head(raw, lines[0], {name.lower(): value.strip() for name, value in named})


async def body_of(
    head: Head, reader: asyncio.StreamReader, *, request: Head | None = None
) -> AsyncIterator[bytes]:
    """The body's bytes as they come, framing included; `request` is given for a reply.

    Raises:
        IncompleteReadError: it ends before it should.
    """
    if request is not None and (request.method == "HEAD" or head.status in (204, 304)):
        return
    if "chunked" in head.headers.get("transfer-encoding", "").lower():
        size = -1
        while size:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            yield line + await reader.readexactly(size + 2)
        return
    left = int(head.headers.get("content-length", 0))
    if request is not None and "content-length" not in head.headers:
        while piece := await reader.read(PIECE_BYTES):
            yield piece
        return
    while left:
        piece = await reader.readexactly(min(left, PIECE_BYTES))
        left -= len(piece)
        yield piece
