"""The real program as its users run it: processes, their ready lines, their ports, their deaths."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from support.nursery import Forked, Nursery, nursery
from support.skewed_clock import SKEW, skewed_nursery

READY = re.compile(r"ready (http://[0-9.]+:[0-9]+)\n")
READY_SECONDS = 300
STOP_SECONDS = 240


class Process:
    """One `bottomless serve …`; may be killed and started again with the same arguments."""

    program = "bottomless"
    """What is forked; the path of a file that does something first, and then is that."""

    def __init__(
        self,
        arguments: Sequence[str],
        log_path: Path,
        settings: Mapping[str, str] | None = None,
        port: int = 0,
        forked_by: Nursery | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """With port 0 it has another one after each start; without a nursery, that of this
        process forks it. `prefix` runs the program elsewhere, and without forking."""
        self.url = ""
        self._arguments = list(arguments)
        self._log_path = log_path
        self._settings = dict(settings or {})
        self._port = port
        self._nursery = forked_by
        self._prefix = list(prefix)
        self._process: subprocess.Popen[str] | Forked | None = None
        self._ready = False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> None:
        """Start it if it does not run, and do not wait for anything."""
        if self._process is not None:
            return
        environment = {**os.environ, **self._settings}
        arguments = ["serve", "--port", str(self._port), *self._arguments]
        with self._log_path.open("a") as log:
            forking = self._nursery or self._forking()
            if forking is not None:
                self._process = forking.spawn(arguments, environment, log, self.program)
                return
            # What is on that path is to be loaded before the program.
            program = str(Path(sys.executable).parent / "bottomless")
            self._process = subprocess.Popen(
                [*self._prefix, program, *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def _forking(self) -> Nursery | None:
        """Who has loaded what this process is to begin with; nobody, if it is loaded before the program."""
        if self._prefix:
            return None
        if SKEW in self._settings:
            return skewed_nursery()
        return None if "PYTHONPATH" in self._settings else nursery()

    def start(self) -> None:
        """Start and wait for the ready line, which must be all that stdout ever carries."""
        self.spawn()
        if self._ready:
            return
        assert self._process is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(READY_SECONDS, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        match = READY.fullmatch(line)
        assert match, f"no ready line but {line!r}; the log ends: {self.log()[-2000:]}"
        self.url = match[1]
        self._ready = True

    def announced(self) -> bool:
        """Whether the ready line has come; does not wait for it."""
        if self._ready:
            return True
        assert self._process is not None
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def log(self) -> str:
        return self._log_path.read_text() if self._log_path.exists() else ""

    def kill(self) -> None:
        """SIGKILL, as a power cut of the process: nothing is flushed, nobody is told."""
        self.send_kill()
        self._finish()

    def send_kill(self) -> None:
        """SIGKILL, without waiting for the end; `kill` does that."""
        assert self._process is not None
        self._process.kill()

    def send(self, which: signal.Signals) -> None:
        """Send one, and do not wait for anything."""
        assert self._process is not None
        self._process.send_signal(which)

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop and wait; returns the exit code."""
        self.send(with_signal)
        return self._finish()

    def wait_dead(self) -> int:
        """Wait until it has ended by itself; returns the exit code."""
        return self._finish()

    @property
    def started(self) -> bool:
        """It was started, and nobody here has waited for its end yet."""
        return self._process is not None

    @property
    def is_dead(self) -> bool:
        """It was started, and has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def _finish(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        code = self._process.wait(STOP_SECONDS)
        rest = self._process.stdout.read()
        self._process.stdout.close()
        self._process = None
        self._ready = False
        assert not rest or READY.fullmatch(rest), f"stdout carried more: {rest[:200]!r}"
        return code

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=240)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()


def internal_client(url: str) -> httpx.Client:
    """A client of an internal listener, by its url `unix:///path`."""
    transport = httpx.HTTPTransport(uds=url.removeprefix("unix://"))
    return httpx.Client(transport=transport, base_url="http://internal", timeout=240)
