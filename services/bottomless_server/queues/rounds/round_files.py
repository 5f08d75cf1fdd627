"""Message files as rounds write them, by the file calls of a node.

A file is open only from the write of a round to its sync, so an error of the disk in between is heard
here and nowhere else. What is on disk after a crash:

- after a write: any part of the records after the end that the ledger knows, or a file without a row.
- after the sync of a file that goes on: all of them. Of a new one they are there under no certain name.
- after the sync of the directory: all of them, before the ledger knows.
- in a cut: the old length or the new one; in a removal: the file or nothing.
"""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bottomless.formats.message_file import encode_file_header
from bottomless.guards import guard
from bottomless_server.node.file_calls import FileCalls, write_all
from bottomless_server.queues.ports import Record, SyncFailed, WriteFailed
from bottomless_server.queues.store.names import path_of
from bottomless_server.queues.store.pins import Pins

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Numbers of errors that say that a disk has no room."""


class FilePin:
    """A pin on a file; released twice it does nothing."""

    def __init__(self, pins: Pins, file: int, number: int) -> None:
        self._pins: Pins | None = pins
        self._file = file
        self._number = number
        pins.pin(file, number)

    def release(self) -> None:
        pins, self._pins = self._pins, None
        if pins is not None:
            pins.unpin(self._file, self._number)


class RoundFiles:
    """The message files of one directory; the thread of the writer has it."""

    def __init__(
        self,
        files: FileCalls,
        directory: Path,
        pins: Pins,
        free_bytes: Callable[[Path], int] | None = None,
    ) -> None:
        self._files = files
        self._directory = directory
        self._pins = pins
        self._free_bytes = free_bytes or _free_bytes
        self._written: dict[int, int] = {}
        """Descriptors of files that are written and not synced yet."""

    def write(self, number: int, position: int, records: Sequence[Record], *, create: bool) -> None:
        parts = [part for record in records for part in record]
        try:
            if create:
                self._remove(number)
                path = path_of(self._directory, number)
                self._written[number] = self._files.open(path, create=True)
                header = encode_file_header()
                assert position == len(header)
                write_all(self._files, self._written[number], [header, *parts], 0)
            else:
                path = path_of(self._directory, number)
                self._written[number] = self._files.open(path)
                write_all(self._files, self._written[number], parts, position)
        except OSError as error:
            raise WriteFailed(str(error), full=error.errno in FULL) from error

    def sync(self, number: int, *, created: bool) -> None:
        try:
            self._files.fdatasync(self._written[number])
            if created:
                sync_new_name(self._files, self._directory)
        except OSError as error:
            raise SyncFailed(str(error)) from error
        self._close(number)

    def cut(self, number: int, size: int | None) -> None:
        try:
            self._close(number)
            if size is None:
                self._remove(number)
                return
            fd = self._files.open(path_of(self._directory, number))
            try:
                self._files.truncate(fd, size)
                self._files.fdatasync(fd)
            finally:
                self._files.close(fd)
        except OSError as error:
            raise SyncFailed(str(error)) from error

    def pin(self, file: int, number: int) -> FilePin:
        return FilePin(self._pins, file, number)

    def free_bytes(self) -> int:
        try:
            return self._free_bytes(self._directory)
        except OSError as error:
            raise WriteFailed(str(error)) from error

    def _remove(self, number: int) -> None:
        path = path_of(self._directory, number)
        if path.name in self._files.names(self._directory):
            self._files.unlink(path)
            self._files.fsync_dir(self._directory)

    def _close(self, number: int) -> None:
        fd = self._written.pop(number, None)
        if fd is not None:
            self._files.close(fd)


@guard("sync of a new file's directory")
def sync_new_name(files: FileCalls, directory: Path) -> None:
    """Make the name of a new file durable before a COMMIT names it."""
    files.fsync_dir(directory)


def _free_bytes(directory: Path) -> int:
    there = os.statvfs(directory)
    return there.f_bavail * there.f_frsize
