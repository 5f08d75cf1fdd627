"""Disks of ingest nodes that a test can fill, with the rights that it happens to have.

With the right to mount, a disk is a small file system in memory that a filler takes up. Else
it is a bound on the size of the process's files, which the kernel answers in the same way: a
write that goes in half, and then none, until there is room again.
"""

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

DISK_SIZE: Final = 64 << 20
FILLER: Final = "filler"
LEFT_SIZE: Final = 8_192
"""Room that is left on a disk, so that a write goes in half."""


class Disk(Protocol):
    @property
    def kind(self) -> str: ...

    def fill(self) -> None:
        """No room from now on, or hardly any."""
        ...

    def free(self) -> None:
        """Room again."""
        ...


class SmallFileSystem:
    kind = "file system"

    def __init__(self, root: Path) -> None:
        self._filler = root / FILLER

    def fill(self) -> None:
        room = os.statvfs(self._filler.parent)
        size = room.f_bavail * room.f_frsize - LEFT_SIZE
        with self._filler.open("wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(size, 1))

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


class BoundedFiles:
    kind = "bound of files"

    def __init__(self, root: Path, pid: Callable[[], int | None]) -> None:
        self._root = root
        self._pid = pid

    def fill(self) -> None:
        pid = self._pid()
        if pid is not None:
            sizes = [_size_of(path) for path in self._root.rglob("*.segment")]
            limit = max([*sizes, LEFT_SIZE]) - LEFT_SIZE // 2
            self._bound(pid, limit)

    def free(self) -> None:
        pid = self._pid()
        if pid is not None:
            self._bound(pid, resource.RLIM_INFINITY)

    @staticmethod
    def _bound(pid: int, size: int) -> None:
        with suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            soft = hard if size == resource.RLIM_INFINITY else size
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def open_disk(root: Path, pid: Callable[[], int | None]) -> Iterator[Disk]:
    """A disk at this directory, whose only user has the process id that `pid` tells."""
    root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "bottomless-test", str(root)]
    mounted = (
        os.geteuid() == 0
        and subprocess.run(command, check=False, capture_output=True).returncode == 0
    )
    if not mounted:
        yield BoundedFiles(root, pid)
        return
    try:
        yield SmallFileSystem(root)
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=False)
