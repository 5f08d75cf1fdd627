"""A terminal of its own for a program that stays: what comes there, and Ctrl-C."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from support.waiting import until

_SHOWN_SECONDS: Final = 240
_END_SECONDS: Final = 240


class Terminal:
    """A pseudo-terminal, and what was started in it."""

    def __init__(self, command: str, directory: Path, environment: Mapping[str, str]) -> None:
        self.command = command
        self._ours, theirs = pty.openpty()
        self._text = ""
        self._seen = 0
        self._process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=directory,
            env={**environment, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(theirs)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    @property
    def shown(self) -> str:
        return self._text

    def wait_for(self, pattern: re.Pattern[str], seen_as: Callable[[str], str]) -> None:
        """Wait until that comes, behind what was waited for before."""

        def found() -> re.Match[str] | None:
            return pattern.search(seen_as(self._text), self._seen)

        try:
            self._seen = until(found, _SHOWN_SECONDS, f"{pattern.pattern!r}").end()
        except AssertionError as error:
            error.add_note(f"the terminal showed: {self._text[-2000:]}")
            raise

    def interrupt(self) -> int:
        """Ctrl-C, if it still runs; returns the exit code."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
        self._reading.join()
        return code

    def _read(self) -> None:
        # At the end of the last program a read fails, or finds nothing.
        with contextlib.suppress(OSError), open(self._ours, "rb", buffering=0) as ours:  # noqa: PTH123
            while data := ours.read(65536):
                self._text += data.decode(errors="replace").replace("\r\n", "\n")
