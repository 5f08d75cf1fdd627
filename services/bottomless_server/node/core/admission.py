"""Bound the bytes of appends that are being received, waiting or written, and order those that wait.

The appends of each stream wait in the order in which they came: freed room goes to the first one,
and no later one gets any before it. So an append that needs much room is not kept out by small
appends that come all the time: while it waits, room gathers for it. Streams wait for each other
only where the bound of the process is reached: then the next room goes to the oldest of the first
appends of all streams. A body that holds room already and needs more goes before all of them,
since the others wait for what it holds.

A small part of the room of the process is kept for streams that hold little. Their appends pass
an append that waits for the room of the process, as long as all such streams together hold no
more than that part; the one that waits never counts on it. So neither keeps the other out: however
long it waits, small appends of other streams go on, and however many of those come, the rest of
the room gathers for it.

What is larger than a bound passes alone, beside streams that hold little: it must pass at some
time.
"""

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from bottomless.guards import guard

_KEPT_SHARE: Final = 16
"""This part of the room of the process is kept for streams that hold little."""
_LITTLE_SHARE: Final = 16
"""A stream holds little that holds no more than this part of what is kept for such streams."""


class _Place(NamedTuple):
    """The place of a ticket among those of its stream; lower places come first."""

    has_none: bool
    number: int


class Ticket:
    """A request that waits for room, until it is granted or gives up."""

    __slots__ = ("gone", "granted", "own", "owner", "place", "size")

    def __init__(self, owner: Hashable, size: int, own: int, number: int) -> None:
        self.owner: Final = owner
        self.size: Final = size
        self.own: Final = own
        """Bytes that the body of this request holds already."""
        self.place: Final = _Place(not own, number)
        self.granted = False
        self.gone = False


_Waiting = list[tuple[_Place, Ticket]]


