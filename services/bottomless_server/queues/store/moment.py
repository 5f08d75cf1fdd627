"""Whether message files are of the moment of their ledger, before a start takes anything away.

A crash leaves a file longer than its row, never shorter, and everything that is needed of it where the
ledger says: both copies of a record are whole when its new place is committed. So where a file has
another size than in its row, and a message is not in its place but in another one, or in a file that
would be removed, now or soon after the start, then ledger and files are of different moments: one of them was put back without the
other. A start would cut or remove the only copy of a message, or say that it is damaged; a rebuild
finds each of them.

What a disk has lost is nowhere: then the start goes on, and says what is damaged.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bottomless.formats.message_file import HEADER_SIZE, Finding, scan
from bottomless.guards import guard
from bottomless_server.node.file_calls import FileCalls, read_exactly
from bottomless_server.queues.core.compaction_plan import LiveRecord
from bottomless_server.queues.core.start_plan import NamedFile, Refused, StartPlan
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import Ledger
from bottomless_server.queues.store.compaction import MisplacedRecord, check_place

_WHOLE: Final = (Finding.MESSAGE, Finding.REPEATED)


@guard("what is not in its place is looked for before anything is cut")
def check_moment(files: FileCalls, directory: Path, ledger: Ledger, plan: StartPlan) -> None:
    """Refuse a start that would take away a message which the ledger has in another place.

    Raises:
        Refused: ledger and files are of different moments; nothing was changed.
        OSError: the disk does not work.
    """
    # Files of version 1 are never written, so they are of any moment.
    other = [file for file in (*plan.cuts, *plan.short) if not file.is_version_1]
    missed = {msg_id for file in other for msg_id in _missed(files, directory, ledger, file)}
    if not missed:
        return
    removed = [file for file in plan.removals if not file.is_version_1]
    last_v1 = -1 if plan.last_v1_file is None else plan.last_v1_file
    # Nothing is needed of these by this ledger, and they are removed soon after the start.
    doomed = [
        NamedFile(row.number)
        for row in ledger.files()
        if row.state is FileState.DOOMED and row.number > last_v1
    ]
    for file in sorted({*other, *removed, *doomed}):
        if _shows(files, directory / file.name, missed):
            raise Refused(
                f"the ledger and its files are of different moments: {file.name} has messages which the"
                " ledger says are elsewhere, where they are not"
            )


def _missed(files: FileCalls, directory: Path, ledger: Ledger, file: NamedFile) -> Sequence[bytes]:
    """The ids of messages that are needed of a file and are not where the ledger says."""
    live = ledger.live(file.number)
    try:
        fd = files.open(directory / file.name)
    except FileNotFoundError:
        return [one.msg_id for one in live]
    try:
        return [
            one.msg_id
            for one in live
            if not _is_there(files, fd, LiveRecord(one.msg_id, one.position, one.size))
        ]
    finally:
        files.close(fd)


def _is_there(files: FileCalls, fd: int, record: LiveRecord) -> bool:
    try:
        check_place(files, fd, record)
    except MisplacedRecord:
        return False
    return True


def _shows(files: FileCalls, path: Path, ids: set[bytes]) -> bool:
    """Whether a file shows one of these messages, by its own bytes."""
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return False
    try:
        end = files.size(fd)
        return end > HEADER_SIZE and any(
            found.what in _WHOLE and found.msg_id in ids
            for found in scan(lambda at, size: read_exactly(files, fd, size, at), end)
        )
    finally:
        files.close(fd)
