"""Compaction in place: what is needed of a sealed file moves to its beginning, and the rest is cut off.

| Step | Does | On disk after a crash in it, or after a loss of power |
|---|---|---|
| S0 | a round sets `moving` and says what is needed; the plan is made | nothing moved |
| | waits for readers of what is dead by that round | |
| S1 | `02 size` at each gap that gets records; barrier 1 | each gap is what it was, or one hole |
| S2 | all but the first five bytes of what goes there; barrier 2 | what is inside a hole means nothing |
| S3 | the first five bytes; barrier 3 | each gap is the hole, or has its new records; both copies are whole |
| S4 | a round: new places of what is needed still, and the new size | the ledger before or after |
| S5 | waits for readers of the old places | |
| S6 | cuts the file; a round sets `sealed` | the file is longer than its row: a start cuts it |

A barrier is a sync of the file. At every moment records tile the file, and it shows each message that
is needed, whole, by its own bytes: so a ledger that is lost is made anew from the files. Nothing that is
needed is written over: a message that is acknowledged meanwhile misses its round, and one that is
needed at S0 lies in no gap of the plan.

What fails on the disk leaves the file as it is, with the ledger before: it is sealed again.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from bottomless.formats.message_file import (
    HOLE_SIZE_MIN,
    MSG_ID_SIZE,
    RecordType,
    hole_front,
)
from bottomless.guards import guard
from bottomless_server.node.file_calls import FileCalls, read_exactly, write_all
from bottomless_server.queues.core.compaction_plan import (
    CompactionPlan,
    Filling,
    LiveRecord,
    is_candidate,
    is_enough,
    plan_compaction,
)
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import Ledger, Move
from bottomless_server.queues.store.names import is_of_version_1, path_of
from bottomless_server.queues.store.steps import InRound, OnDisk, Step, UntilUnpinned

_CONTENT: Final = (RecordType.MESSAGE, RecordType.MESSAGE_WITH_CHECKSUM)


class Ended(Enum):
    """How a compaction ended."""

    COMPACTED = "compacted"
    NOT_NEEDED = "not-needed"
    """The file is not what it was, or enough of it is needed."""
    REWRITE = "rewrite"
    """In place too little would come of it: it is better written anew."""
    DAMAGED = "damaged"
    """A record that is needed is not where it should be: the file waits for an operator."""
    FAILED = "failed"
    """The disk did not do it."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did."""

    ended: Ended
    moved_bytes: int = 0
    freed_bytes: int = 0
    error: OSError | None = None


class MisplacedRecord(Exception):
    """What lies in the place of a record is none."""


class _Candidate(NamedTuple):
    live: tuple[LiveRecord, ...]
    """What is needed, in the order of positions."""
    valid: int
    size: int
    is_version_1: bool = False


def compact(
    files: FileCalls,
    directory: Path,
    number: int,
    *,
    live_share: float = 0.5,
    has_room: bool = True,
) -> Generator[Step, Any, CompactionResult]:
    """Compact one file, if it is worth it. `has_room` says whether the disk has room for a rewrite.

    The result is returned to whoever drives the generator.
    """
    begun = yield InRound(lambda ledger: _begin(ledger, number, live_share))
    if begun.value is None:
        return CompactionResult(Ended.NOT_NEEDED)
    candidate: _Candidate = begun.value
    if candidate.is_version_1:
        # Nothing is written into one: it is written anew as a file of version 2.
        return CompactionResult(Ended.REWRITE)
    # In a thread of its own: a file has up to some hundred thousand records, and rounds go on meanwhile.
    plan = yield OnDisk(lambda: plan_compaction(candidate.live, candidate.size))
    ended = _end_before_it_begins(plan, candidate, live_share, has_room=has_room)
    if ended is not None:
        yield InRound(lambda ledger: ledger.set_file_state(number, FileState.SEALED))
        return CompactionResult(ended)
    # What died before this round lies in the gaps, and may be read still.
    yield UntilUnpinned(number, begun.round)
    path = path_of(directory, number)
    try:
        yield OnDisk(lambda: move_records(files, path, plan.fillings))
    except (MisplacedRecord, OSError) as error:
        damaged = isinstance(error, MisplacedRecord)
        state = FileState.DAMAGED if damaged else FileState.SEALED
        yield InRound(lambda ledger: ledger.set_file_state(number, state))
        if isinstance(error, OSError):
            return CompactionResult(Ended.FAILED, error=error)
        return CompactionResult(Ended.DAMAGED)
    moved = yield InRound(lambda ledger: _moved(ledger, number, plan))
    yield UntilUnpinned(number, moved.round)
    failed = None
    try:
        yield OnDisk(lambda: cut(files, path, plan.end))
    except OSError as error:
        # The row says the new size already: what is left after it is cut by the next start.
        failed = error
    yield InRound(lambda ledger: ledger.set_file_state(number, FileState.SEALED))
    ended = Ended.COMPACTED if failed is None else Ended.FAILED
    moved_bytes = sum(filling.filled for filling in plan.fillings)
    return CompactionResult(ended, moved_bytes, candidate.size - plan.end, failed)


