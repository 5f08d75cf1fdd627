"""The start of a store: files and ledger are made to agree, before anything is written or read.

In this order, each step durable before the next, so that a start that dies anywhere is followed by one
that goes on: files that no round was committed for are removed; files are cut to their rows; rows
without a meaning go; what is lost of a file is said of its items; what was being moved is sealed; the
ledger says that it is not clean any more. Files of version 1 are written anew after all that, one by
one, where that is asked for.

What lies after the end that the ledger knows of the open file, or in a file without a row, is of one
round, that died before its COMMIT. All messages of a round are of one time. So where messages of
several times lie there the ledger is older than its files: it was put back from a back-up, and what
came after that would be cut off. Then nothing is changed, and an operator has to look; so it is where
files show that they are of another moment than the ledger (`moment.py`).
"""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from bottomless.errors import Corrupt
from bottomless.formats.envelope import decode_envelope
from bottomless.formats.message_file import (
    HEADER_SIZE,
    Finding,
    check_file_header,
    decode_record,
    scan,
)
from bottomless.guards import guard
from bottomless_server.node.file_calls import FileCalls, read_exactly
from bottomless_server.queues.core.start_plan import (
    KnownFile,
    NamedFile,
    Refused,
    StartPlan,
    V1Files,
    check_v1_files,
    plan_start,
)
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.ledger.base import Ledger, Message
from bottomless_server.queues.store.alone import a_round
from bottomless_server.queues.store.compaction import cut
from bottomless_server.queues.store.import_mark import check_no_import
from bottomless_server.queues.store.migrating import MigrationReport, migrate
from bottomless_server.queues.store.moment import check_moment
from bottomless_server.queues.store.names import FRESH, parse_file_name, path_of

_AT_ONCE: Final = 1_000
"""Items that are changed in one call."""
_ITEM_COUNT_MAX: Final = 10_000_000
"""More items than a file can have with one fan-out each; a bound for the sake of having one."""


@dataclass(frozen=True, slots=True)
class StartReport:
    """What a start found and did, for whoever runs the node."""

    open_file: tuple[int, int] | None
    """Number and size of the file that new records go to."""
    last_v1_file: int | None
    removed: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """Files of which something that is needed is missing or damaged."""
    damaged_count: int = 0
    """Items that are damaged since this start."""
    doomed: tuple[int, ...] = ()
    """Files that are to be removed still."""
    migration: MigrationReport = field(default_factory=MigrationReport)


def start_store(
    files: FileCalls,
    directory: Path,
    ledger: Ledger,
    *,
    v1_files: V1Files = V1Files.READ,
    checksum: bool = True,
) -> StartReport:
    """Make files and ledger agree, when nobody else uses either.

    `v1_files` says what becomes of files of version 1; `checksum` is of records that are written anew.

    Raises:
        Refused: the files are not those of the ledger, an import was cut off, or there are files of
            version 1 where none may be; nothing was changed.
        OSError, LedgerFailed: it died in a step, as above.
    """
    names = files.names(directory)
    check_no_import(files, directory.parent)
    check_v1_files(names, v1_files)
    store = ledger.store()
    plan = plan_start(
        [KnownFile(*row) for row in ledger.files()],
        _sizes(files, directory, names),
        next_file=store.next_file,
        last_v1_file=store.last_v1_file,
        is_clean=store.clean,
    )
    # Nothing that the ledger does not know was published before its last round.
    _check_age(files, directory, ledger, plan, None if checksum else store.clock)
    check_moment(files, directory, ledger, plan)
    unfinished = [name for name in names if name.endswith(FRESH)]
    removed = [*unfinished, *(file.name for file in plan.removals)]
    for name in removed:
        files.unlink(directory / name)
    if removed:
        files.fsync_dir(directory)
    rows = {row.number: row for row in ledger.files()}
    for file in plan.cuts:
        cut_to_row(files, directory / file.name, rows[file.number].size)
    lost: dict[str, int] = {}
    for file in sorted({*plan.short, *plan.scans}):
        count = _settle(files, directory, ledger, file, is_scanned=file in plan.scans)
        if count:
            lost[file.name] = count
    _end(ledger, plan)
    _doubt_open_file(files, directory, ledger)
    migration = MigrationReport()
    if v1_files is V1Files.MIGRATE:
        migration = migrate(files, directory, ledger, checksum=checksum)
    rows = {row.number: row for row in ledger.files()}
    opened = [(row.number, row.size) for row in rows.values() if row.state is FileState.OPEN]
    return StartReport(
        opened[0] if opened else None,
        ledger.store().last_v1_file,
        tuple(removed),
        tuple(file.name for file in plan.cuts),
        tuple(lost),
        sum(lost.values()),
        tuple(row.number for row in rows.values() if row.state is FileState.DOOMED),
        migration,
    )


def _check_age(
    files: FileCalls, directory: Path, ledger: Ledger, plan: StartPlan, since: int | None
) -> None:
    """Refuse a ledger that does not know what several rounds have written. Where messages are written
    without checksums, those are believed that say a time from `since` on: a torn one hardly does.
    """
    rows = {row.number: row for row in ledger.files()}
    for file in (*plan.cuts, *plan.removals):
        row = rows.get(file.number)
        if file.is_version_1 or (row is not None and row.state is not FileState.OPEN):
            # Of a file that was sealed or moved also what was stored long ago is cut off.
            continue
        start = HEADER_SIZE if row is None else max(row.size, HEADER_SIZE)
        if not is_of_one_round(_times_after(files, directory / file.name, start, since)):
            raise Refused(
                f"the ledger is older than its files: {file.name} has messages of several rounds"
                " that it does not know"
            )


