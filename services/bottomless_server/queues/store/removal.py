"""Removal of a message file of which nothing is needed: `doomed` in the round that emptied it.

| Step | Does | On disk after a crash in it, or after a loss of power |
|---|---|---|
| D1 | waits for readers | a file that nobody needs |
| D2 | removes it, and syncs the directory | the file or not: a `doomed` one may be missing |
| D3 | a round removes its row | the row or not. The number is never used again |

The row goes last: a file without a row would make a start think that its ledger is older than its files.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

from bottomless.guards import guard
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import NUMBER_MAX, Ledger
from bottomless_server.queues.store.descriptors import Descriptors
from bottomless_server.queues.store.names import fresh_path, path_of
from bottomless_server.queues.store.steps import InRound, OnDisk, Step, UntilUnpinned

ANY_ROUND: Final = NUMBER_MAX


def remove_doomed(
    files: FileCalls,
    directory: Path,
    number: int,
    descriptors: Descriptors,
    *,
    is_version_1: bool = False,
) -> Generator[Step, Any, None]:
    """Remove a doomed file.

    Raises:
        OSError: the disk did not do it; it is doomed still, and may be gone.
    """
    path = path_of(directory, number, is_version_1=is_version_1)
    yield UntilUnpinned(number, ANY_ROUND)
    yield OnDisk(lambda: unlink_durably(files, path, descriptors))
    yield InRound(lambda ledger: _remove_row(ledger, number))


def unlink_durably(files: FileCalls, path: Path, descriptors: Descriptors) -> None:
    """Remove a file; when this returns it does not come back after a loss of power."""
    descriptors.forget(path)
    if path.name in files.names(path.parent):
        files.unlink(path)
    sync_names(files, path.parent)


def remove_begun(files: FileCalls, new: Path) -> bool:
    """Remove a new file that was begun, under either of its names; whether it is certainly gone."""
    try:
        there = set(files.names(new.parent))
        for path in (fresh_path(new), new):
            if path.name in there:
                files.unlink(path)
        files.fsync_dir(new.parent)
    except OSError:
        return False
    return True


@guard("sync of the directory before a row goes")
def sync_names(files: FileCalls, directory: Path) -> None:
    """Make the names of a directory durable."""
    files.fsync_dir(directory)


def _remove_row(ledger: Ledger, number: int) -> None:
    row = ledger.file(number)
    assert row is not None
    assert row.state is FileState.DOOMED
    ledger.remove_file(number)
