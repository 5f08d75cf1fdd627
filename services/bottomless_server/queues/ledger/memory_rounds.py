"""Rounds of the ledger in memory: what is taken back, what is refused, and the row of the store."""

from collections.abc import Callable
from typing import Generic, TypeVar

from bottomless_server.queues.ledger.base import LedgerFailed, StoreRow

K = TypeVar("K")
V = TypeVar("V")


class Table(dict[K, V], Generic[K, V]):
    """Rows; what each was before a change goes into the journal, from which it is taken back."""

    def __init__(self, journal: "list[Callable[[], None]]") -> None:
        super().__init__()
        self._journal = journal

    def put(self, key: K, value: V) -> None:
        if key in self:
            old = self[key]
            self._journal.append(lambda: self.__setitem__(key, old))
        else:
            self._journal.append(lambda: self.__delitem__(key))
        self[key] = value

    def drop(self, key: K) -> V:
        old = self.pop(key)
        self._journal.append(lambda: self.__setitem__(key, old))
        return old


class _Fault:
    """A call that is refused, how often, and whether its work is done all the same."""

    def __init__(self, count: int, *, full: bool, lands: bool) -> None:
        self.left = count
        self.full = full
        self.lands = lands


class MemoryRounds:
    """The rounds of a ledger whose rows are dictionaries; base.py says what each method does."""

    def __init__(self, store_id: bytes) -> None:
        self._journal: list[Callable[[], None]] = []
        self._mark: int | None = None
        self._begun = False
        self._failed = False
        self._lands = False
        self._faults: dict[str, _Fault] = {}
        self._store: Table[int, StoreRow] = Table(self._journal)
        self._store[1] = StoreRow(store_id, 0, True, 0, 0, None)
        self.checkpoint_count = 0

    def fail(self, call: str, *, count: int = 1, full: bool = False, lands: bool = False) -> None:
        """Let the next calls of a method be refused; a commit that `lands` is there after `reopen`."""
        assert hasattr(self, call)
        self._faults[call] = _Fault(count, full=full, lands=lands)

    def heal(self) -> None:
        """Let no further call be refused."""
        self._faults.clear()

    def _enter(self, call: str, *, changes: bool = False) -> None:
        if self._failed:
            raise LedgerFailed("the round was ended by an error")
        assert self._begun or not changes, "nothing changes outside a round"
        fault = self._fault(call)
        if fault is not None:
            self._failed = True
            self._lands = fault.lands
            raise LedgerFailed("the database refused it", full=fault.full)

    def _fault(self, call: str) -> _Fault | None:
        fault = self._faults.get(call)
        if fault is not None:
            fault.left -= 1
            if not fault.left:
                del self._faults[call]
        return fault

    # Rounds

    def begin(self) -> int:
        assert not self._begun
        self._enter("begin")
        self._begun = True
        row = self._store[1]
        self._store.put(1, row._replace(round=row.round + 1))
        return row.round + 1

    def savepoint(self) -> None:
        self._enter("savepoint", changes=True)
        assert self._mark is None
        self._mark = len(self._journal)

    def keep(self) -> None:
        self._enter("keep", changes=True)
        assert self._mark is not None
        self._mark = None

    def undo(self) -> None:
        self._enter("undo", changes=True)
        assert self._mark is not None
        self._take_back(self._mark)
        self._mark = None

    def commit(self) -> None:
        self._enter("commit", changes=True)
        self._end(0, lands=True)

    def rollback(self) -> None:
        if self._fault("rollback") is not None:
            self._failed = True
            raise LedgerFailed("the database refused it")
        self._end(0, lands=False)
        self._failed = False

    def reopen(self) -> None:
        self._failed = True
        if self._fault("reopen") is not None:
            raise LedgerFailed("the database refused it")
        self._end(0, lands=self._lands)
        self._failed = self._lands = False

    def checkpoint(self) -> None:
        assert not self._begun
        self._enter("checkpoint")
        self.checkpoint_count += 1

    @property
    def log_size(self) -> int:
        return 0

    def close(self) -> None:
        self._end(0, lands=False)
        self._failed = True

    def _end(self, mark: int, *, lands: bool) -> None:
        if not lands:
            self._take_back(mark)
        self._journal.clear()
        self._mark = None
        self._begun = False

    def _take_back(self, mark: int) -> None:
        while len(self._journal) > mark:
            self._journal.pop()()

    # The store

    def store(self) -> StoreRow:
        self._enter("store")
        return self._store[1]

    def set_store_id(self, store_id: bytes) -> None:
        self._enter("set_store_id", changes=True)
        self._store.put(1, self._store[1]._replace(store_id=store_id))

    def set_clean(self, *, clean: bool) -> None:
        self._enter("set_clean", changes=True)
        self._store.put(1, self._store[1]._replace(clean=clean))

    def set_clock(self, clock: int) -> None:
        self._enter("set_clock", changes=True)
        row = self._store[1]
        self._store.put(1, row._replace(clock=max(row.clock, clock)))

    def set_last_v1_file(self, number: int | None) -> None:
        self._enter("set_last_v1_file", changes=True)
        self._store.put(1, self._store[1]._replace(last_v1_file=number))
