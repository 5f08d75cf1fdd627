"""How message files grow: what a round publishes goes to the end of the open file, in one write.

    in the round      places: a file at its bound is sealed, new files get rows
    before COMMIT     one gathered write for each file, a sync of it, a sync of the directory for new ones
    COMMIT            the ledger names what is durable by now
    else              a rollback; what was written is cut off again, new files are removed

Died before COMMIT: bytes after the size in the row, perhaps a file without a row, whose number is the
next one. The next start cuts these and removes that. The large bodies of a round get a file for
themselves, which is sealed at once: their space comes back with a removal, without a copy.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from bottomless.formats.message_file import HEADER_SIZE, check_file_header, encode_file_header
from bottomless.guards import guard
from bottomless_server.node.file_calls import FileCalls, read_exactly, write_all
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import Ledger
from bottomless_server.queues.store.names import path_of

ALONE_SIZE_MIN: Final = 4_000_000
"""Bytes of a record from which on it is not written beside small ones."""

Record = Sequence[bytes | memoryview]
"""A record in its parts."""


class PlacedAt(NamedTuple):
    """The file and the position that a record is about to have."""

    file: int
    position: int


class WriteFailed(Exception):
    """Nothing of a round's messages is stored: the round is to be rolled back, then `undo` called."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        """Whether the disk has no room."""


@dataclass(slots=True)
class _Growing:
    """A file to which a round adds records."""

    number: int
    start: int
    """Where the round's bytes begin: the size that the file had; 0 of a new one."""
    size: int
    parts: list[bytes | memoryview]
    is_alone: bool = False
    """Whether it is for large records alone."""
    fd: int | None = None


@dataclass(slots=True)
class _Open:
    number: int
    size: int
    fd: int
    is_spent: bool = False
    """A sync of it failed: nothing is added any more, and the next round with messages seals it."""


class MessageWriter:
    """The end of the store, where new records go. One thread calls it, round after round:

    `place`, `finish`, `write`, then `committed` or, after a rollback, `undo`. Where nobody knows about
    the COMMIT: `abandon`, and a start.
    """

    def __init__(self, files: FileCalls, directory: Path, file_size_max: int) -> None:
        self._files = files
        self._directory = directory
        self._file_size_max = file_size_max
        self._open: _Open | None = None
        self._growing: list[_Growing] = []

    def resume(self, number: int, size: int) -> None:
        """Go on with the file that is open in the ledger, after a start has looked at it.

        Raises:
            OSError: it cannot be opened.
            Corrupt: it is no message file of this version.
        """
        assert self._open is None
        fd = self._files.open(path_of(self._directory, number))
        check_file_header(read_exactly(self._files, fd, HEADER_SIZE, 0))
        self._open = _Open(number, size, fd)

    def place(self, ledger: Ledger, records: Sequence[Record]) -> list[PlacedAt]:
        """Give records their places, and enter the files that they need, within the round."""
        assert not self._growing, "the round before was neither committed nor undone"
        sizes = [sum(memoryview(part).nbytes for part in record) for record in records]
        current = self._open if any(size < ALONE_SIZE_MIN for size in sizes) else None
        shared: _Growing | None = None
        if current is not None and not current.is_spent and current.size < self._file_size_max:
            shared = _Growing(current.number, current.size, current.size, [], fd=current.fd)
            self._growing.append(shared)
        elif current is not None:
            ledger.set_file_state(current.number, FileState.SEALED)
        fresh: _Growing | None = None
        places: list[PlacedAt] = []
        for record, size in zip(records, sizes, strict=True):
            growing = shared if size < ALONE_SIZE_MIN else None
            if growing is None:
                # One at most in a round, so that a start knows the number of a file that has no row.
                is_alone = shared is not None or min(sizes) >= ALONE_SIZE_MIN
                growing = fresh = fresh or self._made(ledger, is_alone=is_alone)
            places.append(PlacedAt(growing.number, growing.size))
            growing.parts += record
            growing.size += size
        for growing in self._growing:
            ledger.set_file_size(growing.number, growing.size)
        return places

    def _made(self, ledger: Ledger, *, is_alone: bool) -> _Growing:
        # One file at most is open; that of a large record is sealed before anybody sees the round.
        number = ledger.add_file(FileState.MOVING if is_alone else FileState.OPEN)
        growing = _Growing(number, 0, HEADER_SIZE, [encode_file_header()], is_alone)
        self._growing.append(growing)
        return growing

    def finish(self, ledger: Ledger) -> None:
        """Seal the files of large records, within the round, after their messages were entered."""
        for growing in self._growing:
            if growing.is_alone:
                ledger.set_file_state(growing.number, FileState.SEALED)

    def write(self) -> None:
        """Make the records of the round durable, before its COMMIT.

        Raises:
            WriteFailed: the round is to be rolled back, and then `undo` is to be called.
        """
        try:
            for growing in self._growing:
                self._write(growing)
            if any(not growing.start for growing in self._growing):
                sync_new_names(self._files, self._directory)
        except OSError as error:
            raise WriteFailed(error) from error

    def _write(self, growing: _Growing) -> None:
        if growing.fd is None:
            path = path_of(self._directory, growing.number)
            growing.fd = self._files.open(path, create=True)
        write_all(self._files, growing.fd, growing.parts, growing.start)
        try:
            sync_before_commit(self._files, growing.fd)
        except OSError:
            # What the system has of this file in memory is not to be trusted any more.
            if self._open is not None and growing.fd == self._open.fd:
                self._open.is_spent = True
            raise

    def committed(self) -> None:
        """The round is durable: the next one goes on after it."""
        for growing in self._growing:
            assert growing.fd is not None
            if growing.is_alone:
                self._files.close(growing.fd)
            elif growing.start:
                assert self._open is not None
                self._open.size = growing.size
            else:
                self._close_open()
                self._open = _Open(growing.number, growing.size, growing.fd)
        self._growing = []

    def undo(self) -> None:
        """Take away what the round wrote, after its rollback. Nothing can be placed before this returns.

        Raises:
            OSError: it has to be called again.
        """
        made = [growing for growing in self._growing if not growing.start]
        for growing in self._growing:
            if growing.start:
                assert growing.fd is not None
                self._files.truncate(growing.fd, growing.start)
                self._files.fdatasync(growing.fd)
        there = set(self._files.names(self._directory)) if made else set()
        for growing in made:
            path = path_of(self._directory, growing.number)
            if growing.fd is not None:
                self._files.close(growing.fd)
                growing.fd = None
            # The ledger gives the number to the next file: nothing of this one may come back.
            if path.name in there:
                self._files.unlink(path)
        if made:
            self._files.fsync_dir(self._directory)
        self._growing = []

    def abandon(self) -> None:
        """Let go of all files: the next start says what is true."""
        for growing in self._growing:
            if growing.fd is not None and not growing.start:
                self._files.close(growing.fd)
        self._growing = []
        self._close_open()

    def _close_open(self) -> None:
        if self._open is not None:
            self._files.close(self._open.fd)
            self._open = None


@guard("sync of bytes before COMMIT")
def sync_before_commit(files: FileCalls, fd: int) -> None:
    """Make records durable that a COMMIT is about to name."""
    files.fdatasync(fd)


@guard("sync of a new file's directory")
def sync_new_names(files: FileCalls, directory: Path) -> None:
    """Make the names of new files durable before a COMMIT names them."""
    files.fsync_dir(directory)
