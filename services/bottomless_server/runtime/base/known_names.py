"""What names of streams mean, as another service said: remembered at most so many at a time.

Services ask what a name means with every request, and remember it for a while. An answer is as old
as the last moment at which it was known to be true. That is when its question was sent, or later:
coordination shows a mark that changes with each name that is freed
(`stores/freed_names.py`), and who reads the same mark again learns that no name means anything
else than before, of all names at once. The time between two marks is an era.

- A question belongs to the era in which it was *sent*. What is freed after that ends the era,
  so an answer that comes late never passes for one of the next era.
- The end of an era makes no answer older than it is: each is good for as long as it would be
  without eras, and is asked for again meanwhile.
- An era that nobody has heard of lately keeps nothing young. Nor does one that has lasted for
  `era_ms_max`: then another one begins though the mark stands, so that a name which somebody freed
  without the mark is noticed too.

How old an answer may be is decided by the one who asks. Where all places are taken, the name
that was not looked up for longest loses its place, and no other one does: so a full table never has
all names asked for again.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from cachetools import Cache, LRUCache

from bottomless.model.names import FullName

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Era:
    """A time in which no name was freed."""

    mark: Hashable
    """None where nobody says whether names are freed."""
    began_at: int
    lasted_until: int
    """The last moment of which it is known that no name had been freed since it began."""


class Question(NamedTuple):
    """When a question is sent, in ms of a clock that never goes back, and what was known then."""

    sent_at: int
    era: _Era
    number: int
    """Greater than that of each question before it: several are sent in one ms."""

    @property
    def true_at(self) -> int:
        """The last moment of which it is known that what is answered was so."""
        return max(self.sent_at, self.era.lasted_until)


@dataclass(slots=True, eq=False)
class Known(Generic[T]):
    """What a name meant when it was asked for."""

    meaning: T
    question: Question
    used_at: int

    @property
    def true_at(self) -> int:
        """The last moment of which it is known that the name meant this."""
        return self.question.true_at


class KnownNames(Generic[T]):
    """A bounded table of names. Times are in ms of one clock that never goes back, also while the
    machine is suspended."""

    def __init__(self, count_max: int, era_ms_max: int = 0) -> None:
        self._known: LRUCache[FullName, Known[T]] = LRUCache(count_max)
        self._era_ms_max = era_ms_max
        self._era = _Era(None, 0, 0)
        self._asked_count = 0

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: FullName) -> bool:
        return name in self._known

    def get(self, name: FullName, now: int) -> Known[T] | None:
        """What is remembered of a name, however old; it keeps its place for longer."""
        known = self._known.get(name)
        if known is not None:
            known.used_at = now
        return known

    def ask(self, now: int) -> Question:
        """A question that is sent right after this, and not before."""
        self._asked_count += 1
        return Question(now, self._era, self._asked_count)

    def keep(self, name: FullName, meaning: T, question: Question) -> None:
        """Remember an answer, unless that of a later question is known."""
        before = self._peek(name)
        if before is None:
            self._known[name] = Known(meaning, question, question.sent_at)
        elif before.question.number <= question.number:
            before.meaning, before.question = meaning, question

    def forget(self, name: FullName, question: Question | None = None) -> None:
        """Forget a name; with `question`, only what was answered to no later one."""
        known = self._peek(name)
        if known is None:
            return
        if question is None or known.question.number <= question.number:
            del self._known[name]

    def remembered(self, name: FullName) -> T | None:
        """What is remembered of a name; None where that is nothing. It is not looked up by that."""
        known = self._peek(name)
        return None if known is None else known.meaning

    def means(self, name: FullName, meaning: T | None) -> bool:
        """Whether this is what is remembered of a name; it is not looked up by that."""
        known = self._peek(name)
        return known is not None and known.meaning == meaning

    def hear(self, mark: Hashable, asked_at: int) -> bool:
        """Take up the mark that coordination showed to who asked for it at `asked_at`; None where
        it cannot be told. Returns whether another era began.
        """
        era = self._era
        if asked_at < era.lasted_until:
            # An answer that comes late, after one that says more.
            return False
        goes_on = mark is not None and mark == era.mark
        if goes_on and asked_at - era.began_at < self._era_ms_max:
            era.lasted_until = asked_at
            return False
        self._era = _Era(mark, asked_at, asked_at)
        return True

    @property
    def era(self) -> object:
        """What questions belong to that are sent now: another one when another era begins."""
        return self._era

    def is_of_this_era(self, known: Known[T]) -> bool:
        """Whether an answer grows younger when the mark is heard again."""
        return known.question.era is self._era

    def of_other_eras(self, used_since: int) -> list[FullName]:
        """Names that were looked up since then, whose answers grow old with each moment."""
        return [name for name in self._known if self._grows_old(name, used_since)]

    def _grows_old(self, name: FullName, used_since: int) -> bool:
        known = self._peek(name)
        assert known is not None
        return known.used_at >= used_since and not self.is_of_this_era(known)

    def _peek(self, name: FullName) -> Known[T] | None:
        # What a table does by itself is no use of it, so the order of use stays as it is.
        return Cache.__getitem__(self._known, name) if name in self._known else None