@guard("what a start cuts off is of one round")
def is_of_one_round(times: set[int]) -> bool:
    """Whether messages that were published at these times can be of one round."""
    return len(times) < 2


def _times_after(files: FileCalls, path: Path, start: int, since: int | None) -> set[int]:
    """When messages were published that lie whole after a place of a file; two times at most."""
    times: set[int] = set()
    fd = files.open(path)
    try:
        found = scan(
            lambda at, size: read_exactly(files, fd, size, at), files.size(fd), start=start
        )
        for one in found:
            if one.what is Finding.MESSAGE and (one.checked or since is not None):
                record = decode_record(read_exactly(files, fd, one.size, one.position))
                with suppress(Corrupt):
                    at = decode_envelope(record.body).published_at
                    if one.checked or (since is not None and at >= since):
                        times.add(at)
            if len(times) > 1:
                break
    finally:
        files.close(fd)
    return times


def _sizes(files: FileCalls, directory: Path, names: list[str]) -> dict[NamedFile, int]:
    sizes = {}
    for name in names:
        parsed = parse_file_name(name)
        if parsed is not None:
            fd = files.open(directory / name)
            try:
                sizes[NamedFile(*parsed)] = files.size(fd)
            finally:
                files.close(fd)
    return sizes


@guard("cut to the row at a start")
def cut_to_row(files: FileCalls, path: Path, size: int) -> None:
    """Take away what no committed round wrote, so that nothing is ever written after it."""
    cut(files, path, size)


def _settle(
    files: FileCalls, directory: Path, ledger: Ledger, file: NamedFile, *, is_scanned: bool
) -> int:
    """Say of the items whose records are not in a file that they are damaged; returns how many.

    A file that is damaged itself gets nothing more, and is not compacted.
    """
    live = ledger.live(file.number)
    found = _look(files, directory / file.name, live, is_scanned=is_scanned)
    gone = {message.id for message in live if message.position not in found.whole}
    with a_round(ledger):
        row = ledger.file(file.number)
        if not found.tiles:
            ledger.set_file_state(file.number, FileState.DAMAGED)
        elif row is not None and row.state is FileState.OPEN and found.end < row.size:
            ledger.set_file_state(file.number, FileState.SEALED)
    if not gone:
        return 0
    count = 0
    # A look at a file's items may be a look at all items: so it is one, however many are damaged.
    with a_round(ledger):
        stored = ledger.items_in_file(file.number, _ITEM_COUNT_MAX)
        bad = [one for one in stored if one.message.id in gone]
        for first in range(0, len(bad), _AT_ONCE):
            ledger.change_items(
                [
                    (one, one.item._replace(state=ItemState.DAMAGED, due_at=None))
                    for one in bad[first : first + _AT_ONCE]
                ]
            )
            count += len(bad[first : first + _AT_ONCE])
    return count


class _Look(NamedTuple):
    whole: set[int]
    """Positions of messages that are there as the ledger has them."""
    tiles: bool
    """Whether records follow each other to the end."""
    end: int


def _look(files: FileCalls, path: Path, live: list[Message], *, is_scanned: bool) -> _Look:
    """What is there of a file. Without a scan a message is believed to be there if its place is."""
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return _Look(set(), tiles=True, end=0)
    try:
        end = files.size(fd)
        if not is_scanned:
            there = {one.position for one in live if one.position + one.size <= end}
            return _Look(there, tiles=True, end=end)
        try:
            check_file_header(read_exactly(files, fd, HEADER_SIZE, 0))
        except Corrupt:
            return _Look(set(), tiles=False, end=end)
        wanted = {message.position: message for message in live}
        found = list(scan(lambda at, size: read_exactly(files, fd, size, at), end, wanted))
    finally:
        files.close(fd)
    whole = {
        one.position
        for one in found
        if one.what in (Finding.MESSAGE, Finding.REPEATED)
        and one.position in wanted
        and (one.msg_id, one.size) == (wanted[one.position].msg_id, wanted[one.position].size)
    }
    return _Look(whole, all(one.what is not Finding.LOST for one in found), end)


def _doubt_open_file(files: FileCalls, directory: Path, ledger: Ledger) -> None:
    """Add nothing to a file whose header is not one: each message in it is checked by itself."""
    for row in ledger.files():
        if row.state is FileState.OPEN and not _has_header(files, path_of(directory, row.number)):
            with a_round(ledger):
                ledger.set_file_state(row.number, FileState.DAMAGED)


def _has_header(files: FileCalls, path: Path) -> bool:
    fd = files.open(path)
    try:
        check_file_header(read_exactly(files, fd, HEADER_SIZE, 0))
    except Corrupt:
        return False
    finally:
        files.close(fd)
    return True


def _end(ledger: Ledger, plan: StartPlan) -> None:
    with a_round(ledger):
        for number in plan.rows_that_go:
            ledger.remove_file(number)
        for row in ledger.files():
            if row.state is FileState.MOVING:
                ledger.set_file_state(row.number, FileState.SEALED)
        if plan.last_v1_file != ledger.store().last_v1_file:
            ledger.set_last_v1_file(plan.last_v1_file)
        ledger.set_clean(clean=False)
