"""End the Python workers of a session before the session, so that none of them is cut off.

A worker that has done its task waits for the next one. When Spark stops it first closes the sockets
of these workers, and then ends the daemon that forked them. A worker that is quick enough to see
its socket closed takes that for a broken task, tries to report it through the same socket, and
writes a traceback with `BrokenPipeError` to the terminal, after a job that went well. If asked to
end while the sockets are open, a daemon ends its workers, and none of them sees anything.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

_DAEMON: Final = b"pyspark.daemon"
_END_SECONDS: Final = 10
_LOOK_SECONDS: Final = 0.02
_PROCESSES: Final = Path("/proc")
"""Where there is none, as on macOS, workers are left to Spark."""


def end_workers_of(spark: SparkSession) -> None:
    """End the workers of a session whose jobs have ended, and whose JVM runs on this machine.

    Afterwards the session can only be stopped.
    """
    # The only way to the process of the JVM; a gateway that somebody else has started has none.
    java = getattr(getattr(spark.sparkContext, "_gateway", None), "proc", None)
    if java is not None:
        end_workers(java.pid)


def end_workers(parent: int) -> None:
    """Ask the daemons of process `parent` to end with their workers, and wait for it."""
    daemons = [one.pid for one in _children(parent) if _is_daemon(one.pid)]
    for pid in daemons:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    never, deadline = threading.Event(), time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        running = {one.pid for one in _children(parent) if one.state != "Z"}
        if running.isdisjoint(daemons):
            return
        never.wait(_LOOK_SECONDS)


class _Child(NamedTuple):
    pid: int
    state: str


def _children(parent: int) -> Iterator[_Child]:
    for path in _PROCESSES.glob("[0-9]*/stat"):
        # Others come and go meanwhile.
        with suppress(OSError):
            state, its_parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(its_parent) == parent:
                yield _Child(int(path.parent.name), state)


def _is_daemon(pid: int) -> bool:
    with suppress(OSError):
        return _DAEMON in (_PROCESSES / str(pid) / "cmdline").read_bytes().split(b"\0")
    return False
