"""The program, loaded once and forked for each start.

Most of the time of a start is that Python loads modules, and tests start the program by the
hundred. They fork a process that has loaded it and has run nothing: what comes of it has an
environment, descriptors and a memory of its own, and runs the program's own `main`.

Run as a program, this is that process: each message on its socket is one start, with the ends
of stdout and stderr beside it, and a third where the exit code is told.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

from bottomless_server.coordination.die_with_parent import die_with_parent
from support.known_routes import find_out_once

WHOLE_END: Final = {"TESTS_WHOLE_END": "1"}
"""In the environment of a forked program: it is taken apart at its end, and Python says what was left
open, or was never waited for."""

_MESSAGE_SIZE_MAX: Final = 1 << 17
_START_SECONDS: Final = 300
_LOADED: Final = (
    "bottomless.cli",
    "bottomless_server.allinone",
    "bottomless_server.single",
    # What the program loads while it starts.
    "anyio._backends._asyncio",
    "bottomless_server.coordination.redis",
    "bottomless_server.drives.local",
    "bottomless_server.drives.s3",
    "httpcore",
    "opentelemetry.sdk.metrics",
    "pydantic.v1",
    "uvicorn.lifespan.off",
    "uvloop",
)


class Forked:
    """What a test needs of `subprocess.Popen`, for a process that was forked elsewhere."""

    def __init__(self, pid: int, stdout: IO[str], ending: int) -> None:
        self.pid = pid
        self.stdout = stdout
        self._ending = ending
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(["bottomless"], timeout)
        return code

    def send_signal(self, which: signal.Signals) -> None:
        if self.poll() is None:
            # It may end just now: its parent, which would keep its number, is not this process.
            with suppress(ProcessLookupError):
                os.kill(self.pid, which)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float) -> int | None:
        # Not `select`, which takes no descriptor above 1023.
        poll = select.poll()
        if self._code is None:
            poll.register(self._ending, select.POLLIN)
            if poll.poll(seconds * 1000):
                self._code = int(os.read(self._ending, 32))
                os.close(self._ending)
        return self._code


class Nursery:
    def __init__(self, way: socket.socket) -> None:
        self._way = way

    def spawn(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: IO[Any],
        program: str = "bottomless",
    ) -> Forked:
        """Start `bottomless`, or the program in another file, with these arguments."""
        stdout, told = os.pipe(), os.pipe()
        try:
            given = [program, list(arguments), dict(environment), str(Path.cwd())]
            message = json.dumps(given).encode()
            assert len(message) < _MESSAGE_SIZE_MAX
            socket.send_fds(self._way, [message], [stdout[1], log.fileno(), told[1]])
        finally:
            os.close(stdout[1])
            os.close(told[1])
        return Forked(int(self._way.recv(32)), os.fdopen(stdout[0]), told[0])


@cache
def nursery() -> Nursery:
    """The one of this process, which lasts as long."""
    running = running_nursery()
    entered = running.__enter__()
    atexit.register(running.__exit__, None, None, None)
    return entered


@contextmanager
def running_nursery(environment: Mapping[str, str] | None = None) -> Iterator[Nursery]:
    """One whose processes have loaded everything with this in their environment, and end with
    it; from the main thread only."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    given = {**os.environ, **(environment or {})}
    paths = [given.get("PYTHONPATH", ""), str(Path(__file__).parents[1])]
    process = subprocess.Popen(
        [sys.executable, "-m", "support.nursery"],
        stdin=there.fileno(),
        preexec_fn=die_with_parent(),  # noqa: PLW1509
        env={**given, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    there.close()
    here.settimeout(_START_SECONDS)
    try:
        yield Nursery(here)
    finally:
        here.close()
        process.wait()


class Ending:
    """How this process and each of its forks ends: as Python does, but for the last step, which takes
    all modules apart.

    A fork shares the memory of what was loaded before it, and to take that apart writes to nearly
    all of it: 0.8 CPU seconds, three times what start and stop of all services take. By then threads
    have been waited for, and what was to be done at the end is done. Whatever Python has something
    to say of, as an exception that nobody took, ends as ever, and so does who has `WHOLE_END`.
    """

    def __init__(self) -> None:
        self._code: int | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Within is the work of the process, which says what its exit code is."""
        try:
            yield
        except SystemExit as end:
            if isinstance(end.code, int | None):
                self._code = end.code or 0
            raise
        self._code = 0

    def leave(self) -> None:
        """To be done at the end of the process, after all else."""
        if self._code is None or os.environ.keys() >= WHOLE_END.keys():
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            return
        os._exit(self._code)


def _serve() -> None:
    """Fork for each message, until nobody can send one any more."""
    count = gc.get_freeze_count()
    way = socket.socket(fileno=0)
    children: dict[int, int] = {}
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_it = die_with_parent()
    while True:
        ready, _, _ = select.select([way.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 1024)
            _tell_of_ends(children)
            continue
        message, ends, _, _ = socket.recv_fds(way, _MESSAGE_SIZE_MAX, 3)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            if end_with_it is not None:
                end_with_it()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for end in (woken, waker, ends.pop(), *children.values()):
                os.close(end)
            # Its descriptor is stdin's, which another file takes.
            way.detach()
            _become(message, ends, count)
            return
        children[pid] = ends.pop()
        for end in ends:
            os.close(end)
        way.send(str(pid).encode())


def _tell_of_ends(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        end = children.pop(pid)
        os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(end)


def _look_at_nothing_old_once(count: int) -> None:
    """Let the look at all there is that a start begins with leave out what was loaded here, so many objects:
    to look at them is a quarter of the start's time, and to count them one in thirty of it. Every later one
    is as anywhere (runtime/process/collector.py)."""
    unfreeze, get_freeze_count = gc.unfreeze, gc.get_freeze_count

    def first() -> None:
        setattr(gc, "unfreeze", unfreeze)  # noqa: B010

    def first_count() -> int:
        setattr(gc, "get_freeze_count", get_freeze_count)  # noqa: B010
        return count

    setattr(gc, "unfreeze", first)  # noqa: B010
    setattr(gc, "get_freeze_count", first_count)  # noqa: B010


def _become(message: bytes, ends: Sequence[int], count: int) -> None:
    """Be the program from here on; it ends by its own exit."""
    program, arguments, environment, directory = json.loads(message)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for new, old in zip((nothing, *ends), (0, 1, 2), strict=True):
        os.dup2(new, old)
        os.close(new)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *arguments]
    _look_at_nothing_old_once(count)
    if program != "bottomless":
        runpy.run_path(program, run_name="__main__")
        return

    from bottomless.cli import main

    main()


def _make_services_once() -> None:
    """What libraries find out about routes is found out before the first start, which then takes
    0.20 CPU seconds instead of 0.25; `support.known_routes` says what is kept. What is made here
    has memory for stores, is never started, and has no thread."""
    from bottomless_server.coordination.memory import MemoryCoordination
    from bottomless_server.drives.memory import MemoryDrive
    from bottomless_server.ingest import app as ingest
    from bottomless_server.ingest.leaderless.making import LeaderlessStores
    from bottomless_server.ingest.settings import IngestSettings
    from bottomless_server.manifest import app as manifest
    from bottomless_server.manifest.settings import ManifestSettings
    from bottomless_server.queues import app as queues
    from bottomless_server.queues.operator_settings import QueuesSettings
    from bottomless_server.reader import app as reader
    from bottomless_server.reader.settings import ReaderSettings
    from bottomless_server.uploader import app as uploader
    from bottomless_server.uploader.settings import UploaderSettings

    find_out_once()
    drive, coordination = MemoryDrive(), MemoryCoordination(lambda: 0)
    nowhere = "unix:///nowhere.sock"
    common: dict[str, Any] = {
        "data_dir": Path("/nowhere"),
        "internal_listen": nowhere,
        **{f"{name}_url": nowhere for name in ("manifest", "ingest", "reader", "queues")},
    }
    stores = LeaderlessStores(drive, coordination)
    ingest.create_node(IngestSettings(**common), coordination, stores)
    manifest.create_service(ManifestSettings(**common), drive, coordination)
    uploader.create_service(UploaderSettings(**common), drive, coordination=coordination)
    reader.create_service(ReaderSettings(**common), drive, coordination=coordination)
    queues.create_service(QueuesSettings(**common), coordination)


def _make_commands_once() -> None:
    """All commands are made before the first start: each made them anew of the signatures of some
    seventy functions."""
    from typer import main as typer_main

    from bottomless.cli import app

    setattr(app, "create_app", cache(app.create_app))  # noqa: B010
    setattr(typer_main, "get_command", cache(typer_main.get_command))  # noqa: B010
    typer_main.get_command(app.create_app())


if __name__ == "__main__":
    end = Ending()
    # What is registered first is done last.
    atexit.register(end.leave)
    # Nothing of it is garbage, and to look for some takes a fifth of it.
    gc.disable()
    for module in _LOADED:
        __import__(module)
    _make_commands_once()
    _make_services_once()
    # Else each child writes to all of it when it looks for garbage, at its end at the latest:
    # that costs more than all else that a start and a stop do.
    gc.collect()
    gc.freeze()
    gc.enable()
    with end.noted():
        _serve()
