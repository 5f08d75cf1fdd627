"""Whether a client has gone of whom nothing is read.

The event loop tells of the end of a connection where it reads it. While requests wait, or a body
that is not taken yet, nothing is read, so its end stands unread after them.
"""

import asyncio
import select
from typing import Final

_GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
"""The first, which only Linux has, says that the client has closed its side, as gone clients do."""


def has_hung_up(transport: asyncio.Transport) -> bool:
    """Ask the operating system, without waiting and without reading."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), _GONE)
    return any(events & _GONE for _, events in poll.poll(0))
