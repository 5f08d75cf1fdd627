"""Other people's programs beside a test: started with a log, ended with the block or with the test."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bottomless_server.coordination.die_with_parent import die_with_parent

END_SECONDS: Final = 10


@contextmanager
def running_program(
    command: Sequence[str],
    log_path: Path,
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start it; at the end it is asked to stop, and killed if it does not.

    Call from the main thread only: the kernel kills it with that.
    """
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(),  # noqa: PLW1509
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
