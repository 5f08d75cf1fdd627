"""A rewrite: what is needed of a sealed file goes into a new file, and the old one is removed later.

| Step | Does | On disk after a crash in it, or after a loss of power |
|---|---|---|
| R0 | a round gives the new file its number and a row, and sets `moving` for both | nothing |
| R1 | records into `{n}.sqs.new`, a sync, a rename, a sync of the directory | perhaps the new file, under either name: a `moving` file that no message names goes, with its row |
| R2 | a round: new places of what is needed still; the new file `sealed`, the old one `doomed` | the ledger before or after; both files whole |

Compaction in place writes less; a rewrite is for files of which it would leave too much.
"""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bottomless.formats.message_file import HEADER_SIZE, encode_file_header
from bottomless_server.node.file_calls import FileCalls, read_exactly, write_all
from bottomless_server.queues.core.compaction_plan import LiveRecord
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import Ledger, Move
from bottomless_server.queues.store.compaction import (
    CompactionResult,
    Ended,
    MisplacedRecord,
    check_place,
    still_there,
)
from bottomless_server.queues.store.names import fresh_path, is_of_version_1, path_of
from bottomless_server.queues.store.removal import remove_begun
from bottomless_server.queues.store.steps import InRound, OnDisk, Step
from bottomless_server.queues.store.version_1 import rewrite_version_1

_AT_ONCE: Final = 1024 * 1024
"""Bytes of records that are held in memory, but for one record that is larger."""


class _Begun(NamedTuple):
    fresh: int
    live: tuple[LiveRecord, ...]
    size: int


_OF_VERSION_1: Final = _Begun(-1, (), 0)


def rewrite(
    files: FileCalls, directory: Path, number: int
) -> Generator[Step, Any, CompactionResult]:
    """Write a sealed file anew; the result is returned to whoever drives the generator.

    One of version 1 becomes a file of version 2 (version_1.py).
    """
    begun = yield InRound(lambda ledger: _begin(ledger, number))
    if begun.value is None:
        return CompactionResult(Ended.NOT_NEEDED)
    if begun.value is _OF_VERSION_1:
        return (yield from _rewrite_version_1(files, directory, number))
    fresh, live, size = begun.value
    old, new = path_of(directory, number), path_of(directory, fresh)
    try:
        yield OnDisk(lambda: copy_records(files, old, new, live))
    except (MisplacedRecord, OSError) as error:
        gone = yield OnDisk(lambda: remove_begun(files, new))
        damaged = isinstance(error, MisplacedRecord)
        state = FileState.DAMAGED if damaged else FileState.SEALED
        yield InRound(lambda ledger: _give_up(ledger, number, state, fresh if gone else None))
        if isinstance(error, OSError):
            return CompactionResult(Ended.FAILED, error=error)
        return CompactionResult(Ended.DAMAGED)
    yield InRound(lambda ledger: _moved(ledger, number, fresh, live))
    moved = sum(record.size for record in live)
    return CompactionResult(Ended.COMPACTED, moved, size - HEADER_SIZE - moved)


def _rewrite_version_1(
    files: FileCalls, directory: Path, number: int
) -> Generator[Step, Any, CompactionResult]:
    try:
        result = yield from rewrite_version_1(files, directory, number)
    except OSError as error:
        return CompactionResult(Ended.FAILED, error=error)
    if result.fresh is None:
        return CompactionResult(Ended.NOT_NEEDED)
    return CompactionResult(
        Ended.DAMAGED if result.unreadable else Ended.COMPACTED, result.end - HEADER_SIZE
    )


def _begin(ledger: Ledger, number: int) -> _Begun | None:
    row = ledger.file(number)
    if row is None or row.state is not FileState.SEALED or not row.valid:
        return None
    if is_of_version_1(number, ledger.store().last_v1_file):
        return _OF_VERSION_1
    live = tuple(LiveRecord(one.msg_id, one.position, one.size) for one in ledger.live(number))
    fresh = ledger.add_file(FileState.MOVING)
    ledger.set_file_state(number, FileState.MOVING)
    return _Begun(fresh, live, row.size)


def _moved(ledger: Ledger, number: int, fresh: int, live: Sequence[LiveRecord]) -> None:
    moves, position = [], HEADER_SIZE
    for record in live:
        moves.append(Move(record.msg_id, number, record.position, fresh, position))
        position += record.size
    still_there(ledger, moves)
    ledger.set_file_size(fresh, position)
    # Nothing is needed of the old one any more: so it is doomed as soon as it is sealed. So is the new
    # one, if everything was acknowledged meanwhile.
    ledger.set_file_state(fresh, FileState.SEALED)
    ledger.set_file_state(number, FileState.SEALED)


def _give_up(ledger: Ledger, number: int, state: FileState, fresh: int | None) -> None:
    ledger.set_file_state(number, state)
    # A row whose file may be there stays for the next start, which removes both.
    if fresh is not None:
        ledger.remove_file(fresh)


def copy_records(files: FileCalls, old: Path, new: Path, live: Sequence[LiveRecord]) -> None:
    """Write a new file with these records, as they are, in this order; it has its name at last.

    Raises:
        MisplacedRecord: a record is not where the ledger says.
        OSError: the disk did not do it; there may be a file under either name.
    """
    source = files.open(old)
    try:
        for record in live:
            check_place(files, source, record)
        fresh = fresh_path(new)
        target = files.open(fresh, create=True)
        try:
            _copy(files, source, target, live)
            files.fdatasync(target)
        finally:
            files.close(target)
    finally:
        files.close(source)
    files.rename(fresh, new)
    files.fsync_dir(new.parent)


def _copy(files: FileCalls, source: int, target: int, live: Sequence[LiveRecord]) -> None:
    parts, held, position = [encode_file_header()], 0, 0
    for record in live:
        parts.append(read_exactly(files, source, record.size, record.position))
        held += record.size
        if held >= _AT_ONCE:
            position = write_all(files, target, parts, position)
            parts, held = [], 0
    write_all(files, target, parts, position)
