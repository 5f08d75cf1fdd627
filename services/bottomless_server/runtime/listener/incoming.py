"""What comes in at a listener: read into one buffer for all its connections.

The parser copies what it keeps before anything else is read, so one buffer does for all, and
it may be as large as pays: a body of a megabyte comes in a quarter of the calls, and wakes who
reads it a quarter as often, as in pieces of 64 KiB, which is what a stream is given otherwise.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from bottomless_server.runtime.http.lane import Lane
from bottomless_server.runtime.listener.connections import Connections
from bottomless_server.runtime.listener.lane_protocol import LaneProtocol
from bottomless_server.runtime.listener.protocol import HELD_SIZE_MAX, BoundedProtocol

_BUFFER_SIZE: Final = HELD_SIZE_MAX


class Incoming(asyncio.BufferedProtocol):
    """One connection, as its transport sees it."""

    def __init__(self, connection: BoundedProtocol, buffer: memoryview) -> None:
        self._connection = connection
        self._buffer = buffer
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance: uvloop's transports are of no class of asyncio's.
        self._connection.connection_made(cast("asyncio.Transport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.data_received(self._buffer[:nbytes])

    def eof_received(self) -> None:
        self._connection.eof_received()


def incoming(connections: Connections, lane: Lane | None) -> Callable[..., Incoming]:
    """What makes the connections of one listener, in one event loop; with a `lane`, what it takes
    goes there."""
    buffer = memoryview(bytearray(_BUFFER_SIZE))

    def connected(*arguments: Any, **named: Any) -> Incoming:
        if lane is None:
            return Incoming(BoundedProtocol(connections, *arguments, **named), buffer)
        return Incoming(LaneProtocol(lane, connections, *arguments, **named), buffer)

    return connected
