"""A wall clock that a test can set, under a real process: the program itself knows nothing of it.

Python imports `sitecustomize` at its start; the one in `skewed/` adds to the wall clock what
this file says, at every look. Time namespaces of Linux do not hold the wall clock, and to set
the machine's own would move everybody's.
"""

import atexit
import os
import struct
from functools import cache
from pathlib import Path
from typing import Final

from support.nursery import Nursery, running_nursery

HERE = Path(__file__).parent / "skewed"
SKEW: Final = "TEST_CLOCK_SKEW"
"""Names the file in the environment of a process."""


class SkewedClock:
    """One for all processes that are started in its environment."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "clock-skew"
        self._path.write_bytes(struct.pack("<q", 0))

    @property
    def environment(self) -> dict[str, str]:
        return {**_loaded_first(), SKEW: str(self._path)}

    def set(self, skew_ms: int) -> None:
        """Let the clock be so far ahead of the true one, or behind it, from now on."""
        with self._path.open("r+b") as shared:
            shared.write(struct.pack("<q", skew_ms))


@cache
def skewed_nursery() -> Nursery:
    """The one of this process for all whose clock is set: a start of Python takes eight times what a
    fork takes."""
    running = running_nursery(_loaded_first())
    entered = running.__enter__()
    atexit.register(running.__exit__, None, None, None)
    return entered


def _loaded_first() -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(HERE), *([inherited] if inherited else [])])}
