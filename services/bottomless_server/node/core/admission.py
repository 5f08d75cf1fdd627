"""Bound the bytes of appends that are being received, waiting or written; who waits stands in line.

A line for each stream: who came first gets freed room first, and nobody younger gets any before.
So what needs much room is not kept out by small appends that come all the time: while it
waits, room gathers for it. Streams wait for each other only where the bound of the process
is reached: then the oldest of those who are first in their lines has the next room of all.
Who has room already and needs more for the same body goes before all of them: those who wait
wait for him.

A small part of the room of the process is kept for streams that hold little. They pass whoever
waits for the room of the process, as long as all of them together hold no more than that part;
he never counts on it. So neither keeps the other out: however long he waits, small appends
of other streams go on, and however many of those come, the rest of the room gathers for him.

What is larger than a bound passes alone, beside streams that hold little: it must pass at
some time.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from bottomless.model.names import StreamId

_KEPT_SHARE: Final = 16
"""This part of the room of the process is kept for streams that hold little."""
_LITTLE_SHARE: Final = 16
"""A stream holds little that holds no more than this part of what is kept for such streams."""


class _Place(NamedTuple):
    """The place of a ticket in its line; the lower ones are first."""

    has_none: bool
    number: int


class Ticket:
    """One who waits for room, until he is granted it or leaves."""

    __slots__ = ("gone", "granted", "own", "place", "size", "stream_id")

    def __init__(self, stream_id: StreamId, size: int, own: int, number: int) -> None:
        self.stream_id: Final = stream_id
        self.size: Final = size
        self.own: Final = own
        """Bytes that the same body holds already, which is not in its own way."""
        self.place: Final = _Place(not own, number)
        self.granted = False
        self.gone = False


_Waiting = list[tuple[_Place, Ticket]]


class _Firsts:
    """The first of each line that may be next: a heap of them, the oldest on top.

    An entry whose ticket is not the first any more, or may not be next any more, says nothing.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[_Place, StreamId]] = []
        self._noted: set[tuple[_Place, StreamId]] = set()
        """What is in the heap, so that it holds nobody twice."""

    def note(self, ticket: Ticket) -> None:
        entry = (ticket.place, ticket.stream_id)
        if entry not in self._noted:
            self._noted.add(entry)
            heappush(self._heap, entry)

    def oldest(self, still: Callable[[_Place, StreamId], Ticket | None]) -> Ticket | None:
        """The oldest of whom `still` knows the ticket."""
        while self._heap:
            ticket = still(*self._heap[0])
            if ticket is not None:
                return ticket
            self._noted.discard(heappop(self._heap))
        return None


