"""The system calls that a directory drive's durability hangs on, as one object.

Why not call `os` where it is needed? The order of these calls is the promise that
`drives/local.py` makes, so tests record it, and let single calls fail.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bottomless.formats.checks import crc32c
from bottomless.model.limits import MIB
from bottomless_server.drives.past_cache import write_past_cache

IOV_COUNT_MAX: Final = 1024
"""Buffers per writev: IOV_MAX of Linux."""
PAST_CACHE_SIZE_MIN: Final = MIB
"""What is smaller (roots, groups) is read again soon."""


class DriveCalls:
    """Thin and blocking: one method, one system call (or its loop)."""

    def create(self, path: Path) -> int:
        """Open a new file for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(path, flags, 0o644)

    def write(self, file: int, parts: Sequence[memoryview], crc: int = 0) -> int:
        """Write all parts to a new file, however many calls that takes; returns the CRC-32C of the
        bytes that were handed to the system, `crc` being that of those before them.

        Much goes past the page cache: a fragment is read later or never, and the pages that it
        would take hold the ends of streams, which everybody reads now.
        """
        waiting = [part for part in parts if part.nbytes]
        if sum(part.nbytes for part in waiting) >= PAST_CACHE_SIZE_MIN:
            waiting, crc = write_past_cache(file, waiting, crc)
        for part in waiting:
            crc = crc32c(part, crc)
        while waiting:
            written = os.writev(file, waiting[:IOV_COUNT_MAX])
            while waiting and written >= waiting[0].nbytes:
                written -= waiting.pop(0).nbytes
            if written:
                waiting[0] = waiting[0][written:]
        return crc

    def sync_file(self, file: int) -> None:
        os.fsync(file)

    def link(self, source: Path, target: Path) -> None:
        """Give a file its second name, atomically, unless that name is taken."""
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o755, exist_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Remove one that is empty."""
        path.rmdir()

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
