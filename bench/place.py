"""Where the bench keeps what is not the repository's: programs in `.bench`, data in `.bench/run`.

Everything in `.bench` can be deleted at any time; it is installed again.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CACHE: Final = ROOT / ".bench"
NATIVE: Final = ROOT / "bench" / "native"
RESULTS: Final = ROOT / "bench" / "results"


class Missing(RuntimeError):
    """Something that a row needs cannot be had here; the message says what and why."""


@contextmanager
def fresh_directory(name: str) -> Iterator[Path]:
    """An empty directory on the disk of the checkout; gone afterwards, as it may be large."""
    directory = CACHE / "run" / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def native(name: str) -> Path:
    """One of the C programs, compiled if it changed.

    Raises:
        Missing: there is no gcc, or it refuses.
    """
    source, program = NATIVE / f"{name}.c", CACHE / "bin" / name
    changed = max(each.stat().st_mtime for each in (source, *NATIVE.glob("*.h")))
    if program.exists() and program.stat().st_mtime > changed:
        return program
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Missing(
            "the load generator is C: install gcc (Debian: apt-get install gcc libc6-dev)"
        )
    program.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-O2", "-Wall", "-Wextra", "-msse4.2", "-o", str(program)]
    done = subprocess.run(
        [compiler, *flags, str(source)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Missing(f"gcc refuses {source.name}: {done.stderr[-500:]}")
    return program
