"""All files of version 1 written anew, in the order of their numbers; nobody else uses the store.

Each file is written anew by itself (version_1.py) and removed before the next one begins: so there is
room needed for one more file, and whoever begins again after a crash goes on. When no file of version 1
is left, the ledger says that there is none. That round is the last step: before it the highest number of
version 1 still stands in the ledger, which harms nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bottomless_server.node.file_calls import FileCalls
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import Ledger
from bottomless_server.queues.store.alone import a_round, drive_alone
from bottomless_server.queues.store.descriptors import Descriptors
from bottomless_server.queues.store.names import is_of_version_1
from bottomless_server.queues.store.removal import remove_doomed
from bottomless_server.queues.store.version_1 import rewrite_version_1

_SWEEP_COUNT: Final = 2_000
REASON_COUNT_MAX: Final = 20
"""Messages of which a report says why they cannot be read."""


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What became of the files of version 1."""

    rewritten: tuple[int, ...] = ()
    """Numbers of those that are gone; what was needed of them is in files of version 2."""
    message_count: int = 0
    """Messages that were written anew."""
    kept: tuple[int, ...] = ()
    """Numbers of those that stay, since something of them is needed that cannot be written anew."""
    unreadable_count: int = 0
    """Messages that are damaged from now on: they are of no shape that is known."""
    reasons: tuple[str, ...] = ()
    """Why, of the first ones."""


def migrate(
    files: FileCalls, directory: Path, ledger: Ledger, *, checksum: bool = True
) -> MigrationReport:
    """Write all files of version 1 anew. A start of the store precedes it.

    Raises:
        OSError, LedgerFailed: it died in a step, as above.
    """
    last = ledger.store().last_v1_file
    if last is None:
        return MigrationReport()
    _sweep(ledger)
    descriptors = Descriptors(files, 1)
    message_count, unreadable = 0, list[str]()
    numbers = [row.number for row in ledger.files() if is_of_version_1(row.number, last)]
    for number in numbers:
        done = drive_alone(ledger, rewrite_version_1(files, directory, number, checksum=checksum))
        message_count += len(done.places)
        unreadable += [
            f"{number}.rdq: {one.message.msg_id.hex()}: {why}" for one, why in done.unreadable
        ]
        row = ledger.file(number)
        if row is not None and row.state is FileState.DOOMED:
            steps = remove_doomed(files, directory, number, descriptors, is_version_1=True)
            drive_alone(ledger, steps)
    left = {row.number for row in ledger.files() if is_of_version_1(row.number, last)}
    if not left:
        with a_round(ledger):
            ledger.set_last_v1_file(None)
    return MigrationReport(
        tuple(number for number in numbers if number not in left),
        message_count,
        tuple(sorted(left)),
        len(unreadable),
        tuple(unreadable[:REASON_COUNT_MAX]),
    )


def _sweep(ledger: Ledger) -> None:
    """What was purged or deleted is not written anew."""
    swept = _SWEEP_COUNT
    while swept == _SWEEP_COUNT:
        with a_round(ledger):
            swept = ledger.sweep(_SWEEP_COUNT)
