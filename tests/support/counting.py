"""Count what noise cannot move: file calls, and calls of our own functions."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import bottomless
import bottomless_server
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.node.file_calls import RealFileCalls

_OURS: Final = tuple(
    str(Path(package.__file__ or "").parent) for package in (bottomless, bottomless_server)
)


class Calls:
    """How often functions of ours were called, and functions in C from them; in all threads."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(_OURS):
            with self._lock:
                self.count += 1


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Count within the block, in this thread and in those that it starts.

    Of what the block calls itself, each call counts; so does each return into our code by a
    coroutine that goes on.
    """
    calls = Calls()
    before = sys.getprofile()
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


class CountedFiles(RealFileCalls):
    """Real file calls, by name and kind of file: `pwritev .segment`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._kinds: dict[int, str] = {}
        self._lock = threading.Lock()

    def taken(self) -> Counter[str]:
        """What was counted since the last time."""
        with self._lock:
            counts, self.counts = self.counts, Counter()
        return counts

    def open(self, path: Path, *, create: bool = False) -> int:
        self._note("open", path.suffix)
        fd = super().open(path, create=create)
        self._kinds[fd] = path.suffix
        return fd

    def close(self, fd: int) -> None:
        self._note("close", self._kinds[fd])
        super().close(fd)

    def pwritev(self, fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
        self._note("pwritev", self._kinds[fd])
        return super().pwritev(fd, parts, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._note("pread", self._kinds[fd])
        return super().pread(fd, size, position)

    def fdatasync(self, fd: int) -> None:
        self._note("fdatasync", self._kinds[fd])
        super().fdatasync(fd)

    def open_dir(self, path: Path) -> int:
        fd = super().open_dir(path)
        self._kinds[fd] = ""
        return fd

    def syncfs(self, fd: int) -> None:
        self._note("syncfs", "")
        super().syncfs(fd)

    def fsync_dir(self, path: Path) -> None:
        self._note("fsync_dir", path.suffix)
        super().fsync_dir(path)

    def truncate(self, fd: int, size: int) -> None:
        self._note("truncate", self._kinds[fd])
        super().truncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        self._note("rename", old.suffix)
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._note("unlink", path.suffix)
        super().unlink(path)

    def size(self, fd: int) -> int:
        self._note("size", self._kinds[fd])
        return super().size(fd)

    def names(self, path: Path) -> list[str]:
        self._note("names", path.suffix)
        return super().names(path)

    def _note(self, call: str, suffix: str) -> None:
        with self._lock:
            self.counts[f"{call} {suffix}".strip()] += 1


class CountedCoordination:
    """A coordination store whose calls are counted."""

    def __init__(self, inner: MemoryCoordination) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._inner, name)
