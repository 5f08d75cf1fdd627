"""Whom a listener takes for its own user: the kernel says it."""

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from support.asgi import on_socket, on_tcp

from bottomless_server.runtime.listener.same_user import is_same_user, may_see_files
from bottomless_server.runtime.peers.peers import Peer


async def says(scope: Scope, _: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % may_see_files(scope)})


async def test_a_client_over_a_unix_socket_is_of_our_user_and_one_over_tcp_may_be_anybody(
    tmp_path: Path,
) -> None:
    async with (
        on_socket(says, tmp_path / "s.sock") as url,
        on_tcp(says) as port,
        Peer(url, name="us") as near,
        Peer(f"http://127.0.0.1:{port}", name="us") as far,
    ):
        assert (await near.call("GET", "/")).body == 1
        assert (await far.call("GET", "/")).body == 0


class Connected(asyncio.BaseTransport):
    """A transport whose other end is somebody that the test chooses."""

    def __init__(self, user: int | OSError, family: int = socket.AF_UNIX) -> None:
        super().__init__()
        self.family = family
        self._user = user

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def getsockopt(self, *_: int) -> bytes:
        if isinstance(self._user, OSError):
            raise self._user
        return struct.pack("3i", 1, self._user, 0)


@pytest.mark.parametrize(
    ("transport", "same"),
    [
        (Connected(os.geteuid()), True),
        (Connected(os.geteuid() + 1), False),
        (Connected(OSError()), False),
        (Connected(os.geteuid(), socket.AF_INET), False),
        (asyncio.BaseTransport(), False),
    ],
)
def test_only_our_own_user_on_this_machine_is_the_same(
    transport: asyncio.BaseTransport, same: bool
) -> None:
    assert is_same_user(transport) is same


def test_a_server_that_is_not_ours_says_nothing_of_users() -> None:
    assert not may_see_files({})
