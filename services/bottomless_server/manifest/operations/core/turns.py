"""Turns: which operations a process works on, and when one makes way for another.

There are few places and any number of operations, some of which last for hours. So an operation
keeps its place for one step where another one waits, and goes to the end of the queue; and
those that are long by their kind never take all places, so that a short one, such as the
takeover of a stream whose home is dead, waits for nobody's step.
"""

from dataclasses import dataclass, field
from typing import Final

from cachetools import LRUCache

PLACE_COUNT: Final = 8
"""Operations under way at once in one process; more wait in the queue."""
LONG_PLACE_COUNT: Final = 6
"""How many of these places long operations may take."""
_KNOWN_COUNT_MAX: Final = 4_096
"""Waiting operations of which the kind is remembered; of others it is read again."""


@dataclass(slots=True)
class Turns:
    """The turns in one process. Each look at the queue is a `begin`, then questions for each that
    is due.
    """

    long_kinds: set[str] = field(default_factory=set)
    make_way_until: int | None = None
    """Where others wait: when the last of those is due. Who makes way is due after that."""
    _working: dict[str, str] = field(default_factory=dict)
    """The kind of each that has a place."""
    _elsewhere: set[str] = field(default_factory=set)
    """Operations that another process works on, or that could not be moved, since the last whole
    look."""
    _kinds: LRUCache[str, str] = field(default_factory=lambda: LRUCache(_KNOWN_COUNT_MAX))
    """The kinds of operations that wait, read once, since the kind of an operation never changes."""

    def begin(self, *, whole: bool) -> None:
        """A look at the queue begins. One that is not `whole` leaves those out that another process
        had: it comes at once when a place is free, and would find the same again and again."""
        self.make_way_until = None
        if whole:
            self._elsewhere.clear()

    def has_place(self) -> bool:
        return len(self._working) < PLACE_COUNT

    def has_place_for(self, kind: str) -> bool:
        if kind not in self.long_kinds:
            return self.has_place()
        taken = sum(one in self.long_kinds for one in self._working.values())
        return self.has_place() and taken < LONG_PLACE_COUNT

    def is_taken(self, operation_id: str) -> bool:
        """Whether this process works on it, or another one does."""
        return operation_id in self._working or operation_id in self._elsewhere

    def known_kind(self, operation_id: str) -> str | None:
        kind: str | None = self._kinds.get(operation_id)
        return kind

    def remember(self, operation_id: str, kind: str) -> None:
        """One that is due and may not begin now: it need not be read again before it may."""
        self._kinds[operation_id] = kind

    def waits(self, due_at: int) -> None:
        """One that is due finds no place."""
        self.make_way_until = max(due_at, self.make_way_until or 0)

    def take(self, operation_id: str, kind: str) -> None:
        assert self.has_place_for(kind)
        self._working[operation_id] = kind
        self._kinds.pop(operation_id, None)

    def give_back(self, operation_id: str, *, moved: bool) -> None:
        """`moved` says that this process did a step of it, or found it finished."""
        del self._working[operation_id]
        if not moved:
            self._elsewhere.add(operation_id)
