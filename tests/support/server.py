"""The real program as its users run it: a process, its ready line, its port, its death."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

READY = re.compile(r"ready (http://127\.0\.0\.1:[0-9]+)\n")
READY_SECONDS = 60
STOP_SECONDS = 30


class AllInOne:
    """`bottomless serve` on a directory; may be killed and started again on the same one."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.url = ""
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[str] | None = None

    @property
    def objects(self) -> Path:
        return self.data_dir / "objects"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start and wait for the ready line, which must be all that stdout ever carries."""
        command = [str(Path(sys.executable).parent / "bottomless"), "serve"]
        command += ["--data-dir", str(self.data_dir), "--port", "0"]
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with (self.data_dir.parent / f"{self.data_dir.name}.log").open("a") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self._settings},
            )
        assert self._process.stdout is not None
        watchdog = threading.Timer(READY_SECONDS, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        match = READY.fullmatch(line)
        assert match, f"no ready line but {line!r}; the log ends: {self.log()[-2000:]}"
        self.url = match[1]

    def log(self) -> str:
        return (self.data_dir.parent / f"{self.data_dir.name}.log").read_text()

    def kill(self) -> None:
        """SIGKILL, as a power cut of the process: nothing is flushed, nobody is told."""
        assert self._process is not None
        self._process.kill()
        self._finish()

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop and wait; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(with_signal)
        return self._finish()

    def _finish(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        code = self._process.wait(STOP_SECONDS)
        rest = self._process.stdout.read()
        self._process.stdout.close()
        self._process = None
        assert rest == "", f"stdout carried more than the ready line: {rest[:200]!r}"
        return code

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)

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
