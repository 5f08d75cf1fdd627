"""The directory of a store of queues whose service is stopped.

DIR/lock  ledger.db  ledger.db-wal  registry/{queue_id}.json  messages/{n}.sqs {n}.rdq  import
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bottomless_server.node.data_directory import DirectoryLock
from bottomless_server.node.file_calls import FileCalls, make_dir_durable
from bottomless_server.queues.directory.opening import LEDGER, has_bytes
from bottomless_server.queues.directory.registry import FileRegistry
from bottomless_server.queues.ledger.base import ID_SIZE, Ledger
from bottomless_server.queues.ledger.sqlite import SqliteLedger
from bottomless_server.queues.store.alone import a_round
from bottomless_server.queues.store.import_mark import is_marked

FRESH_LEDGER: Final = "rebuilt.db"
"""A ledger that is being made; SQLite keeps its log beside it."""
_AT_ONCE: Final = 1_000


class StoreDirectory:
    """Everything that a tool needs of a store; whoever uses one holds its lock."""

    def __init__(self, files: FileCalls, path: Path) -> None:
        self.files = files
        self.path = path
        self.messages = path / "messages"
        self.registry_path = path / "registry"

    @property
    def registry(self) -> FileRegistry:
        return FileRegistry(self.files, self.registry_path)

    def make(self) -> None:
        """Make the directories that are missing, durably."""
        for path in (self.path, self.messages, self.registry_path):
            make_dir_durable(self.files, path)

    def has_ledger(self) -> bool:
        """Whether there is a ledger; one of no bytes is a lost one, which SQLite would make a new one of."""
        return LEDGER in self.files.names(self.path) and has_bytes(self.files, self.path / LEDGER)

    def open_ledger(self) -> Ledger:
        """Open the ledger; one that is not there is made, under an id of its own.

        Raises:
            LedgerFailed: it is damaged, of a later release, or the disk fails.
        """
        return SqliteLedger(self.path / LEDGER, self.files, os.urandom(ID_SIZE))

    def remove_ledger(self) -> None:
        """Remove the ledger with its log, durably; after a crash some of it may be there."""
        self._remove([name for name in self.files.names(self.path) if name.startswith(LEDGER)])

    def has_log(self) -> bool:
        """Whether there is a log of a ledger, which would be believed of any ledger of that name."""
        return f"{LEDGER}-wal" in self.files.names(self.path)

    def make_ledger(self) -> Ledger:
        """Make a ledger beside the place of the real one; what is left of an earlier attempt goes.

        Raises:
            LedgerFailed: the disk fails.
        """
        self.remove_fresh_ledger()
        return SqliteLedger(self.path / FRESH_LEDGER, self.files, os.urandom(ID_SIZE))

    def put_ledger(self) -> None:
        """Give a ledger that was made, and closed, its place. After a crash it is there or not."""
        self.files.rename(self.path / FRESH_LEDGER, self.path / LEDGER)
        self.files.fsync_dir(self.path)

    def remove_fresh_ledger(self) -> None:
        """Remove a ledger that was made and closed, and is not wanted."""
        self._remove(
            [name for name in self.files.names(self.path) if name.startswith(FRESH_LEDGER)]
        )

    def write_registry(self, ledger: Ledger) -> None:
        """Write the objects of all queues whose rows say something else, and note that in the ledger.

        Raises:
            WriteFailed: the disk did not do it.
        """
        due = ledger.registry_due(_AT_ONCE)
        while due:
            for row in due:
                self.registry.write(row)
            with a_round(ledger):
                ledger.settle_registry([row.queue_id for row in due])
            due = ledger.registry_due(_AT_ONCE)

    def is_empty(self) -> bool:
        """Whether nothing was ever stored here, or only by an import that was cut off."""
        if is_marked(self.files, self.path):
            return True
        if self.files.names(self.messages) or self.files.names(self.registry_path):
            return False
        if not self.has_ledger():
            return True
        ledger = self.open_ledger()
        try:
            return ledger.store().next_file == 0 and ledger.store().round == 0
        finally:
            ledger.close()

    def clear(self) -> None:
        """Remove everything that an import which was cut off has left, durably."""
        for directory in (self.messages, self.registry_path):
            for name in self.files.names(directory):
                self.files.unlink(directory / name)
            self.files.fsync_dir(directory)
        self.remove_ledger()

    def _remove(self, names: list[str]) -> None:
        for name in names:
            self.files.unlink(self.path / name)
        self.files.fsync_dir(self.path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The lock of a store's directory, which a running service has as well.

    Raises:
        CannotStart: a process uses the directory.
    """
    with DirectoryLock(path, "server or tool"):
        yield