class _Firsts:
    """The first ticket of each stream, if it may be next: a heap with the oldest on top.

    An entry counts for nothing once its ticket is not the first any more, or may not be next.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[_Place, Hashable]] = []
        self._noted: set[tuple[_Place, Hashable]] = set()
        """What is in the heap, so that it holds no ticket twice."""

    def note(self, ticket: Ticket) -> None:
        entry = (ticket.place, ticket.owner)
        if entry not in self._noted:
            self._noted.add(entry)
            heappush(self._heap, entry)

    def oldest(self, still: Callable[[_Place, Hashable], Ticket | None]) -> Ticket | None:
        """The oldest ticket that `still` confirms."""
        while self._heap:
            ticket = still(*self._heap[0])
            if ticket is not None:
                return ticket
            self._noted.discard(heappop(self._heap))
        return None


class Admission:
    """Counts bytes of each stream and of all, and says which ticket is next. The caller waits."""

    def __init__(self, stream_size_max: int, total_size_max: int) -> None:
        self._stream_size_max = stream_size_max
        self._total_size_max = total_size_max
        self._kept_size = total_size_max // _KEPT_SHARE
        self._little_max = min(self._kept_size // _LITTLE_SHARE, stream_size_max)
        self._held: dict[Hashable, int] = {}
        self._total = 0
        self._of_little = 0
        """Bytes of all streams that hold little."""
        self._number = 0
        self._waiting: dict[Hashable, _Waiting] = {}
        """The tickets that wait, a heap for each stream; none is empty."""
        self._fitting = _Firsts()
        """The first ticket of each stream that has room; the process may have none."""
        self._passing = _Firsts()
        """The first tickets of streams that hold little, together with what they ask for."""

    @property
    def total(self) -> int:
        return self._total

    @property
    def waiting_count(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def take(self, owner: Hashable, size: int, own: int = 0) -> bool:
        """Take room for `size` bytes; False if there is none now, or others are before."""
        if not own and not self.is_free(owner, size):
            return False
        if not self._fits(owner, size, own):
            return False
        self._hold(owner, size)
        return True

    def issue_ticket(self, owner: Hashable, size: int, own: int = 0) -> Ticket:
        """Issue a ticket to a caller who has to wait: `grant` tells when its turn has come."""
        self._number += 1
        ticket = Ticket(owner, size, own, self._number)
        heappush(self._waiting.setdefault(owner, []), (ticket.place, ticket))
        self._note_first(owner)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Wait no more for a ticket; a later one of its stream may be next now."""
        ticket.gone = True
        self._note_first(ticket.owner)

    def give_back(self, owner: Hashable, size: int) -> None:
        """Free room again; `grant` tells for which tickets."""
        self._hold(owner, -size)
        self._note_first(owner)

    def grant(self) -> list[Ticket]:
        """Tickets that have room now, of those that waited; it is taken for them."""
        granted = []
        while (ticket := self._next()) is not None:
            self._hold(ticket.owner, ticket.size)
            ticket.granted = True
            granted.append(ticket)
            self._note_first(ticket.owner)
        return granted

    def _next(self) -> Ticket | None:
        """The oldest ticket of all, or else the oldest that may pass it, if there is room for it."""
        oldest = self._fitting.oldest(self._if_fitting)
        if oldest is None or self._fits_process(oldest.owner, oldest.size, oldest.own):
            return oldest
        passing = self._passing.oldest(self._if_passing)
        if passing is None or not self.may_pass(passing.size):
            return None
        return passing

    @guard("the order of those who wait for room")
    def is_free(self, owner: Hashable, size: int) -> bool:
        """Whether no ticket comes before a request that comes now."""
        if owner in self._waiting:
            return False
        if self._fitting.oldest(self._if_fitting) is None:
            return True
        first = self._passing.oldest(self._if_passing) is None
        return first and self._is_little(owner, size) and self.may_pass(size)

    def _if_fitting(self, place: _Place, owner: Hashable) -> Ticket | None:
        first = self._first(owner)
        if first is None or first.place != place:
            return None
        return first if self._fits_stream(owner, first.size, first.own) else None

    def _if_passing(self, place: _Place, owner: Hashable) -> Ticket | None:
        ticket = self._if_fitting(place, owner)
        return None if ticket is None or not self._is_little(owner, ticket.size) else ticket

    def _note_first(self, owner: Hashable) -> None:
        first = self._first(owner)
        if first is None or not self._fits_stream(owner, first.size, first.own):
            return
        self._fitting.note(first)
        if self._is_little(owner, first.size):
            self._passing.note(first)

    def _first(self, owner: Hashable) -> Ticket | None:
        waiting = self._waiting.get(owner)
        while waiting:
            if not (waiting[0][1].gone or waiting[0][1].granted):
                return waiting[0][1]
            heappop(waiting)
        self._waiting.pop(owner, None)
        return None

    def _fits(self, owner: Hashable, size: int, own: int) -> bool:
        fits = self._fits_stream(owner, size, own)
        return fits and self._fits_process(owner, size, own)

    def _fits_stream(self, owner: Hashable, size: int, own: int) -> bool:
        held = self._held.get(owner, 0)
        return held <= own or held + size <= self._stream_size_max

    def _fits_process(self, owner: Hashable, size: int, own: int) -> bool:
        if self._is_little(owner, size):
            return self._total + size <= self._total_size_max or self.may_pass(size)
        held = self._held.get(owner, 0)
        of_little = self._of_little - self._counted(held)
        of_others = self._total + size - of_little
        alone = of_others <= own + size and of_little <= self._kept_size
        return alone or of_others + max(of_little, self._kept_size) <= self._total_size_max

    def _is_little(self, owner: Hashable, size: int) -> bool:
        """Whether a stream holds little with so many bytes more."""
        return self._held.get(owner, 0) + size <= self._little_max

    @guard("the room for streams that hold little")
    def may_pass(self, size: int) -> bool:
        """Whether what is kept for streams that hold little has room for so many bytes more of
        one of them."""
        return self._of_little + size <= self._kept_size

    def _counted(self, held: int) -> int:
        """How many of the bytes of a stream count as those of streams that hold little."""
        return held if held <= self._little_max else 0

    def _hold(self, owner: Hashable, size: int) -> None:
        """Count so many bytes more, or less."""
        before = self._held.get(owner, 0)
        held = before + size
        self._total += size
        assert held >= 0
        assert self._total >= 0
        self._of_little += self._counted(held) - self._counted(before)
        if held:
            self._held[owner] = held
        else:
            self._held.pop(owner, None)
