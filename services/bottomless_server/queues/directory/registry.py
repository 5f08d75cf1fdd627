"""The registry on a disk: an object beside the ledger for each queue, by which a lost ledger is made anew.

    registry/{queue_id}.json

After a crash in a write there is the old object or the new one; in a removal, the object or none. The
ledger knows which ones were about to be written (`registry_due`), and they are written again.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bottomless.formats.queue_object import QueueObject, decode_queue_object, encode_queue_object
from bottomless_server.node.file_calls import FileCalls, read_file, replace_file
from bottomless_server.queues.changes.fates import config_of
from bottomless_server.queues.ledger.base import QueueRow
from bottomless_server.queues.ports import WriteFailed
from bottomless_server.queues.rounds.round_files import FULL

_SUFFIX: Final = ".json"
_SIZE_MAX: Final = 2**20


class FileRegistry:
    """The objects of one directory; the thread of the writer has it."""

    def __init__(self, files: FileCalls, directory: Path) -> None:
        self._files = files
        self._directory = directory

    def write(self, row: QueueRow) -> None:
        """Return when the object of a live queue says what its row says, durably.

        Raises:
            WriteFailed: the old one may be there or the new one.
            NotServed: a later release has configured it; nothing is written.
        """
        try:
            replace_file(self._files, self._path(row.queue_id), encode_queue_object(object_of(row)))
        except OSError as error:
            raise WriteFailed(str(error), full=error.errno in FULL) from error

    def remove(self, queue_id: bytes) -> None:
        """Return when a deleted queue has no object, durably.

        Raises:
            WriteFailed: it may be there.
        """
        path = self._path(queue_id)
        try:
            if path.name in self._files.names(self._directory):
                self._files.unlink(path)
            self._files.fsync_dir(self._directory)
        except OSError as error:
            raise WriteFailed(str(error)) from error

    def _path(self, queue_id: bytes) -> Path:
        return self._directory / f"{queue_id.hex()}{_SUFFIX}"


def object_of(row: QueueRow) -> QueueObject:
    """What the registry says of a queue."""
    return QueueObject(
        row.queue_id,
        row.tenant,
        row.name,
        config_of(row.config),
        row.version,
        row.purged_below,
        row.reserved_below,
    )


def registry_objects(files: FileCalls, directory: Path) -> Iterator[QueueObject]:
    """All objects of a registry, in the order of their ids.

    Raises:
        Corrupt: one is damaged.
        NotServed: one is of a later release.
        OSError: the disk does not work.
    """
    for name in sorted(files.names(directory)):
        if name.endswith(_SUFFIX):
            yield decode_queue_object(read_file(files, directory / name, _SIZE_MAX))
