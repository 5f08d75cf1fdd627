"""The program, loaded once and forked for each start.

Most of the time of a start is that Python loads modules. Tests that kill by the hundred fork a
process that has loaded them and has run nothing: what comes of it is a process like any other,
with an environment, descriptors and a memory of its own, and a child of the test.

Run as a program, this is that process: each message on its socket is one start, with the ends
of stdout and stderr beside it.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from bottomless.coordination.die_with_parent import die_with_parent

_MESSAGE_SIZE_MAX: Final = 1 << 17
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_POLL_SECONDS: Final = 0.005
_START_SECONDS: Final = 300
_LOADED: Final = (
    "bottomless.cli",
    "bottomless.coordination.redis",
    "bottomless.drives.s3",
    "bottomless_server.ingest.app",
    "bottomless_server.manifest.app",
    "bottomless_server.reader.app",
    "bottomless_server.serve",
    "bottomless_server.single",
    "bottomless_server.uploader.app",
    "opentelemetry.sdk.metrics",
    "uvicorn",
    "uvloop",
)
"""Whatever a service loads, also later; what is missing here costs time and nothing else."""


class Forked:
    """What a test needs of `subprocess.Popen`, for a process that was forked elsewhere."""

    def __init__(self, pid: int, stdout: IO[str]) -> None:
        self.pid = pid
        self.stdout = stdout
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(["bottomless"], timeout)
            time.sleep(_POLL_SECONDS)
        return code

    def send_signal(self, which: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, which)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    def __init__(self, way: socket.socket) -> None:
        self._way = way

    def spawn(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[Any]
    ) -> Forked:
        """Start `bottomless` with these arguments."""
        reading, writing = os.pipe()
        try:
            message = json.dumps([list(arguments), dict(environment)]).encode()
            assert len(message) < _MESSAGE_SIZE_MAX
            socket.send_fds(self._way, [message], [writing, log.fileno()])
        finally:
            os.close(writing)
        return Forked(int(self._way.recv(32)), os.fdopen(reading))


@contextmanager
def running_nursery(environment: Mapping[str, str] | None = None) -> Iterator[Nursery]:
    """One whose processes have loaded everything with this in their environment; from the main
    thread only."""
    # Who is forked there has a parent that ends at once, and then this one.
    _adopt_orphans(True)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    given = {**os.environ, **(environment or {})}
    paths = [given.get("PYTHONPATH", ""), str(Path(__file__).parents[1])]
    given |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(
        [sys.executable, "-m", "support.nursery", *_LOADED],
        stdin=there.fileno(),
        preexec_fn=die_with_parent(),  # noqa: PLW1509
        env=given,
    )
    there.close()
    here.settimeout(_START_SECONDS)
    try:
        yield Nursery(here)
    finally:
        here.close()
        process.wait()
        _adopt_orphans(False)


def _adopt_orphans(really: bool) -> None:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, int(really), 0, 0, 0) == 0


def _serve() -> None:
    """Fork for each message, until nobody can send one any more."""
    way = socket.socket(fileno=0)
    while True:
        message, ends, _, _ = socket.recv_fds(way, _MESSAGE_SIZE_MAX, 2)
        if not message:
            return
        reading, writing = os.pipe()
        if os.fork() == 0:
            between = os.getpid()
            child = os.fork()
            if child == 0:
                _die_with_adopter(between)
                # Its descriptor is stdin's, which another file takes.
                way.detach()
                os.close(reading)
                os.close(writing)
                _become(message, ends)
                return
            os.write(writing, str(child).encode())
            os._exit(0)
        for end in (*ends, writing):
            os.close(end)
        # Only now it is the child of who asks.
        os.wait()
        way.send(os.read(reading, 32))
        os.close(reading)


def _die_with_adopter(parent: int) -> None:
    """Once the parent is gone, whose death means nothing."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS / 5)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _become(message: bytes, ends: Sequence[int]) -> None:
    """Be the program from here on; it ends by its own exit."""
    arguments, environment = json.loads(message)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for new, old in zip((nothing, *ends), (0, 1, 2), strict=True):
        os.dup2(new, old)
        os.close(new)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["bottomless", *arguments]

    from bottomless.cli import main

    main()


if __name__ == "__main__":
    for module in sys.argv[1:]:
        __import__(module)
    _serve()
