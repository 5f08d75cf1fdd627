"""The connections that this process still has to a server: a loop that ends before them leaves them over."""

import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from support.waiting import eventually


def connection_count(port: int) -> int:
    """Count the sockets of this process whose other end has this port, also those that are being closed."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not descriptor.readlink().name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor.name))) as one:
                count += one.getpeername()[1:2] == (port,)
    return count


async def all_closed(endpoint: str) -> None:
    """Return when this process has no connection to a server any more. What was given up in the midst of a
    body is closed once the server has taken what was on its way, which may be after its client was closed."""
    port = urlsplit(endpoint).port
    assert port is not None, "servers of tests have ports of their own"
    await eventually(lambda: connection_count(port) == 0)
