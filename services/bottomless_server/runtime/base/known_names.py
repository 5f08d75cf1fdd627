"""What names of streams mean, as another service said: remembered at most so many at a time.

Services ask what a name means with every request, and remember it for a while. How long an answer
is good is decided by the one who asks, from the time at which the question was sent: an answer is
as old as its question. Where all places are taken, the name that was not looked up for longest
loses its place, and no other one does: so a full table never has all names asked for again.
"""

from typing import Generic, NamedTuple, TypeVar

from cachetools import LRUCache

from bottomless.model.names import FullName

T = TypeVar("T")


class Known(NamedTuple, Generic[T]):
    """What a name meant when it was asked for."""

    meaning: T
    asked_at: int
    """When the question was sent, in ms of a clock that never goes back."""


class KnownNames(Generic[T]):
    """A bounded table of names. Times are in ms of one clock that never goes back."""

    def __init__(self, count_max: int) -> None:
        self._known: LRUCache[FullName, Known[T]] = LRUCache(count_max)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: FullName) -> bool:
        return name in self._known

    def get(self, name: FullName) -> Known[T] | None:
        """What is remembered of a name, however old; it keeps its place for longer."""
        return self._known.get(name)

    def keep(self, name: FullName, meaning: T, asked_at: int) -> None:
        """Remember an answer, unless that of a later question is known."""
        before = self._known.get(name)
        if before is not None and before.asked_at > asked_at:
            return
        self._known[name] = Known(meaning, asked_at)

    def forget(self, name: FullName, asked_at: int | None = None) -> None:
        """Forget a name; with `asked_at`, only what was answered to no later question."""
        known = self._known.get(name)
        if known is not None and (asked_at is None or known.asked_at <= asked_at):
            del self._known[name]
