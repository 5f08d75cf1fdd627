"""Where the records of a round go: to the end of the open file, or into new ones.

A file at its bound is sealed, and the next one begins with the record that did not fit. A large record
gets a file of its own. Nothing is written here: the rows of the ledger get the places that the
bytes are about to have, and the writer writes them all at the end of the round.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bottomless.errors import StoreError
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import Ledger
from bottomless_server.queues.ports import FIRST_POSITION, Record

ALONE_SIZE: Final = 4_000_000
"""A record of so many bytes gets a file of its own, which goes with it."""


class Place(NamedTuple):
    """Where a record is about to be."""

    file: int
    position: int


@dataclass(slots=True)
class Part:
    """What a round writes into one file."""

    file: int
    position: int
    created: bool
    alone: bool = False
    records: list[Record] = field(default_factory=list)
    end: int = 0


class Mark(NamedTuple):
    """How far the records of a round have come, for a change that is taken back."""

    parts: tuple[tuple[int, int], ...]
    """Records and end of each part."""
    current: Part | None
    goes_on: Place | None


class RoundBodies:
    """The records of one round, in the order in which they come."""

    def __init__(
        self,
        ledger: Ledger,
        goes_on: Place | None,
        file_bytes_max: int,
        refusal: StoreError | None = None,
    ) -> None:
        """`goes_on` is the end of the open file, if there is one.

        With a `refusal` no record is taken: whoever brings one hears that.
        """
        self._ledger = ledger
        self._goes_on = goes_on
        self._file_bytes_max = file_bytes_max
        self._refusal = refusal
        self._parts: list[Part] = []
        self._current: Part | None = None

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def end(self) -> Place | None:
        """The end of the file that is open after this round."""
        if self._current is None:
            return self._goes_on
        return Place(self._current.file, self._current.end)

    def add(self, record: Record) -> Place:
        """Take a record, and say where it is about to be.

        Raises:
            StoreError: no record can be stored at present.
        """
        if self._refusal is not None:
            raise repeated(self._refusal)
        size = sum(memoryview(each).nbytes for each in record)
        part = self._part_for(size)
        place = Place(part.file, part.end)
        part.records.append(record)
        part.end += size
        return place

    def mark(self) -> Mark:
        parts = tuple((len(part.records), part.end) for part in self._parts)
        return Mark(parts, self._current, self._goes_on)

    def undo(self, mark: Mark) -> None:
        """Forget what came since a mark; the ledger has taken its rows back."""
        del self._parts[len(mark.parts) :]
        for part, (count, end) in zip(self._parts, mark.parts, strict=True):
            del part.records[count:]
            part.end = end
        self._current = mark.current
        self._goes_on = mark.goes_on

    def enter(self) -> None:
        """Enter the ends of all files in the ledger, before the round is committed."""
        for part in self._parts:
            self._ledger.set_file_size(part.file, part.end)
            if part.alone:
                self._ledger.set_file_state(part.file, FileState.SEALED)

    def _part_for(self, size: int) -> Part:
        if size >= ALONE_SIZE:
            return self._create(alone=True)
        end = self.end
        if end is not None and end.position + size > self._file_bytes_max:
            self._ledger.set_file_size(end.file, end.position)
            self._ledger.set_file_state(end.file, FileState.SEALED)
            self._goes_on = self._current = None
        if self._current is None:
            self._current = self._create() if self._goes_on is None else self._go_on(self._goes_on)
        return self._current

    def _go_on(self, end: Place) -> Part:
        part = Part(end.file, end.position, created=False, end=end.position)
        self._parts.append(part)
        return part

    def _create(self, *, alone: bool = False) -> Part:
        number = self._ledger.add_file(FileState.OPEN)
        part = Part(number, FIRST_POSITION, created=True, alone=alone, end=FIRST_POSITION)
        self._parts.append(part)
        return part


def repeated(error: StoreError) -> StoreError:
    """A new error that says the same: one error is not raised for several requests."""
    return type(error)(
        error.message,
        code=error.code,
        retryable=error.retryable,
        outcome=error.outcome,
        retry_after_seconds=error.retry_after_seconds,
        facts=error.facts,
    )