class Admission:
    """Counts bytes per stream and in all, and says who is next. Waiting is the caller's."""

    def __init__(self, stream_size_max: int, total_size_max: int) -> None:
        self._stream_size_max = stream_size_max
        self._total_size_max = total_size_max
        self._kept_size = total_size_max // _KEPT_SHARE
        self._little_max = min(self._kept_size // _LITTLE_SHARE, stream_size_max)
        self._held: dict[StreamId, int] = {}
        self._total = 0
        self._of_little = 0
        """Bytes of all streams that hold little."""
        self._number = 0
        self._waiting: dict[StreamId, _Waiting] = {}
        """Heaps of those who wait, by stream; none is empty."""
        self._fitting = _Firsts()
        """The first ticket of each line whose stream has room; the process may have none."""
        self._passing = _Firsts()
        """The tickets of them whose stream holds little, with what they ask for."""

    @property
    def total(self) -> int:
        return self._total

    @property
    def waiting_count(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def take(self, stream_id: StreamId, size: int, own: int = 0) -> bool:
        """Take room for `size` bytes; False if there is none now, or others are before."""
        if not own and not self._is_free(stream_id, size):
            return False
        if not self._fits(stream_id, size, own):
            return False
        self._hold(stream_id, size)
        return True

    def issue_ticket(self, stream_id: StreamId, size: int, own: int = 0) -> Ticket:
        """Wait in waiting: `grant` says when it is one's turn."""
        self._number += 1
        ticket = Ticket(stream_id, size, own, self._number)
        heappush(self._waiting.setdefault(stream_id, []), (ticket.place, ticket))
        self._note_first(stream_id)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Wait no more; those after him may be next now."""
        ticket.gone = True
        self._note_first(ticket.stream_id)

    def give_back(self, stream_id: StreamId, size: int) -> None:
        """Room is free again; `grant` says for whom."""
        self._hold(stream_id, -size)
        self._note_first(stream_id)

    def grant(self) -> list[Ticket]:
        """Tickets that have room now, of those that waited; it is taken for them."""
        granted = []
        while (ticket := self._next()) is not None:
            self._hold(ticket.stream_id, ticket.size)
            ticket.granted = True
            granted.append(ticket)
            self._note_first(ticket.stream_id)
        return granted

    def _next(self) -> Ticket | None:
        """The oldest of all, or of those who may pass him, if there is room for him."""
        oldest = self._fitting.oldest(self._if_fitting)
        if oldest is None or self._fits_process(oldest.stream_id, oldest.size, oldest.own):
            return oldest
        passing = self._passing.oldest(self._if_passing)
        if passing is None or not self._may_pass(passing.size):
            return None
        return passing

    def _is_free(self, stream_id: StreamId, size: int) -> bool:
        """Whether nobody is before who comes now."""
        if stream_id in self._waiting:
            return False
        if self._fitting.oldest(self._if_fitting) is None:
            return True
        first = self._passing.oldest(self._if_passing) is None
        return first and self._is_little(stream_id, size) and self._may_pass(size)

    def _if_fitting(self, place: _Place, stream_id: StreamId) -> Ticket | None:
        first = self._first(stream_id)
        if first is None or first.place != place:
            return None
        return first if self._fits_stream(stream_id, first.size, first.own) else None

    def _if_passing(self, place: _Place, stream_id: StreamId) -> Ticket | None:
        ticket = self._if_fitting(place, stream_id)
        return None if ticket is None or not self._is_little(stream_id, ticket.size) else ticket

    def _note_first(self, stream_id: StreamId) -> None:
        first = self._first(stream_id)
        if first is None or not self._fits_stream(stream_id, first.size, first.own):
            return
        self._fitting.note(first)
        if self._is_little(stream_id, first.size):
            self._passing.note(first)

    def _first(self, stream_id: StreamId) -> Ticket | None:
        waiting = self._waiting.get(stream_id)
        while waiting:
            if not (waiting[0][1].gone or waiting[0][1].granted):
                return waiting[0][1]
            heappop(waiting)
        self._waiting.pop(stream_id, None)
        return None

    def _fits(self, stream_id: StreamId, size: int, own: int) -> bool:
        fits = self._fits_stream(stream_id, size, own)
        return fits and self._fits_process(stream_id, size, own)

    def _fits_stream(self, stream_id: StreamId, size: int, own: int) -> bool:
        held = self._held.get(stream_id, 0)
        return held <= own or held + size <= self._stream_size_max

    def _fits_process(self, stream_id: StreamId, size: int, own: int) -> bool:
        if self._is_little(stream_id, size):
            return self._total + size <= self._total_size_max or self._may_pass(size)
        held = self._held.get(stream_id, 0)
        of_little = self._of_little - self._counted(held)
        of_others = self._total + size - of_little
        alone = of_others <= own + size and of_little <= self._kept_size
        return alone or of_others + max(of_little, self._kept_size) <= self._total_size_max

    def _is_little(self, stream_id: StreamId, size: int) -> bool:
        """Whether a stream holds little with so many bytes more."""
        return self._held.get(stream_id, 0) + size <= self._little_max

    def _may_pass(self, size: int) -> bool:
        """Whether what is kept for streams that hold little has room for so many bytes more of
        one of them."""
        return self._of_little + size <= self._kept_size

    def _counted(self, held: int) -> int:
        """As bytes of a stream that holds little."""
        return held if held <= self._little_max else 0

    def _hold(self, stream_id: StreamId, size: int) -> None:
        """Count so many bytes more, or less."""
        before = self._held.get(stream_id, 0)
        held = before + size
        self._total += size
        assert held >= 0
        assert self._total >= 0
        self._of_little += self._counted(held) - self._counted(before)
        if held:
            self._held[stream_id] = held
        else:
            self._held.pop(stream_id, None)