def _begin(ledger: Ledger, number: int, live_share: float) -> "_Candidate | None":
    row = ledger.file(number)
    if row is None or row.state is not FileState.SEALED:
        return None
    if not is_candidate(row.valid, row.size, live_share):
        return None
    if is_of_version_1(number, ledger.store().last_v1_file):
        return _Candidate((), row.valid, row.size, is_version_1=True)
    live = tuple(LiveRecord(one.msg_id, one.position, one.size) for one in ledger.live(number))
    ledger.set_file_state(number, FileState.MOVING)
    return _Candidate(live, row.valid, row.size)


def _end_before_it_begins(
    plan: CompactionPlan, candidate: "_Candidate", live_share: float, *, has_room: bool
) -> Ended | None:
    if has_room and not is_enough(plan, candidate.valid, live_share):
        return Ended.REWRITE
    if not plan.fillings and plan.end == candidate.size:
        return Ended.NOT_NEEDED
    return None


@guard("only what is where its move says gets a new place")
def still_there(ledger: Ledger, moves: Sequence[Move]) -> int:
    """Give records their new places, but for those that are not needed any more; returns how many."""
    return ledger.move(moves)


def _moved(ledger: Ledger, number: int, plan: CompactionPlan) -> int:
    moves = [
        Move(record.msg_id, number, record.position, number, position)
        for record, position in plan.moves
    ]
    moved = still_there(ledger, moves)
    ledger.set_file_size(number, plan.end)
    return moved


def move_records(files: FileCalls, path: Path, fillings: Sequence[Filling]) -> None:
    """S1 to S3: copy records into gaps. Each step is durable before the next one begins.

    Raises:
        MisplacedRecord: a record is not where the ledger says; nothing was written.
        OSError: the disk did not do it; records tile the file all the same.
    """
    if not fillings:
        return
    fd = files.open(path)
    try:
        for filling in fillings:
            for record in filling.records:
                check_place(files, fd, record)
        for filling in fillings:
            write_all(files, fd, [hole_front(filling.size)], filling.position)
        first_barrier(files, fd)
        fronts = []
        for filling in fillings:
            content = _content(files, fd, filling)
            fronts.append((content[:HOLE_SIZE_MIN], filling.position))
            inner = memoryview(content)[HOLE_SIZE_MIN:]
            write_all(files, fd, [inner], filling.position + HOLE_SIZE_MIN)
        second_barrier(files, fd)
        for front, position in fronts:
            write_all(files, fd, [front], position)
        third_barrier(files, fd)
    finally:
        files.close(fd)


def check_place(files: FileCalls, fd: int, record: LiveRecord) -> None:
    """Records move as they are, with a wrong checksum too; but each has to be as long as it says."""
    size = HOLE_SIZE_MIN + MSG_ID_SIZE
    front = read_exactly(files, fd, size, record.position)
    kind, said, msg_id = front[:1], front[1:HOLE_SIZE_MIN], front[HOLE_SIZE_MIN:]
    is_record = len(front) == size and kind[0] in _CONTENT
    if not is_record or int.from_bytes(said, "big") != record.size or msg_id != record.msg_id:
        raise MisplacedRecord


def _content(files: FileCalls, fd: int, filling: Filling) -> bytes:
    """What goes into a gap: its records, then a hole for what is left."""
    parts = [read_exactly(files, fd, record.size, record.position) for record in filling.records]
    return b"".join([*parts, hole_front(filling.size - filling.filled)])


@guard("barrier 1: holes before what is in them")
def first_barrier(files: FileCalls, fd: int) -> None:
    """Each gap is one hole, durably, before anything is written into it."""
    files.fdatasync(fd)


@guard("barrier 2: what is in holes before they open")
def second_barrier(files: FileCalls, fd: int) -> None:
    """Records are durable in their holes before they show."""
    files.fdatasync(fd)


@guard("barrier 3: copies before the ledger")
def third_barrier(files: FileCalls, fd: int) -> None:
    """Records show, durably, before the ledger names them and the old ones are cut off."""
    files.fdatasync(fd)


def cut(files: FileCalls, path: Path, size: int) -> None:
    """Cut a file to a size, durably.

    Raises:
        OSError: it is as long as before, or cut and perhaps long again after a loss of power.
    """
    fd = files.open(path)
    try:
        if files.size(fd) > size:
            files.truncate(fd, size)
            files.fdatasync(fd)
    finally:
        files.close(fd)
