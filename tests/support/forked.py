"""The program without the second that its imports cost: a fork of a process that has them done.

Tests start it some hundred times. What runs is the program's own `main` with the arguments,
the environment and the streams of a process of its own; only `execve` and the imports are
left out. Where a test needs those (a `sitecustomize`, say), `support.processes` runs the
program itself.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TextIO

from bottomless.cli import main

IMPORTED = [
    "support.forked",
    "bottomless_server.allinone",
    "bottomless_server.single",
    # What the program imports while it starts.
    "anyio._backends._asyncio",
    "bottomless.coordination.redis",
    "bottomless.drives.local",
    "bottomless.drives.s3",
    "httpcore",
    "pydantic.v1",
    "uvicorn.lifespan.off",
]


class Forked:
    """One running program, which is asked and killed as a `subprocess.Popen` is."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log_path: Path
    ) -> None:
        ours, theirs = _context().Pipe(duplex=False)
        self._process = _context().Process(
            target=_run, args=(list(arguments), dict(environment), theirs, str(log_path))
        )
        self._process.start()
        theirs.close()
        self.stdout: TextIO = os.fdopen(os.dup(ours.fileno()))
        ours.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("bottomless", timeout or 0)
        return code

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def _run(
    arguments: list[str], environment: dict[str, str], stdout: Connection, log_path: str
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(stdout.fileno(), 1)
    os.dup2(log, 2)
    os.close(log)
    stdout.close()
    sys.argv = ["bottomless", *arguments]
    main()
