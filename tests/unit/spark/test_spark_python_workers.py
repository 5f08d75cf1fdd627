"""Workers that wait for a task when Spark ends: they end, too, and write nothing.

After a job that went well a traceback with `BrokenPipeError` stood on the terminal. No test looked
at what a job writes to stderr when it has succeeded, and whether it came hung on who was faster.
Here the real daemon is spoken to as Spark does, so that nothing hangs on that.
"""

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.waiting import until

from bottomless.spark.jobs.python_workers import end_workers

SECONDS = 120


@contextmanager
def running_daemon(directory: Path) -> Iterator[tuple[str, Path]]:
    """Start one as Spark does; yields the socket at which it forks workers, and its stderr."""
    errors = directory / "errors"
    # The path of a socket has at most some hundred bytes, and pytest's directories are deep.
    sockets = tempfile.mkdtemp()
    settings = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": sockets,
        "SPARK_REUSE_WORKER": "1",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "pyspark.daemon", "pyspark.worker"],
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        (size,) = struct.unpack("!i", process.stdout.read(4))
        yield process.stdout.read(size).decode(), errors
    finally:
        # What Spark does, too, when it ends.
        process.stdin.close()
        process.wait(SECONDS)
        process.stdout.close()
        shutil.rmtree(sockets)


@contextmanager
def a_worker(path: str) -> Iterator[tuple[socket.socket, int]]:
    """The connection of a new worker, which waits for its task, and its process id."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(path)
        (pid,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
        # It says its number before it hears the signal by which its daemon ends it.
        until(lambda: hears_a_hangup(pid), SECONDS, "the worker to listen")
        yield connection, pid


def hears_a_hangup(pid: int) -> bool:
    """Whether a process does not ignore SIGHUP, as its daemon does."""
    status = Path(f"/proc/{pid}/status").read_text()
    (ignored,) = (line for line in status.splitlines() if line.startswith("SigIgn:"))
    return not int(ignored.split()[1], 16) & 1 << (signal.SIGHUP - 1)


def is_gone(pid: int) -> bool:
    """Ended, whether somebody has asked how or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_workers_that_wait_for_a_task_end_quietly_before_their_session(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as (path, errors), a_worker(path) as (_, pid):
        end_workers(os.getpid())
        until(lambda: is_gone(pid), SECONDS, "the end of the worker")
        assert errors.read_text() == ""


def test_a_worker_that_is_cut_off_writes_a_traceback(tmp_path: Path) -> None:
    """What is mended above is there: once PySpark is quiet by itself, that can go."""
    with running_daemon(tmp_path) as (path, errors):
        with a_worker(path) as (_, pid):
            pass
        until(lambda: is_gone(pid), SECONDS, "the end of the worker")
        assert "BrokenPipeError" in errors.read_text()


def test_other_processes_are_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        end_workers(os.getpid())
        assert other.poll() is None
        assert other.stdin is not None
        other.stdin.write(b"\n")
    assert other.returncode == 0
