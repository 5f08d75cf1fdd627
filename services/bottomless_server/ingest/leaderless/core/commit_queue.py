"""Which pieces are committed next, and what becomes of those that meet others.

Objects are put side by side, and their pieces are committed in the order of their sequences: an
object that is durable before an earlier one waits for it. A stream's pieces stay in their order,
whatever happens to them: those of a stream whose commit met another's wait for the next EXECs, also
of later objects, and later pieces of that stream wait after them. So does a piece that is sealed
anew: it keeps its place, and later ones of its stream wait until it lies in another object.

A group that met a conflict is tried once more, then its halves, down to the stream that others write
too. That one waits for a moment, while all others go on.

On the record's path: after ../flusher.py, before ../committer.py.
"""

from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NamedTuple

from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.names import StreamId
from bottomless_server.ingest.leaderless.core.pieces import WaitingPiece
from bottomless_server.leaderless.groups import (
    GROUP_KEY_COUNT_MAX,
    GROUP_STREAM_COUNT_MAX,
    Wanted,
    groups,
)

CONFLICT_COUNT_MAX: Final = 10
"""So often a stream meets others; then what waits of it is refused (503 `overloaded`)."""
PAUSE_MS_MIN: Final = 5
PAUSE_MS_MAX: Final = 200

Parts = Mapping[StreamId, Sequence[WaitingPiece]]


class Group(NamedTuple):
    """What one EXEC commits."""

    parts: Parts
    """The pieces of each stream, in their order."""
    sequence: int
    """The lowest of their objects."""
    settled: int
    """The first sequence with anything left to decide, once this group is committed."""
    tried: bool = False
    """Whether it met a conflict as it is."""

    @property
    def pieces(self) -> list[WaitingPiece]:
        return [piece for pieces in self.parts.values() for piece in pieces]

    @property
    def is_halved(self) -> bool:
        """Whether another conflict makes two groups of it."""
        return self.tried and len(self.parts) > 1


class Refused(NamedTuple):
    """Pieces that are not tried any more; nothing of them is stored."""

    pieces: list[WaitingPiece]


@dataclass(slots=True, eq=False)
class _Flight:
    """An object whose pieces are not in line yet."""

    sequence: int
    pieces: Sequence[WaitingPiece]
    ended: bool = False
    durable: bool = False


@dataclass(slots=True, eq=False)
class _InLine:
    piece: WaitingPiece
    until: int
    """When it is given up, in ms of a clock that never goes back."""
    conflicts: int = 0


@dataclass(slots=True, eq=False)
class _Line:
    """What waits of one stream."""

    waiting: deque[_InLine] = field(default_factory=deque)
    not_before: int = 0
    """A stream that met another waits until then, in ms of a clock that never goes back."""


