"""Decide what Python's garbage collector looks at, and when. Pure.

While the collector looks for objects that refer to each other in a circle, everything stands still, and a
full pass looks at all objects that the interpreter has: of an open stream that is about a hundred,
so with thousands of streams it takes half a second and more. But nearly all of them are in use, and what
is not goes without the collector, when the last reference to it goes. So what passes over new objects
have left is set aside as soon as it is much, and later passes do not look at it. What is lost by that
are circles which were in use when they were set aside, and are garbage since. For them all is looked
at again

    when twice as many objects are set aside as were in use then: memory has a bound
    when the last such look is a thousand times as long ago as it took, or an hour if nothing was
      set aside since: a circle has an end, and looking takes about a thousandth of the time

`collector.py` does what is decided here.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

SET_ASIDE_MIN: Final = 20_000
"""Fewer objects stay where they are, which costs each pass some milliseconds: while nothing grows they
are those of requests that are under way, and go by themselves."""
GROWTH: Final = 2
"""All is looked at when so many times as many objects are set aside as the last such look left."""
COUNTED_AGAIN: Final = 8
"""Objects that go by themselves are missed only by counting all. That is done when this part of what
is allowed was set aside since."""
REST: Final = 1_000
"""All is looked at for its age when the last such look is so many times as long ago as it took."""
REST_SECONDS_MIN: Final = 60.0
REST_SECONDS_MAX: Final = 3_600.0


class Look(Enum):
    """What is to be done now."""

    NOTHING = auto()
    NEW = auto()
    """Look at what is not set aside, and set aside what is left of it, if that is much."""
    COUNT = auto()
    """Count what is set aside."""
    ALL = auto()
    """Look at all there is, and set aside what is left of it."""


@dataclass(slots=True)
class LongLived:
    """The objects that are set aside, as numbers."""

    kept: int
    """How many the last look at all left."""
    looked_at: float
    """When that was, in seconds of a clock that never goes back."""
    took: float
    """How many seconds it took."""
    aside: int
    """How many are set aside, at most."""
    count_at: int
    """They are counted when so many may be set aside."""
    added: bool = False
    """Whether any were set aside since the last look at all."""

    @classmethod
    def after_all(cls, kept: int, began: float, now: float) -> "LongLived":
        """A look at all has left `kept` objects, which are set aside now."""
        return cls(kept, now, now - began, kept, GROWTH * kept)

    def decide(self, now: float, *, aged: bool) -> Look:
        """Decide what is to be done; `aged`: there may be much that is new and lives long."""
        if self.aside >= self.count_at:
            return Look.COUNT
        if now - self.looked_at >= (self.rest_seconds if self.added else REST_SECONDS_MAX):
            return Look.ALL
        return Look.NEW if aged else Look.NOTHING

    @property
    def rest_seconds(self) -> float:
        """How long what was set aside may stay without a look, if it is not too much."""
        return min(max(REST * self.took, REST_SECONDS_MIN), REST_SECONDS_MAX)

    def take_new(self, left: int) -> bool:
        """A look at what is new has left so many objects; returns whether they are to be set aside."""
        if left < SET_ASIDE_MIN:
            return False
        self.aside += left
        self.added = True
        return True

    def take_count(self, aside: int) -> bool:
        """So many are set aside; returns whether those are too many, so that all is to be looked at."""
        limit = GROWTH * self.kept
        self.aside = aside
        self.count_at = max(limit, aside + limit // COUNTED_AGAIN)
        return aside >= limit
