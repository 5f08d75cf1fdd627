"""Whether who asks is the user that this process runs as: only then may it hear of files.

A unix socket has mode 0600, so hardly anybody else can ask there; but root can, and an operator
may open the socket to a group. The kernel says who connected, and cannot be lied to.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

from bottomless.guards import guard

SAME_USER: Final = "bottomless.same_user"
"""In a scope: whether the other end of the connection is a process of our own user and machine."""

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid


def is_same_user(transport: asyncio.BaseTransport) -> bool:
    """Whether a unix socket's other end is of our user; False for any other connection, and where
    the system does not tell."""
    connection = transport.get_extra_info("socket")
    option = getattr(socket, "SO_PEERCRED", None)
    if connection is None or option is None or connection.family != socket.AF_UNIX:
        return False
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    except OSError:
        return False
    _, user, _ = _CREDENTIALS.unpack(raw)
    return bool(user == os.geteuid())


@guard("files are shown to the same user only")
def may_see_files(scope: Mapping[str, Any]) -> bool:
    """Whether the request may be answered with the path of a file."""
    return scope.get(SAME_USER) is True
