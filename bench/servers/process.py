"""A peer's process: started with this one, dead with it, up when its port answers."""

import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bench.place import Missing
from bottomless_server.coordination.die_with_parent import die_with_parent

START_SECONDS: Final = 300.0
POLL_SECONDS: Final = 0.05


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def version_of(program: str | Path) -> str:
    """What it says of itself."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"[0-9]+\.[0-9]+\.[0-9]+", done.stdout)
    return found[0] if found else "unknown"


@contextmanager
def running(
    command: Sequence[str | Path],
    log: Path,
    port: int,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start it, wait for its port, and kill it in the end.

    Raises:
        Missing: it does not come up; the message ends with its log.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            preexec_fn=die_with_parent(),  # noqa: PLW1509
        )
    try:
        wait_for_port(port, process, log)
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait()


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        # These programs do not say when they listen, at least not in one way.
        time.sleep(POLL_SECONDS)
    raise Missing(f"it does not start: {log.read_text(errors='replace')[-400:]}")
