"""Where the records of a round go: to the end of the open file, or into a new one.

A round makes one file at most, so that a start knows the number of a file that has no row
(docs/decisions/0086). What does not fit into the open file any more begins the next one, and all
that comes after it in this round goes there. Large records go into a file without small ones, unless
the round has begun one anyway; it is sealed at once, and its space comes back with it.

Nothing is written here: the rows of the ledger get the places that the bytes are about to have, and the
writer writes them all at the end of the round. Files are sealed then too, and not before: one that is
sealed before its messages are entered would count as empty.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bottomless.errors import StoreError
from bottomless.formats.message_file import size_of_parts
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import Ledger
from bottomless_server.queues.ports import FIRST_POSITION, Record

ALONE_SIZE: Final = 4_000_000
"""A record of so many bytes is not written beside small ones."""


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
    """Whether only large records went into a new file so far: then it is no open one."""
    records: list[Record] = field(default_factory=list)
    end: int = 0


class Mark(NamedTuple):
    """How far the records of a round have come, for a change that is taken back."""

    parts: tuple[tuple[int, int, bool], ...]
    """Records of each part, its end, and whether only large ones are in it."""
    old: Part | None
    fresh: Part | None


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
        self._old: Part | None = None
        """What goes to the end of the open file."""
        self._fresh: Part | None = None
        """What goes into a new file."""

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def end(self) -> Place | None:
        """The end of the file that is open after this round."""
        part = self._fresh if self._has_new_open_file else self._old
        return self._goes_on if part is None else Place(part.file, part.end)

    @property
    def _has_new_open_file(self) -> bool:
        return self._fresh is not None and not self._fresh.alone

    def add(self, record: Record) -> Place:
        """Take a record, and say where it is about to be.

        Raises:
            StoreError: no record can be stored at present.
        """
        if self._refusal is not None:
            raise repeated(self._refusal)
        size = size_of_parts(record)
        part = self._part_for(size)
        place = Place(part.file, part.end)
        part.records.append(record)
        part.end += size
        return place

    def mark(self) -> Mark:
        parts = tuple((len(part.records), part.end, part.alone) for part in self._parts)
        return Mark(parts, self._old, self._fresh)

    def undo(self, mark: Mark) -> None:
        """Forget what came since a mark; the ledger has taken its rows back."""
        del self._parts[len(mark.parts) :]
        for part, (count, end, alone) in zip(self._parts, mark.parts, strict=True):
            del part.records[count:]
            part.end, part.alone = end, alone
        self._old, self._fresh = mark.old, mark.fresh

    def enter(self) -> None:
        """Enter the ends of all files in the ledger, and seal those that get no more, before the round
        is committed.
        """
        for part in self._parts:
            self._ledger.set_file_size(part.file, part.end)
            if part.alone:
                self._ledger.set_file_state(part.file, FileState.SEALED)
        if self._goes_on is not None and self._has_new_open_file:
            self._ledger.set_file_state(self._goes_on.file, FileState.SEALED)

    def _part_for(self, size: int) -> Part:
        is_large = size >= ALONE_SIZE
        if not is_large and self._has_new_open_file and self._fresh is not None:
            return self._fresh
        end = self.end
        fits = end is not None and end.position + size <= self._file_bytes_max
        if not is_large and fits and not self._has_new_open_file:
            return self._going_on()
        if self._fresh is None:
            self._fresh = self._create()
        if not is_large:
            self._fresh.alone = False
        return self._fresh

    def _going_on(self) -> Part:
        if self._old is None:
            assert self._goes_on is not None
            file, position = self._goes_on
            self._old = Part(file, position, created=False, end=position)
            self._parts.append(self._old)
        return self._old

    def _create(self) -> Part:
        number = self._ledger.add_file(FileState.OPEN)
        part = Part(number, FIRST_POSITION, created=True, alone=True, end=FIRST_POSITION)
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
