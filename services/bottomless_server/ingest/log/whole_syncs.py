"""Syncs of the whole file system under a data directory, and when they may stand for those of files.

Linux tells each open handle once of every error since its last question, or since it was opened.
So whoever syncs takes a handle before it writes, and has it alone until its sync has answered: if
another one had asked through the same handle in between, that one would have been told of an error
of ours, and we would not.

A sync of everything changes nothing in what is there after a crash: each file is durable, or it is
not, as if it had been synced by itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import structlog

from bottomless_server.ingest.log.layout import streams_dir
from bottomless_server.node.core.file_systems import KERNEL_MIN, KINDS, FileSystem
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.runtime.base.cannot_start import CannotStart

log = structlog.get_logger(__name__)

SyncAll = Literal["auto", "always", "never"]
"""Whether one sync of the file system may stand for those of many files: where the data directory
has a file system for itself; wherever errors are told; nowhere."""


class WholeSyncs:
    """Handles for syncs of the file system that a data directory lies on."""

    def __init__(self, files: FileCalls, data_dir: Path, setting: SyncAll) -> None:
        self._files = files
        self._data_dir = data_dir
        self._setting: SyncAll = setting
        self._free: list[Handle] = []
        """Handles that nobody has, as many as were in use at once."""

    def look(self) -> bool:
        """Whether they may stand for syncs of files; asked once, at the start.

        Raises:
            CannotStart: they are asked for where errors would not be told.
        """
        found = self._files.file_system(self._data_dir)
        of_streams = self._files.file_system(streams_dir(self._data_dir))
        if found is None or of_streams is None or not _are_one(found, of_streams):
            found = None
        allowed = may_sync_all(self._setting, found)
        log.info(
            "appends are synced",
            all_at_once=allowed,
            file_system=None if found is None else found.kind,
            is_own=found is not None and found.is_own,
        )
        return allowed

    @contextmanager
    def handle(self) -> Iterator["Handle"]:
        """A handle for one thread, from before its first write until after its sync."""
        try:
            # One call: of two threads that looked first, both might take the last one.
            handle = self._free.pop()
        except IndexError:
            try:
                handle = Handle(self._files, self._files.open_dir(self._data_dir))
            except OSError as error:
                yield Handle(self._files, error)
                return
        try:
            yield handle
        finally:
            self._free.append(handle)

    def close(self) -> None:
        """Close the handles, once no thread has one."""
        while self._free:
            self._free.pop().close()


class Handle:
    """An open handle on a file system, or the error for which there is none."""

    def __init__(self, files: FileCalls, opened: int | OSError) -> None:
        self._files = files
        self._opened = opened

    def sync(self) -> OSError | None:
        """Sync everything; returns the error that was told."""
        try:
            if isinstance(self._opened, OSError):
                raise self._opened
            self._files.syncfs(self._opened)
        except OSError as error:
            log.warning("a sync of the file system failed", error=str(error))
            return error
        return None

    def close(self) -> None:
        assert not isinstance(self._opened, OSError)
        self._files.close(self._opened)


def _are_one(found: FileSystem, of_streams: FileSystem) -> bool:
    # Of a link to another disk nothing would be synced, be it that of all streams or of one.
    return found.device == of_streams.device and of_streams.is_single


def may_sync_all(setting: SyncAll, found: FileSystem | None) -> bool:
    """Whether a sync of a file system may stand for those of its files.

    Raises:
        CannotStart: it is to do so wherever the data lies, and would not tell of errors there.
    """
    if setting == "never":
        return False
    if found is not None and found.tells_errors and found.is_single:
        return setting == "always" or found.is_own
    if setting == "always":
        kinds, kernel = " or ".join(sorted(KINDS)), ".".join(map(str, KERNEL_MIN))
        raise CannotStart(
            "BOTTOMLESS_INGEST_SYNC_ALL=always needs a data directory on "
            f"one {kinds} file system and Linux {kernel} or newer: elsewhere a failed write may go "
            "unnoticed"
        )
    return False