class CommitQueue:
    """The pieces of one instance that are being put, or wait for their commit."""

    def __init__(self, commit_ms: int, stream_count_max: int = GROUP_STREAM_COUNT_MAX) -> None:
        """A piece waits `commit_ms` for its commit, which has at most so many streams."""
        self._commit_ms = commit_ms
        self._stream_count_max = stream_count_max
        self._flights: deque[_Flight] = deque()
        self._lines: dict[StreamId, _Line] = {}
        self._placed: set[WaitingPiece] = set()
        """Pieces in line that lie in an object: only these are committed."""
        self._again: set[WaitingPiece] = set()
        """Pieces that are sealed anew: they are in line before their object is."""
        self._retries: list[Group] = []
        self._undecided: Counter[int] = Counter()
        """How many pieces of each object nobody has decided about."""
        self._end = 0
        """After the last sequence with any piece."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on its way, and nothing waits."""
        return not self._flights and not self._lines

    @property
    def flight_count(self) -> int:
        """Objects with pieces that are not decided, or are being put."""
        return len(self._undecided)

    def first_undecided(self, default: int, without: Container[int] = ()) -> int:
        """Tell the first sequence with anything left to decide, but for those of `without`; `default`
        where there is none."""
        return min([default, *(one for one in self._undecided if one not in without)])

    @property
    def decided_end(self) -> int | None:
        """After the last sequence with any piece, where nothing is left to decide; else None."""
        return None if self._undecided else self._end

    def needs_settling(self, settled: int) -> bool:
        """Whether the instance's record says less than is settled, and nothing will be committed
        that says more: then what was put stays for ever."""
        return self.is_empty and settled < self._end

    # What the flusher tells.

    def begin(self, sequence: int, pieces: Sequence[WaitingPiece]) -> None:
        """Note that an object with these pieces is being put; sequences come in their order."""
        assert pieces
        assert sequence >= self._end
        self._flights.append(_Flight(sequence, pieces))
        self._undecided[sequence] = len(pieces)
        self._end = sequence + 1

    def put(self, sequence: int, now: int) -> None:
        """Note that an object is durable; its pieces know their places."""
        flight = self._flight(sequence)
        flight.ended = flight.durable = True
        self._placed.update(self._again.intersection(flight.pieces))
        self._admit(now)

    def fail(self, sequence: int, now: int) -> None:
        """Note that an object will not be used: whoever says so refuses its pieces."""
        flight = self._flight(sequence)
        flight.ended = True
        self._again.difference_update(flight.pieces)
        self._drop(set(flight.pieces))
        del self._undecided[sequence]
        self._admit(now)

    def leave(self, sequence: int) -> None:
        """Note that what an object holds is decided, which was committed without coming in line. Where
        everything was given up meanwhile, nothing is there of it."""
        if sequence in self._undecided:
            self._flights.remove(self._flight(sequence))
            del self._undecided[sequence]

    # What the committer asks and tells.

    def next_group(self, now: int) -> Group | None:
        """Choose what is committed next; None where nothing is ready."""
        while self._retries:
            again = self._retries.pop()
            found = self._left_of(again.parts)
            if found:
                return self._group(found, tried=again.tried)
        found = self._fresh(now)
        return self._group(found) if found else None

    def ready_at(self) -> int | None:
        """When a stream that waits may be tried again; None where only news helps."""
        times = [line.not_before for line in self._lines.values() if self._ready(line)]
        return min(times, default=None)

    def done(self, pieces: Iterable[WaitingPiece]) -> None:
        """Note that these are decided, one way or the other."""
        gone = set(pieces)
        for piece in gone:
            assert piece.accepted is not None
            self._decide(piece.accepted.sequence)
        self._drop(gone)

    def trim(self, piece: WaitingPiece, again: WaitingPiece) -> None:
        """Put a piece that is sealed anew in the place of another; it waits for its object."""
        assert piece.accepted is not None
        self._decide(piece.accepted.sequence)
        self._placed.discard(piece)
        self._again.add(again)
        line = self._lines[piece.stream_id]
        next(one for one in line.waiting if one.piece is piece).piece = again

    def conflict(self, group: Group, now: int, chance: float) -> Refused:
        """Note that others changed what a group watched; nothing of it is stored. `chance` is from 0
        to 1, and says how long a stream waits."""
        if not group.tried:
            self._retries.append(group._replace(tried=True))
            return Refused([])
        streams = list(group.parts)
        if group.is_halved:
            middle = len(streams) // 2
            # The first half is tried first, as it stood first.
            for half in (streams[middle:], streams[:middle]):
                parts = {one: group.parts[one] for one in half}
                self._retries.append(group._replace(parts=parts))
            return Refused([])
        return self._pause(streams[0], set(group.pieces), now, chance)

    def expire(self, now: int, under_way: Group | None = None) -> Refused:
        """Take out what has waited for too long, but for what a commit under way may store."""
        kept = set(under_way.pieces) if under_way else set[WaitingPiece]()
        late = [
            one.piece
            for line in self._lines.values()
            for one in line.waiting
            if one.until <= now and one.piece not in kept and one.piece in self._placed
        ]
        self.done(late)
        return Refused(late)

    def forget(self, pieces: Iterable[WaitingPiece]) -> None:
        """Take out pieces that are sealed anew, and come into no object any more."""
        gone = set(pieces)
        self._again -= gone
        self._drop(gone)

    def give_up(self) -> list[WaitingPiece]:
        """Take out everything, in the order in which it would have been committed: none of it is,
        since the instance is lost."""
        in_line = [one.piece for line in self._lines.values() for one in line.waiting]
        # Of one that failed all pieces were refused.
        flights = [one for one in self._flights if one.durable or not one.ended]
        later = [piece for flight in flights for piece in flight.pieces if piece not in self._again]
        self._flights.clear()
        self._lines.clear()
        self._placed.clear()
        self._again.clear()
        self._retries.clear()
        self._undecided.clear()
        return in_line + later

    def _flight(self, sequence: int) -> _Flight:
        return next(one for one in self._flights if one.sequence == sequence)

    def _admit(self, now: int) -> None:
        for flight in admitted(self._flights):
            self._flights.remove(flight)
            if not flight.durable:
                continue
            for piece in flight.pieces:
                if piece in self._again:
                    # It has its place in line, or had it and is decided.
                    self._again.discard(piece)
                    continue
                line = self._lines.setdefault(piece.stream_id, _Line())
                line.waiting.append(_InLine(piece, now + self._commit_ms))
                self._placed.add(piece)

    def _fresh(self, now: int) -> Parts:
        wanted: list[Wanted] = []
        pieces: list[WaitingPiece] = []
        keys = count = 0
        for stream_id, line in self._lines.items():
            if line.not_before > now:
                continue
            ready = self._ready(line)
            pieces += ready
            wanted += [Wanted(stream_id, piece.names) for piece in ready]
            keys += sum(1 + len(piece.names) for piece in ready)
            count += bool(ready)
            if count == self._stream_count_max or keys >= GROUP_KEY_COUNT_MAX:
                break
        if not wanted:
            return {}
        # More of them fit than were counted, and the others are asked for again after this one.
        first = groups(wanted, self._stream_count_max)[0]
        return {part.stream_id: [pieces[place] for place in part.pieces] for part in first}

    def _ready(self, line: _Line) -> list[WaitingPiece]:
        return ready_of([one.piece for one in line.waiting], self._placed)

    def _left_of(self, parts: Parts) -> Parts:
        """What is still in line of pieces that are tried again."""
        left = {
            one: [piece for piece in pieces if piece in self._placed]
            for one, pieces in parts.items()
        }
        return {one: pieces for one, pieces in left.items() if pieces}

    def _group(self, parts: Parts, *, tried: bool = False) -> Group:
        pieces = [piece for ours in parts.values() for piece in ours]
        sequences = [piece.accepted.sequence for piece in pieces if piece.accepted is not None]
        assert len(sequences) == len(pieces)
        ends = Counter(
            piece.accepted.sequence
            for piece in pieces
            if piece.accepted is not None and not _may_stay(piece)
        )
        left = [one for one, count in self._undecided.items() if count > ends[one]]
        return Group(parts, min(sequences), min(left, default=self._end), tried)

    def _pause(
        self, stream_id: StreamId, tried: set[WaitingPiece], now: int, chance: float
    ) -> Refused:
        line = self._lines[stream_id]
        line.not_before = now + pause_ms(line.waiting[0].conflicts, chance)
        refused = []
        for one in line.waiting:
            if one.piece in tried:
                one.conflicts += 1
                if one.conflicts >= CONFLICT_COUNT_MAX:
                    refused.append(one.piece)
        self.done(refused)
        return Refused(refused)

    def _decide(self, sequence: int) -> None:
        self._undecided[sequence] -= 1
        if not self._undecided[sequence]:
            del self._undecided[sequence]

    def _drop(self, gone: set[WaitingPiece]) -> None:
        self._placed -= gone
        for stream_id in {piece.stream_id for piece in gone}:
            line = self._lines.get(stream_id)
            if line is None:
                continue
            line.waiting = deque(one for one in line.waiting if one.piece not in gone)
            if not line.waiting:
                del self._lines[stream_id]


@guard("objects are committed in the order of their sequences")
def admitted(flights: Iterable[_Flight]) -> list[_Flight]:
    """Choose the objects whose pieces may be put in line now: those of all earlier ones are, or will
    never be."""
    return list(takewhile(lambda flight: flight.ended, flights))


@guard("a stream's pieces stay in their order")
def ready_of(pieces: Sequence[WaitingPiece], placed: set[WaitingPiece]) -> list[WaitingPiece]:
    """Choose the pieces of a stream that may be committed: those before the first one that is sealed
    anew and lies in no object yet."""
    count = next((at for at, piece in enumerate(pieces) if piece not in placed), len(pieces))
    return list(pieces[:count])


def _may_stay(piece: WaitingPiece) -> bool:
    """Whether a commit may leave a piece undecided: it may have to be sealed anew."""
    return piece.appends[0].append.conditions.numbered


def pause_ms(conflicts: int, chance: float) -> int:
    """Choose how long a stream waits that met others so often; `chance` is from 0 to 1."""
    longest = backoff(conflicts, 2 * PAUSE_MS_MIN, PAUSE_MS_MAX)
    return PAUSE_MS_MIN + int(chance * (longest - PAUSE_MS_MIN))
