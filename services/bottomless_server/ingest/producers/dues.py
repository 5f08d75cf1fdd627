"""Streams in the order in which the oldest of something of theirs becomes due.

There may be ten thousand streams, and a look for what is due touches those alone that come first:
a change of a stream, and a look, cost as much as a heap of all streams is deep.

A stream stands at no later time than its own: what is oldest of it may have become younger since,
which is found out when its turn comes.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Generic, TypeVar

_Member = TypeVar("_Member")


class _Place(Generic[_Member]):
    __slots__ = ("due_at", "member", "number")

    def __init__(self, due_at: int, number: int, member: _Member) -> None:
        self.due_at = due_at
        self.number = number
        self.member: _Member | None = member
        """The member whose place it is; None once the place counts no more."""

    def __lt__(self, other: "_Place[_Member]") -> bool:
        return (self.due_at, self.number) < (other.due_at, other.number)


class Dues(Generic[_Member]):
    """Each member has one place, or none while it has nothing that becomes due."""

    def __init__(self, due_at: Callable[[_Member], int | None]) -> None:
        self._due_at = due_at
        self._heap: list[_Place[_Member]] = []
        self._places: dict[_Member, _Place[_Member]] = {}
        self._numbers = count()

    def note(self, member: _Member) -> None:
        """Take note that something of a member has changed."""
        due_at, place = self._due_at(member), self._places.get(member)
        if due_at is not None and (place is None or due_at < place.due_at):
            self.leave(member)
            place = self._places[member] = _Place(due_at, next(self._numbers), member)
            heappush(self._heap, place)

    def leave(self, member: _Member) -> None:
        """Forget a member."""
        place = self._places.pop(member, None)
        if place is not None:
            place.member = None
            if len(self._heap) > 2 * len(self._places):
                self._heap = [one for one in self._heap if one.member is not None]
                heapify(self._heap)

    def first(self, now: int) -> _Member | None:
        """The member whose time has been over for longest; None if nothing is due."""
        while self._heap and self._heap[0].due_at <= now:
            place = self._heap[0]
            due_at = None if place.member is None else self._due_at(place.member)
            if place.member is None:
                heappop(self._heap)
            elif due_at is None:
                heappop(self._heap)
                del self._places[place.member]
            elif due_at > place.due_at:
                place.due_at = due_at
                heapreplace(self._heap, place)
            else:
                return place.member
        return None
