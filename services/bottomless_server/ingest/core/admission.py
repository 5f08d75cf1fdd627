"""Bound the bytes of appends that are being received, waiting or written; who waits stands in line.

A line for each stream: who came first gets freed room first, and nobody younger gets any before.
So what needs much room is not kept out by small appends that come all the time: while it
waits, room gathers for it. Streams wait for each other only where the bound of the process
is reached: then the oldest of those who are first in their lines has the next room of all.
Who has room already and needs more for the same body goes before all of them: those who wait
wait for him.

What is larger than a bound passes alone: it must pass at some time.
"""

from heapq import heappop, heappush
from typing import Final, NamedTuple

from bottomless.model.names import StreamId


class _Place(NamedTuple):
    """Of a ticket in its line; the lower ones are first."""

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


_Line = list[tuple[_Place, Ticket]]


class Admission:
    """Counts bytes per stream and in all, and says who is next. Waiting is the caller's."""

    def __init__(self, stream_size_max: int, total_size_max: int) -> None:
        self._stream_size_max = stream_size_max
        self._total_size_max = total_size_max
        self._held: dict[StreamId, int] = {}
        self._total = 0
        self._number = 0
        self._lines: dict[StreamId, _Line] = {}
        """Heaps of those who wait, by stream; none is empty."""
        self._fitting: list[tuple[_Place, StreamId]] = []
        """A heap of the first of each line, where the stream has room for him and the process may
        have none. An entry whose ticket is not the first any more says nothing."""
        self._noted: set[tuple[_Place, StreamId]] = set()
        """What is in that heap, so that it holds nobody twice."""

    @property
    def total(self) -> int:
        return self._total

    @property
    def waiting_count(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def take(self, stream_id: StreamId, size: int, own: int = 0) -> bool:
        """Take room for `size` bytes; False if there is none now, or others are before."""
        if not own and (stream_id in self._lines or self._first_fitting() is not None):
            return False
        if not self._fits(stream_id, size, own):
            return False
        self._hold(stream_id, size)
        return True

    def stand(self, stream_id: StreamId, size: int, own: int = 0) -> Ticket:
        """Wait in line: `grant` says when it is one's turn."""
        self._number += 1
        ticket = Ticket(stream_id, size, own, self._number)
        heappush(self._lines.setdefault(stream_id, []), (ticket.place, ticket))
        self._note_first(stream_id)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Wait no more; those after him may be next now."""
        ticket.gone = True
        self._note_first(ticket.stream_id)

    def give_back(self, stream_id: StreamId, size: int) -> None:
        """Room is free again; `grant` says for whom."""
        rest = self._held.get(stream_id, 0) - size
        self._total -= size
        assert rest >= 0
        assert self._total >= 0
        if rest:
            self._held[stream_id] = rest
        else:
            self._held.pop(stream_id, None)
        self._note_first(stream_id)

    def grant(self) -> list[Ticket]:
        """Who has room now, of those who waited; it is taken for them."""
        granted = []
        while (ticket := self._first_fitting()) is not None:
            if not self._fits_process(ticket.size, ticket.own):
                break
            self._noted.discard(heappop(self._fitting))
            self._hold(ticket.stream_id, ticket.size)
            ticket.granted = True
            granted.append(ticket)
            self._note_first(ticket.stream_id)
        return granted

    def _first_fitting(self) -> Ticket | None:
        """The oldest of those who are first in their line and have room in their stream."""
        while self._fitting:
            place, stream_id = self._fitting[0]
            first = self._first(stream_id)
            if (
                first is not None
                and first.place == place
                and self._fits_stream(stream_id, first.size, first.own)
            ):
                return first
            self._noted.discard(heappop(self._fitting))
        return None

    def _note_first(self, stream_id: StreamId) -> None:
        first = self._first(stream_id)
        if first is None or not self._fits_stream(stream_id, first.size, first.own):
            return
        entry = (first.place, stream_id)
        if entry not in self._noted:
            self._noted.add(entry)
            heappush(self._fitting, entry)

    def _first(self, stream_id: StreamId) -> Ticket | None:
        line = self._lines.get(stream_id)
        while line:
            if not (line[0][1].gone or line[0][1].granted):
                return line[0][1]
            heappop(line)
        self._lines.pop(stream_id, None)
        return None

    def _fits(self, stream_id: StreamId, size: int, own: int) -> bool:
        return self._fits_stream(stream_id, size, own) and self._fits_process(size, own)

    def _fits_stream(self, stream_id: StreamId, size: int, own: int) -> bool:
        held = self._held.get(stream_id, 0)
        return held <= own or held + size <= self._stream_size_max

    def _fits_process(self, size: int, own: int) -> bool:
        return self._total <= own or self._total + size <= self._total_size_max

    def _hold(self, stream_id: StreamId, size: int) -> None:
        if size:
            self._held[stream_id] = self._held.get(stream_id, 0) + size
            self._total += size
