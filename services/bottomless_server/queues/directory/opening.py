"""A directory of queues is opened: what lies there is made to agree, or is refused.

Before anything is changed: what was lost, or is of somebody else, is refused with a word on what to do.
A start that dies anywhere is followed by one that goes on (`store/start.py`, `ledger/database.py`).
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from bottomless.guards import guard
from bottomless_server.node.file_calls import FileCalls, make_dir_durable
from bottomless_server.queues.core.start_plan import OldFiles, Refused, V1Files
from bottomless_server.queues.ledger.base import (
    ID_SIZE,
    LedgerDamaged,
    LedgerFailed,
    LedgerNotServed,
)
from bottomless_server.queues.ledger.sqlite import SqliteLedger
from bottomless_server.queues.store.names import parse_file_name
from bottomless_server.queues.store.start import StartReport, start_store
from bottomless_server.runtime.base.cannot_start import CannotStart

log = structlog.get_logger(__name__)

LEDGER: Final = "ledger.db"
REGISTRY: Final = "registry"
MESSAGES: Final = "messages"
ASIDE: Final = "aside"
IMPORT_MARK: Final = "import"
"""A file with this name says that an import was cut off."""
_REBUILD: Final = "`bottomless queue-store rebuild` makes it anew from the message files"


class Opened:
    """A ledger that agrees with its files."""

    def __init__(self, ledger: SqliteLedger, report: StartReport) -> None:
        self.ledger = ledger
        self.report = report


def make_directories(files: FileCalls, directory: Path) -> None:
    """Make what is missing of a directory, durably.

    Raises:
        OSError: the disk does not work.
    """
    for path in (directory, *(directory / name for name in (REGISTRY, MESSAGES, ASIDE))):
        make_dir_durable(files, path)


def open_directory(
    files: FileCalls,
    directory: Path,
    cache_bytes: int,
    *,
    v1_files: V1Files = V1Files.READ,
    checksum: bool = True,
) -> Opened:
    """Open the ledger of a directory, in the thread that is to have it, and make files agree with it.

    `v1_files` says what becomes of files of version 1; `checksum` is of records that are written anew.

    Raises:
        CannotStart: an operator has to look first; nothing was changed.
        LedgerFailed, OSError: the disk does not work.
    """
    check_there(files, directory)
    path = directory / LEDGER
    try:
        ledger = SqliteLedger(path, files, os.urandom(ID_SIZE), cache_bytes=cache_bytes)
    except LedgerDamaged as error:
        raise CannotStart(f"the ledger {path} is damaged: {error}; {_REBUILD}") from error
    except LedgerNotServed as error:
        raise CannotStart(f"a later release wrote {path}: {error}; start that one") from error
    try:
        report = start_store(
            files, directory / MESSAGES, ledger, v1_files=v1_files, checksum=checksum
        )
    except OldFiles as error:
        ledger.close()
        raise CannotStart(f"{directory}: {error}") from error
    except Refused as error:
        ledger.close()
        raise CannotStart(f"{directory}: {error}; {_REBUILD}") from error
    except LedgerDamaged as error:
        # SQLite notices damage where it comes by.
        with suppress(LedgerFailed):
            ledger.close()
        raise CannotStart(f"the ledger {path} is damaged: {error}; {_REBUILD}") from error
    except BaseException:
        ledger.close()
        raise
    _tell(report)
    return Opened(ledger, report)


def check_there(files: FileCalls, directory: Path) -> None:
    """Refuse a directory whose ledger is lost, or that an import was cut off in.

    Raises:
        CannotStart: so it is.
    """
    names = files.names(directory)
    if IMPORT_MARK in names:
        raise CannotStart(
            f"an import into {directory} was cut off; "
            "the same `bottomless queue-store import-rabbitmq` begins it anew"
        )
    if LEDGER in names and has_bytes(files, directory / LEDGER):
        return
    messages = [name for name in files.names(directory / MESSAGES) if parse_file_name(name)]
    # A queue without a message has an object in the registry all the same.
    if messages or files.names(directory / REGISTRY):
        raise CannotStart(f"the ledger {directory / LEDGER} is lost; {_REBUILD}")


@guard("an empty ledger beside messages is a lost one")
def has_bytes(files: FileCalls, path: Path) -> bool:
    """Whether there is anything in a file: SQLite takes one of no bytes for a new database."""
    fd = files.open(path)
    try:
        return files.size(fd) > 0
    finally:
        files.close(fd)


def _tell(report: StartReport) -> None:
    if report.lost:
        log.error(
            "messages of queues are damaged", files=report.lost, messages=report.damaged_count
        )
    if report.migration.rewritten or report.migration.kept:
        log.info(
            "message files of version 1 were written anew",
            files=len(report.migration.rewritten),
            messages=report.migration.message_count,
            kept=report.migration.kept,
            damaged=report.migration.unreadable_count,
        )
    if report.removed or report.cut:
        log.info("what no round had stored was removed", files=report.removed, cut=report.cut)
