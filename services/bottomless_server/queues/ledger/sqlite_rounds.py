"""Rounds of the ledger on SQLite, the row of its store, and how single rows change."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bottomless_server.node.file_calls import FileCalls
from bottomless_server.queues.ledger import statements as sql
from bottomless_server.queues.ledger.base import (
    FORMAT,
    ID_SIZE,
    LedgerDamaged,
    LedgerFailed,
    LedgerNotServed,
    StoreRow,
)
from bottomless_server.queues.ledger.database import Database


class SqliteRounds:
    """The rounds of a ledger in a file; base.py says what each method does."""

    def __init__(
        self, path: Path, files: FileCalls, store_id: bytes, *, cache_bytes: int = 2**22
    ) -> None:
        """Open a ledger; one that is not there is made under `store_id`.

        Raises:
            LedgerDamaged: it is damaged, or no ledger.
            LedgerNotServed: it is of a later release.
            LedgerFailed: the disk fails, or another process has it.
        """
        assert len(store_id) == ID_SIZE
        self._db = Database(path, files, cache_bytes, sql.SCHEMA)
        try:
            self._find_store(store_id)
        except LedgerFailed:
            # Nobody else gets in while this one has it.
            with suppress(LedgerFailed):
                self._db.close()
            raise

    def _find_store(self, store_id: bytes) -> None:
        row = self._db.row(sql.STORE)
        if row is None:
            self._db.begin()
            self._db.run(sql.STORE_MAKE, (FORMAT, store_id))
            self._db.commit()
        elif row[0] > FORMAT:
            raise LedgerNotServed(f"the ledger has format {row[0]}")
        elif row[0] < FORMAT:
            # All of it is one transaction: after a crash it is there, or is done by the next start.
            self._db.begin()
            for statement in sql.TO_FORMAT_2:
                self._db.run(statement)
            self._db.commit()

    # Rounds

    def begin(self) -> int:
        self._db.begin()
        return int(self._number(sql.ROUND))

    def savepoint(self) -> None:
        self._db.savepoint()

    def keep(self) -> None:
        self._db.keep()

    def undo(self) -> None:
        self._db.undo()

    def commit(self) -> None:
        self._db.commit()

    def rollback(self) -> None:
        self._db.rollback()

    def reopen(self) -> None:
        self._db.reopen()

    def checkpoint(self) -> None:
        self._db.checkpoint()

    @property
    def log_size(self) -> int:
        return self._db.log_size

    def close(self) -> None:
        self._db.close()

    # The store

    def store(self) -> StoreRow:
        row = self._db.row(sql.STORE)
        if row is None:
            raise LedgerDamaged("the ledger has no row of its store")
        _, store_id, number, clean, *rest = row
        return StoreRow(store_id, number, bool(clean), *rest)

    def set_store_id(self, store_id: bytes) -> None:
        assert len(store_id) == ID_SIZE
        self._change(sql.SET_STORE_ID, (store_id,))

    def set_clean(self, *, clean: bool) -> None:
        self._change(sql.SET_CLEAN, (int(clean),))

    def set_clock(self, clock: int) -> None:
        self._change(sql.SET_CLOCK, (clock,))

    def set_last_v1_file(self, number: int | None) -> None:
        self._change(sql.SET_LAST_V1_FILE, (number,))

    def _change(self, statement: str, parameters: Sequence[Any]) -> None:
        assert self._db.in_round, "nothing changes outside a round"
        changed = self._db.run(statement, parameters)
        assert changed == 1, f"{changed} rows, not 1: {statement}"

    def _change_many(self, statement: str, parameters: Sequence[Sequence[Any]]) -> None:
        assert self._db.in_round, "nothing changes outside a round"
        if parameters:
            changed = self._db.run_many(statement, parameters)
            assert changed == len(parameters), f"{changed} rows: {statement}"

    def _number(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        row = self._db.row(statement, parameters)
        assert row is not None, f"no row: {statement}"
        return row[0]
