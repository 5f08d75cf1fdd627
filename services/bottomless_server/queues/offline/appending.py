"""New message files, written by a tool that has a store to itself: one after the other, each synced when it is full.

After a crash there are files with rows that say less than is in them, or none. So this is only for whoever
makes a store from nothing and begins anew after a crash.
"""

from types import TracebackType
from typing import Final, Self

from bottomless.formats.message_file import HEADER_SIZE, encode_file_header
from bottomless_server.node.file_calls import write_all
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import Ledger
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.queues.rounds.round_bodies import Place
from bottomless_server.queues.store.names import path_of

_AT_ONCE: Final = 1024 * 1024


class Appender:
    """Appends records; `add` is called within a round of the ledger, which enters the files."""

    def __init__(self, store: StoreDirectory, ledger: Ledger, file_bytes_max: int) -> None:
        self._store = store
        self._ledger = ledger
        self._file_bytes_max = file_bytes_max
        self._fd: int | None = None
        self._number = 0
        self._end = HEADER_SIZE
        self._written = 0
        self._parts: list[bytes | memoryview] = []
        self.numbers: list[int] = []
        """The numbers of all files that were made."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._fd is not None:
            self._store.files.close(self._fd)
            self._fd = None

    def add(self, record: list[bytes | memoryview]) -> Place:
        """Take a record; it is in its file after `end` at the latest.

        Raises:
            OSError: the disk did not take it.
        """
        size = sum(memoryview(part).nbytes for part in record)
        if self._fd is not None and self._end + size > self._file_bytes_max:
            self.end()
        if self._fd is None:
            self._begin()
        place = Place(self._number, self._end)
        self._parts += record
        self._end += size
        self._ledger.set_file_size(self._number, self._end)
        if self._end - self._written >= _AT_ONCE:
            self._write()
        return place

    def end(self) -> None:
        """Make the last file durable; its name is when its directory is synced."""
        if self._fd is None:
            return
        self._write()
        self._store.files.fdatasync(self._fd)
        self._store.files.close(self._fd)
        self._fd = None

    def _begin(self) -> None:
        self._number = self._ledger.add_file(FileState.MOVING)
        self.numbers.append(self._number)
        path = path_of(self._store.messages, self._number)
        self._fd = self._store.files.open(path, create=True)
        self._parts = [encode_file_header()]
        self._end, self._written = HEADER_SIZE, 0

    def _write(self) -> None:
        assert self._fd is not None
        self._written = write_all(self._store.files, self._fd, self._parts, self._written)
        self._parts = []
