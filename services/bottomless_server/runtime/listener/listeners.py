"""Listeners: sockets that are bound first, and servers that speak HTTP on them.

A unix socket has mode 0600 from its first moment. A socket file that a dead process
left behind is removed; one that a live process answers on is an error.
"""

import asyncio
import errno
import hashlib
import math
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.holders import port_holder
from bottomless_server.runtime.http.lane import Lane
from bottomless_server.runtime.listener.connections import Connections, HttpBounds
from bottomless_server.runtime.listener.incoming import incoming

LOOK_SECONDS_MIN: Final = 0.1
"""Connections are looked at no more often, however short their times are."""
SOCKET_PATH_SIZE_MAX: Final = 107
"""Bytes of a unix socket's address, without the NUL at its end."""
CLOSE_SECONDS: Final = 5
"""How long requests that did not end in the drain may still take."""
TOLD_SECONDS: Final = 1
"""How long those that were ended may take to be answered, before their connections are cut."""


def internal_url(listen: str | None, data_dir: Path, name: str) -> str:
    """Where the internal listener of a service is, as a url that peers can call.

    Raises:
        CannotStart: `listen` is neither `host:port` nor `unix:///path`.
    """
    if listen is None:
        return f"unix://{socket_path(data_dir.absolute() / 'run', name)}"
    if listen.startswith("unix:///"):
        return listen
    address = urlsplit(f"http://{listen}")
    try:
        if address.hostname and address.port and address.netloc == listen:
            return f"http://{listen}"
    except ValueError:
        pass
    raise CannotStart(
        f"the internal listener of {name} must look like host:port or unix:///path "
        f"(BOTTOMLESS_{name.upper()}_INTERNAL_LISTEN or BOTTOMLESS_INTERNAL_LISTEN)"
    )


def socket_path(directory: Path, name: str) -> Path:
    """The socket of a service in a directory, or in a short one that belongs to it.

    The short one stands in the directory for temporary files under a name that only depends
    on the long one, so that every process finds it; it counts only if it is ours alone.

    Raises:
        CannotStart: somebody else made the short directory.
    """
    path = directory / f"{name}.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_SIZE_MAX:
        return path
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"bottomless-{os.getuid()}-{digest}"
    short.mkdir(mode=0o700, exist_ok=True)
    found = short.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CannotStart("the directory for sockets belongs to somebody else; use a shorter path")
    return short / f"{name}.sock"


def bind_tcp(host: str, port: int, setting: str = "--port (BOTTOMLESS_PORT)") -> socket.socket:
    """A bound socket that does not listen yet: clients are refused until a server runs.
    `setting` is where the port can be chosen.

    Raises:
        CannotStart: the address is taken or is not ours.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        with _closed_if_it_fails(bound):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
    except OSError as error:
        reason = error.strerror or "the address cannot be used"
        if error.errno == errno.EADDRINUSE:
            reason = (
                f"another process listens there{port_holder(port)}; stop it, or choose another "
                f"port with {setting}"
            )
        raise CannotStart(f"cannot listen on {host}:{port}: {reason}") from error
    return bound


def bind_internal(url: str) -> socket.socket:
    """A bound socket for an internal url.

    Raises:
        CannotStart: the address is taken, or cannot be made.
    """
    if not url.startswith("unix://"):
        address = urlsplit(url)
        return bind_tcp(address.hostname or "127.0.0.1", address.port or 80, "its setting")
    path = Path(url.removeprefix("unix://"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _answers(path):
            raise CannotStart(
                f"another process listens on {path}; stop it, or give this one a directory of its own"
            )
        path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _closed_if_it_fails(bound), _private_files():
            bound.bind(str(path))
    except OSError as error:
        raise CannotStart(f"cannot listen on {path}: {error.strerror}") from error
    return bound


class Listener:
    """One server on one bound socket, in the loop that opens it."""

    def __init__(
        self,
        app: ASGIApp,
        bound: socket.socket,
        *,
        close_seconds: int = CLOSE_SECONDS,
        bounds: HttpBounds | None = None,
        lane: Lane | None = None,
    ) -> None:
        """`lane` takes requests that need no wait; all others go to `app`."""
        self._bound = bound
        self.connections = Connections(bounds or HttpBounds())
        protocol = incoming(self.connections, lane)
        self._server = _Server(
            self.connections,
            uvicorn.Config(
                app,
                # Uvicorn calls what it takes for a class, with names.
                http=cast("type[asyncio.Protocol]", protocol),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=math.ceil(self.connections.bounds.idle_seconds),
                timeout_graceful_shutdown=close_seconds,
            ),
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        port: int = self._bound.getsockname()[1]
        return port

    async def open(self) -> None:
        """Return when connections are accepted."""
        self._serving = asyncio.create_task(self._server.serve([self._bound]))
        accepting = asyncio.create_task(self._server.accepting.wait())
        await asyncio.wait({self._serving, accepting}, return_when=asyncio.FIRST_COMPLETED)
        accepting.cancel()
        if self._serving.done():
            self._serving.result()

    async def close(self) -> None:
        """Accept nothing more, let requests end for a while, cut the rest."""
        address = self._bound.getsockname()
        if self._serving is not None:
            self._server.end()
            await asyncio.wait({self._serving})
            # They are cancelled, and some need several turns of the loop to say what became of them.
            if told := set(self._server.server_state.tasks):
                await asyncio.wait(told, timeout=TOLD_SECONDS)
            self.connections.cut_all()
        self._bound.close()
        if isinstance(address, str):
            with suppress(FileNotFoundError):
                os.unlink(address)  # noqa: PTH108


class _Server(uvicorn.Server):
    def __init__(self, connections: Connections, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()
        self._connections = connections
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Let it end at once."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Look at the connections as often as they need it.

        Uvicorn's own loop looks ten times a second whether it is to end. With the six listeners of a
        process that serves everything, this was a fifth of what it does while nobody asks it.
        """
        clock = asyncio.get_running_loop().time
        every = max(LOOK_SECONDS_MIN, self._connections.bounds.look_seconds)
        looked_at = clock() - every

        async def look() -> float | None:
            nonlocal looked_at
            now = clock()
            passed, looked_at = now - looked_at, now
            # A loop that was held up did not read what had come: nobody is blamed for that.
            self._connections.look(min(passed, 2 * every))
            # The first tick of ten is the one that brings the date of answers up to date.
            await self.on_tick(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await self._ending.wait()
            return None if self.should_exit else 0.0

        await endless("listener", look, pause_seconds_max=every)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's business, which has several servers."""
        yield


@contextmanager
def _closed_if_it_fails(opened: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        opened.close()
        raise


@contextmanager
def _private_files() -> Iterator[None]:
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, suppress(OSError):
        connection.settimeout(1)
        connection.connect(str(path))
        return True
    return False
