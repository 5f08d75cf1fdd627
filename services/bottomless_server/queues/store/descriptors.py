"""Message files that are open to be read: a bounded number, shared by all threads that read."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from bottomless_server.node.file_calls import FileCalls


class _Open:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.is_forgotten = False


class Descriptors:
    """Files by their paths. Those in use stay open; of others `count_max` at most, the last used ones."""

    def __init__(self, files: FileCalls, count_max: int) -> None:
        self._files = files
        self._count_max = count_max
        self._open: OrderedDict[Path, _Open] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def use(self, path: Path) -> Iterator[int]:
        """A file for as long as the block lasts.

        Raises:
            OSError: it cannot be opened.
        """
        one = self._take(path)
        try:
            yield one.fd
        finally:
            self._give_back(one)

    def _take(self, path: Path) -> _Open:
        with self._lock:
            one = self._open.get(path)
            if one is None:
                # Under the lock: of two that open the same file one would be lost.
                one = self._open[path] = _Open(self._files.open(path))
            self._open.move_to_end(path)
            one.users += 1
            return one

    def _give_back(self, one: _Open) -> None:
        with self._lock:
            one.users -= 1
            if one.is_forgotten and not one.users:
                self._files.close(one.fd)
            self._make_room()

    def _make_room(self) -> None:
        for path, one in list(self._open.items()):
            if len(self._open) <= self._count_max:
                return
            if not one.users:
                del self._open[path]
                self._files.close(one.fd)

    def forget(self, path: Path) -> None:
        """Close a file as soon as nobody uses it: it is about to be removed, or has another name."""
        with self._lock:
            one = self._open.pop(path, None)
            if one is None:
                return
            one.is_forgotten = True
            if not one.users:
                self._files.close(one.fd)

    def close(self) -> None:
        """Close all of them. Nobody uses one any more."""
        for path in list(self._open):
            self.forget(path)

    @property
    def count(self) -> int:
        """Files that are open."""
        return len(self._open)
