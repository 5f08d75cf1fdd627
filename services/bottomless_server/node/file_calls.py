"""All file operations of a node that owns data, through one small port.

Why a port for something as plain as files? What a node guarantees hangs on the order of these
calls (synced before answered, published before freed), so tests record them, and make them fail
one at a time.
"""

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from bottomless_server.node.core.file_systems import FileSystem, file_system_of

IOV_COUNT_MAX: Final = 512
"""Parts of one gathered write; Linux takes 1024."""
_NOT_OURS: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.EOPNOTSUPP}
)
"""What a directory above ours may answer to a look or a sync."""
_MOUNTS: Final = Path("/proc/self/mountinfo")
# Python has no call for it. A call through ctypes lets other threads go on meanwhile.
_syncfs: Final[Any] = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


class FileCalls(Protocol):
    """File operations that block; worker threads call them, several at once."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open for reading and writing; with `create` it must not exist yet."""
        ...

    def close(self, fd: int) -> None: ...

    def pwritev(self, fd: int, parts: Sequence[bytes | memoryview], position: int) -> int: ...

    def pread(self, fd: int, size: int, position: int) -> bytes: ...

    def fdatasync(self, fd: int) -> None: ...

    def open_dir(self, path: Path) -> int:
        """Open a directory, for `syncfs`."""
        ...

    def syncfs(self, fd: int) -> None:
        """Sync the data of all files of the file system in which a directory is open.

        An error since the last call on the same handle, or since that was opened, is raised once,
        whoever met it; so two at once on one handle would take it from each other.
        """
        ...

    def file_system(self, path: Path) -> FileSystem | None:
        """What a directory lies on; None where the system does not say it."""
        ...

    def fsync_dir(self, path: Path) -> None: ...

    def truncate(self, fd: int, size: int) -> None: ...

    def rename(self, old: Path, new: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def size(self, fd: int) -> int: ...

    def make_dir(self, path: Path) -> None:
        """Make a directory unless it is there, in one that is there: where the directory of a node is gone,
        nothing is made at its path that would be taken for it."""
        ...

    def remove_dir(self, path: Path) -> None:
        """Remove an empty directory."""
        ...

    def names(self, path: Path) -> list[str]:
        """Names in a directory; none if it does not exist."""
        ...


class RealFileCalls:
    """The file calls of the operating system."""

    def open(self, path: Path, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return os.open(path, flags, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwritev(self, fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
        return os.pwritev(fd, parts, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return os.pread(fd, size, position)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def open_dir(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def syncfs(self, fd: int) -> None:
        if _syncfs is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if _syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def file_system(self, path: Path) -> FileSystem | None:
        try:
            mounts = _MOUNTS.read_text(errors="surrogateescape")
        except OSError:
            return None
        found = file_system_of(str(path.resolve()), mounts, os.uname().release)
        if found is not None and _has_links(path):
            return found._replace(is_single=False)
        return found

    def fsync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def make_dir(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def remove_dir(self, path: Path) -> None:
        path.rmdir()

    def names(self, path: Path) -> list[str]:
        return [entry.name for entry in path.iterdir()] if path.is_dir() else []


def _has_links(path: Path) -> bool:
    try:
        with os.scandir(path) as entries:
            return any(entry.is_symlink() for entry in entries)
    except FileNotFoundError:
        return False


def write_all(files: FileCalls, fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
    """Write all parts at `position`; returns the position after them.

    A short write is continued once more, only to learn from the next call why it was short.

    Raises:
        OSError: some of it may be in the file.
    """
    waiting = [part for part in parts if len(part)]
    first = 0
    while first < len(waiting):
        written = files.pwritev(fd, waiting[first : first + IOV_COUNT_MAX], position)
        if written <= 0:
            raise OSError("a write wrote nothing")
        position += written
        while first < len(waiting) and written >= len(waiting[first]):
            written -= len(waiting[first])
            first += 1
        if written:
            waiting[first] = memoryview(waiting[first])[written:]
    return position


def read_exactly(files: FileCalls, fd: int, size: int, position: int) -> bytes:
    """Read up to `size` bytes at `position`; fewer only at the end of the file."""
    data = files.pread(fd, size, position)
    while len(data) < size:
        more = files.pread(fd, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def read_file(files: FileCalls, path: Path, size_max: int) -> bytes:
    """A small file, whole; of a larger one its first `size_max` bytes."""
    fd = files.open(path)
    try:
        # A read takes memory for what it is asked for, before it knows how much there is.
        return read_exactly(files, fd, min(files.size(fd), size_max), 0)
    finally:
        files.close(fd)


def make_dir_durable(files: FileCalls, path: Path) -> None:
    """Make a directory, and those above it that are missing, durable with their names.

    The name is synced also where the directory is there: the process that made it may have died
    before its sync. A directory above that must not be looked into, or of a file system that does not
    sync directories, is not one that we made.

    After a crash there are none of them, or some from the top on, all of them empty.

    Raises:
        OSError: the disk does not work.
    """
    above = path.parent
    with _tolerated():
        if above != path and path.name not in files.names(above):
            make_dir_durable(files, above)
    files.make_dir(path)
    with _tolerated():
        files.fsync_dir(above)


@contextmanager
def _tolerated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise


def replace_file(files: FileCalls, path: Path, data: bytes) -> None:
    """Replace a small file as a whole, durably.

    After a crash there is the old file or the new one, and perhaps `*.new` beside it, which
    means nothing and is written over the next time.
    """
    fresh = path.with_name(path.name + ".new")
    if fresh.name in files.names(path.parent):
        files.unlink(fresh)
    fd = files.open(fresh, create=True)
    try:
        write_all(files, fd, [data], 0)
        files.fdatasync(fd)
    finally:
        files.close(fd)
    files.rename(fresh, path)
    files.fsync_dir(path.parent)
