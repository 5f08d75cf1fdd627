"""The one connection to the ledger's SQLite file; nothing else imports `sqlite3`.

WAL with `synchronous=FULL`: a COMMIT returns after its frames are synced. `locking_mode=EXCLUSIVE`
lets nobody else in, and keeps the index of the WAL in memory. Checkpoints happen only where we say so,
since one that fails in the middle of a COMMIT could not be told from it.

After some errors (a full disk, a disk that fails) SQLite has taken the transaction back by itself.
The next statement would then be committed alone: so after any error nothing is carried out until
`rollback` or `reopen`.

After a COMMIT that raised, this connection does not show the round any more, and yet its frames may
be in the file: a crash would bring it back. So the file is closed, which moves what this connection
knows into the database and removes the WAL, or leaves the WAL with all that is in it. Before it is
opened, what lies in the WAL is written once more and synced; then the directory is synced, since a
removed WAL that came back after a loss of power would bring the round back too; then it is
checkpointed. Until all of that has succeeded nobody knows. docs/decisions/0088
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bottomless.guards import guard
from bottomless_server.node.file_calls import FileCalls, read_exactly, write_all
from bottomless_server.queues.ledger.base import LedgerDamaged, LedgerFailed
from bottomless_server.queues.ledger.log_moment import (
    is_of_one_moment,
    log_of_database,
    log_of_log,
    next_log,
)

_APPLICATION_ID: Final = 0x62746C71
"""`btlq`, in the header of the file."""
_STATEMENT_COUNT: Final = 256
_STATEMENT_SHOWN: Final = 60
"""Characters of a statement that an error tells."""
_COPY_SIZE: Final = 2**20
PRAGMAS: Final = (
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
)
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SAVEPOINT: Final = "SAVEPOINT change"


class Database:
    """A connection that is opened anew as often as it has to be. One thread has it."""

    def __init__(self, path: Path, files: FileCalls, cache_bytes: int, schema: str) -> None:
        """Open the file; one that is not there is made, with `schema`.

        Raises:
            LedgerDamaged: it is no ledger, or SQLite calls it damaged.
            LedgerFailed: the disk fails, or another process has it.
        """
        self._path = path
        self._files = files
        self._cache_kib = max(cache_bytes // 1024, 1)
        self._schema = schema
        self._connection: sqlite3.Connection | None = None
        self._failed = True
        self._log_number: int | None = None
        """What the first transaction in a new log is to call it; None once one has."""
        self._open(create=True)

    def begin(self) -> None:
        assert not self.in_round
        self.run("BEGIN IMMEDIATE")
        if self._log_number is not None:
            self.run(f"PRAGMA user_version = {self._log_number}")

    def savepoint(self) -> None:
        assert self.in_round
        self.run(_SAVEPOINT)

    def keep(self) -> None:
        self.run("RELEASE change")

    def undo(self) -> None:
        self.run("ROLLBACK TO change")
        self.run("RELEASE change")

    def commit(self) -> None:
        assert self.in_round
        self.run("COMMIT")
        self._log_number = None

    def rollback(self) -> None:
        connection = self._connection
        if connection is None:
            raise LedgerFailed("the ledger is closed")
        if connection.in_transaction:
            try:
                connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise _failed(error) from error
        self._failed = False

    @property
    def in_round(self) -> bool:
        return self._connection is not None and self._connection.in_transaction

    def checkpoint(self) -> None:
        """Move the WAL into the database, and cut it to nothing. No round is open, and no cursor."""
        assert not self.in_round
        self._require_sound()
        self._checkpoint()

    def reopen(self) -> None:
        self._failed = True
        self._close()
        self._open(create=False)

    def close(self) -> None:
        self._failed = True
        self._close()

    @property
    def log_size(self) -> int:
        """Bytes of the WAL."""
        try:
            return self._log_path.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def _log_path(self) -> Path:
        return self._path.with_name(self._path.name + "-wal")

    # Statements

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Carry out a statement; returns how many rows it changed."""
        self._require_sound()
        assert self._connection is not None
        try:
            return self._connection.execute(statement, parameters).rowcount
        except sqlite3.Error as error:
            self._failed = True
            raise _failed(error, statement) from error

    def run_many(self, statement: str, parameters: Iterable[Sequence[Any]]) -> int:
        """Carry out a statement with each of the parameters; returns how many rows it changed in all."""
        self._require_sound()
        assert self._connection is not None
        try:
            return self._connection.executemany(statement, parameters).rowcount
        except sqlite3.Error as error:
            self._failed = True
            raise _failed(error, statement) from error

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """All rows of a statement, so that no cursor stays open."""
        self._require_sound()
        assert self._connection is not None
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            self._failed = True
            raise _failed(error, statement) from error

    def row(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """The row of a statement that has one at most; None without one."""
        found = self.rows(statement, parameters)
        assert len(found) < 2
        return found[0] if found else None

    @guard("an error of SQLite ends the round")
    def _require_sound(self) -> None:
        if self._failed:
            raise LedgerFailed("the round was ended by an error")

    def _open(self, *, create: bool) -> None:
        try:
            self._require_its_log()
            self._write_log_again()
        except OSError as error:
            raise LedgerFailed("the log of the ledger cannot be made durable") from error
        name = f"{self._path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        try:
            self._connection = sqlite3.connect(
                name, timeout=0, isolation_level=None, cached_statements=_STATEMENT_COUNT, uri=True
            )
            for pragma in PRAGMAS:
                self._connection.execute(pragma).fetchall()
            self._connection.execute(f"PRAGMA cache_size = -{self._cache_kib}")
            self._keep_pages(self._connection)
            self._find_schema(self._connection, create=create)
            self._sync_directory()
            self._checkpoint()
        except (sqlite3.Error, LedgerFailed) as error:
            with suppress(sqlite3.Error):
                if self._connection is not None:
                    self._connection.close()
            self._connection = None
            raise (_failed(error) if isinstance(error, sqlite3.Error) else error) from error
        self._failed = False

    @guard("no page of a round is written before its COMMIT")
    def _keep_pages(self, connection: sqlite3.Connection) -> None:
        """Let no page leave the cache before COMMIT, however many a round changes.

        SQLite 3.40 loses a round else that it has committed: when pages were written early, written
        over and taken back by a savepoint, those that come in their place get no checksum, and after
        a kill everything from there on counts as never written.
        """
        connection.execute("PRAGMA cache_spill = OFF")

    @guard("the log of the ledger is written once more before it is believed")
    def _write_log_again(self) -> None:
        """Make what lies in the WAL durable, before SQLite moves any of it into the database.

        After a sync that failed Linux shows what was written, and yet may never write it to the disk:
        its pages count as clean. SQLite would believe such frames, and write some of their pages
        into the database: a loss of power would leave these, and of the WAL only what is before.
        """
        log = self._log_path
        if log.name not in self._files.names(log.parent):
            return
        fd = self._files.open(log)
        try:
            for position in range(0, self._files.size(fd), _COPY_SIZE):
                data = read_exactly(self._files, fd, _COPY_SIZE, position)
                write_all(self._files, fd, [data], position)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)

    def _require_its_log(self) -> None:
        """Refuse a log that was begun on another database, before SQLite believes it.

        Raises:
            LedgerDamaged: it was; nothing is changed.
        """
        names = self._files.names(self._path.parent)
        if self._path.name not in names or self._log_path.name not in names:
            return
        said = []
        for path in (self._path, self._log_path):
            fd = self._files.open(path)
            try:
                said.append(self._log_said_in(fd, is_log=path == self._log_path))
            finally:
                self._files.close(fd)
        database, log = said
        if database is not None and not is_of_one_moment(database, log):
            raise LedgerDamaged(
                f"{self._log_path.name} was not written on this {self._path.name}: put back the one that"
                " belongs to the other"
            )

    def _log_said_in(self, fd: int, *, is_log: bool) -> int | None:
        def read(size: int, at: int) -> bytes:
            return read_exactly(self._files, fd, size, at)

        return log_of_log(read) if is_log else log_of_database(read)

    def _find_schema(self, connection: sqlite3.Connection, *, create: bool) -> None:
        """After a crash there is none of the schema, or all of it."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application == _APPLICATION_ID:
            return
        (count,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application or count or not create:
            raise LedgerDamaged("the file is a database, but no ledger")
        script = (
            f"BEGIN IMMEDIATE; {self._schema}; PRAGMA application_id = {_APPLICATION_ID}; COMMIT"
        )
        connection.executescript(script)

    def _checkpoint(self) -> None:
        assert self._connection is not None
        try:
            busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            (number,) = self._connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.Error as error:
            self._failed = True
            raise _failed(error) from error
        if busy:
            self._failed = True
            raise LedgerFailed("a checkpoint did not come to its end")
        self._log_number = next_log(number)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                connection.close()
        except sqlite3.Error as error:
            raise LedgerFailed("the ledger could not be closed") from error

    @guard("the name of a ledger log is durable before the log is believed")
    def _sync_directory(self) -> None:
        """Make the name of the WAL durable, and that an older one is gone: SQLite does not look whether
        its own sync of the directory has succeeded, and goes on in this WAL for as long as it is open.
        """
        try:
            self._files.fsync_dir(self._path.parent)
        except OSError as error:
            raise LedgerFailed("the directory of the ledger cannot be synced") from error


def _failed(error: sqlite3.Error, statement: str = "") -> LedgerFailed:
    """What a call that SQLite refused raises; statements are our own, and have no values in them."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF in _DAMAGED:
        return LedgerDamaged(f"SQLite calls the ledger damaged: {error}")
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    during = f" in {' '.join(statement.split())[:_STATEMENT_SHOWN]}" if statement else ""
    return LedgerFailed(
        f"the ledger failed: {name}: {error}{during}", full=code & 0xFF == sqlite3.SQLITE_FULL
    )
