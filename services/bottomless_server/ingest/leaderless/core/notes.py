"""Notes: what an instance committed, told in later WAL objects of its own.

Coordination says what was committed, and a rebuild without it goes by notes alone. So each note goes
into every object that is sealed, until one that carries it is durable: an object may be lost on its
way, and so may be the next one. Notes that no flush takes along in time get an object of their own.

What is settled is told with them (`noted_below`): of all objects below it the notes are in this
object, or in one that was durable when this one was sealed. What is only on its way counts for
nothing. Where everything is decided and no note says so, as after a refusal, an object without notes
does: else a rebuild would have to believe that more was committed.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from bottomless.guards import guard
from bottomless.model.limits import WAL_NOTE_COUNT_MAX
from bottomless.model.wal import Note

NOTES_WAITING_MAX: Final = 2 * WAL_NOTE_COUNT_MAX
"""Notes that wait for a durable object before no flush begins: some 50 MB. Flushes that are under way by
then add theirs."""


class Carried(NamedTuple):
    """What a WAL object says of earlier ones."""

    notes: list[Note]
    noted_below: int


class _Pending(NamedTuple):
    note: Note
    at: int
    """When it was committed, in ms of a clock that never goes back."""


class Notes:
    """The notes of one instance that are not durable yet."""

    def __init__(self, linger_ms: int, count_max: int = WAL_NOTE_COUNT_MAX) -> None:
        self._linger_ms = linger_ms
        self._count_max = count_max
        self._pending: dict[int, _Pending] = {}
        """Each has a number among all notes of the instance; the oldest first."""
        self._count = 0
        self._in_flight: dict[int, list[int]] = {}
        """The numbers of the notes that an object on its way carries, by its sequence."""
        self._says: dict[int, int] = {}
        """What an object on its way says is settled and noted, by its sequence."""
        self._told_below = 0
        """What durable objects say is settled and noted."""
        self._untold_since: int | None = None

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether so many wait that nothing more may be committed before some are durable."""
        return len(self._pending) >= NOTES_WAITING_MAX

    @property
    def added(self) -> int:
        """How many notes there were so far: all of them are durable once `durable_below` is as high."""
        return self._count

    @property
    def durable_below(self) -> int:
        """How many notes, counted from the first one, are durable without a gap."""
        return next(iter(self._pending), self._count)

    def add(self, notes: Iterable[Note], now: int) -> None:
        """Take notes of what was committed just now."""
        for note in notes:
            self._pending[self._count] = _Pending(note, now)
            self._count += 1

    def carry(self, sequence: int, settled: int) -> Carried:
        """Tell what an object carries that is sealed now; `settled` is the first sequence with
        anything left to decide. Its end is told to `end`."""
        assert sequence not in self._in_flight
        # Those on their way too: what carries them may never arrive.
        numbers = list(islice(self._pending, self._count_max))
        self._in_flight[sequence] = numbers
        notes = [pending.note for pending in self._pending.values()]
        told, missing = notes[: self._count_max], notes[self._count_max :]
        below = self._says[sequence] = noted_below(min(settled, sequence), missing)
        return Carried(told, below)

    def end(self, sequence: int, *, durable: bool) -> list[int]:
        """Note what became of an object that was told its notes. Returns when each was added of those
        that are durable by this one."""
        numbers, below = self._in_flight.pop(sequence), self._says.pop(sequence)
        if not durable:
            return []
        self._told_below = max(self._told_below, below)
        return [self._pending.pop(one).at for one in numbers if one in self._pending]

    def due_at(self) -> int | None:
        """When an object with notes alone is put unless a flush comes before, which is at once where
        none may come; None where no note waits, or all are on their way."""
        on_their_way = {number for numbers in self._in_flight.values() for number in numbers}
        for number, pending in self._pending.items():
            if number not in on_their_way:
                return pending.at + (0 if self.is_full else self._linger_ms)
        return None

    def untold_at(self, settled: int, now: int) -> int | None:
        """When an object is put that says that everything below `settled` is, unless one comes before;
        None where one says it, or is on its way."""
        if settled <= max([self._told_below, *self._says.values()]):
            self._untold_since = None
            return None
        if self._untold_since is None:
            self._untold_since = now
        return self._untold_since + self._linger_ms


@guard("notes that are durable nowhere do not count as noted")
def noted_below(settled: int, missing: Iterable[Note]) -> int:
    """Tell below which sequence everything is settled and noted; `missing` are notes that are not in
    the object which says so, and durable in no other."""
    return min([settled, *(note.sequence for note in missing)])
