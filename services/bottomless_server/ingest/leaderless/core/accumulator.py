"""What gathers for the next WAL objects, and when it goes.

Appends of many streams wait together, until they have as many bytes as an object should have or the
first of them has waited for the linger. Streams go in the order in which they came; one that has
more than fits leaves the rest for later, after all others: so none keeps the others out.

Pieces that were sealed before come again where their object could not be used: they go before the
appends of their stream, in the order that they had.

On the record's path: after records/intake.py, before sealing.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from bottomless.model.limits import WAL_PIECE_COUNT_MAX
from bottomless.model.names import StreamId
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend, WaitingPiece


class FlushCause(StrEnum):
    """Why what gathered goes; the label of a metric."""

    SIZE = "size"
    """It has as many bytes, or pieces, as an object should have."""
    LINGER = "linger"
    """The first of it has waited for long enough."""
    AGAIN = "again"
    """Pieces come a second time, and have waited for long enough already."""
    DRAIN = "drain"
    """The process ends."""


class FlushBounds(NamedTuple):
    """How much gathers for one object, and for how long: the settings of the same names."""

    size_max: int
    linger_ms: int
    stream_count_max: int
    """1 makes an object for each stream."""


class Arrived(NamedTuple):
    """An append, and when it was put in line (ms of a clock that never goes back)."""

    append: WaitingAppend
    at: int


@dataclass(slots=True)
class Share:
    """What one stream has in a flush, or what it has waiting: `pieces` come before `appends`."""

    pieces: list[WaitingPiece] = field(default_factory=list)
    appends: list[Arrived] = field(default_factory=list)
    size: int = 0

    @property
    def count(self) -> int:
        """How many pieces it makes at most."""
        return len(self.pieces) + len(self.appends)


class Late(NamedTuple):
    """What waited for too long: it is refused, and nothing of it is stored."""

    pieces: list[WaitingPiece]
    appends: list[WaitingAppend]


class Gathered(NamedTuple):
    """What goes into one WAL object."""

    cause: FlushCause
    shares: dict[StreamId, Share]
    since: int
    """When the first append of it was put in line."""


class Accumulator:
    """The appends of all leaderless streams that are in no object yet. All times are in ms of a
    clock that never goes back."""

    def __init__(self, bounds: FlushBounds) -> None:
        self._bounds = bounds
        self._streams: dict[StreamId, Share] = {}
        """Streams in the order in which they go."""
        self._size = self._count = 0
        self._since: int | None = None
        """When the linger of what waits began."""
        self._again: dict[WaitingPiece, int] = {}
        """When each piece that comes again was put in line."""
        self._ends = False

    def __len__(self) -> int:
        """How many pieces wait at most."""
        return self._count

    @property
    def size(self) -> int:
        """Bytes of what waits."""
        return self._size

    def add(self, stream_id: StreamId, append: WaitingAppend, now: int) -> None:
        """Put an append in line."""
        share = self._streams.setdefault(stream_id, Share())
        share.appends.append(Arrived(append, now))
        self._note(share, append.append.size, now)

    def add_again(self, pieces: Sequence[WaitingPiece], now: int) -> None:
        """Put pieces in line that were sealed before, each before all appends of its stream; they go
        at once."""
        if not pieces:
            return
        before: dict[StreamId, list[WaitingPiece]] = {}
        for piece in pieces:
            before.setdefault(piece.stream_id, []).append(piece)
        for stream_id, ours in before.items():
            share = self._streams.setdefault(stream_id, Share())
            share.pieces += ours
            for piece in ours:
                self._again[piece] = now
                self._note(share, piece.round.size, now)
        # They were gathered before all others.
        self._streams = {one: self._streams[one] for one in (*before, *self._streams)}

    def end(self) -> None:
        """Let nothing linger any more: the process ends."""
        self._ends = True

    def due_at(self) -> int | None:
        """When something goes unless more comes before; None where nothing waits."""
        if self._since is None:
            return None
        return self._since if self._cause() else self._since + self._bounds.linger_ms

    def take(self, now: int) -> Gathered | None:
        """Take out what goes into the next object; None where nothing is due."""
        due_at = self.due_at()
        if due_at is None or self._since is None or now < due_at:
            return None
        cause, since = self._cause() or FlushCause.LINGER, self._since
        taken: dict[StreamId, Share] = {}
        space = _Space(self._bounds.size_max)
        for stream_id in list(self._streams):
            if len(taken) == self._bounds.stream_count_max or space.is_full:
                break
            share = self._take_from(stream_id, space)
            if share is None:
                break
            taken[stream_id] = share
        self._look_again()
        return Gathered(cause, taken, since)

    def expire(self, before: int) -> Late:
        """Take out what was put in line before a time."""
        late = Late([], [])
        for stream_id, share in list(self._streams.items()):
            pieces = [piece for piece in share.pieces if self._again[piece] < before]
            appends = [one for one in share.appends if one.at < before]
            size = sum(piece.round.size for piece in pieces)
            size += sum(one.append.append.size for one in appends)
            self._leave(share, size, len(pieces) + len(appends))
            share.pieces = share.pieces[len(pieces) :]
            share.appends = share.appends[len(appends) :]
            late.pieces.extend(pieces)
            late.appends.extend(one.append for one in appends)
            if not share.count:
                del self._streams[stream_id]
        self._look_again()
        return late

    def clear(self) -> Iterator[WaitingAppend]:
        """Take out everything, and yield the appends of it, those of pieces too."""
        streams, self._streams = self._streams, {}
        self._size = self._count = 0
        self._since = None
        self._again.clear()
        for share in streams.values():
            for piece in share.pieces:
                yield from piece.appends
            for one in share.appends:
                yield one.append

    def take_pieces(self) -> list[WaitingPiece]:
        """Take out the pieces that came again; appends stay."""
        found = [piece for share in self._streams.values() for piece in share.pieces]
        for stream_id, share in list(self._streams.items()):
            self._leave(share, sum(one.round.size for one in share.pieces), len(share.pieces))
            share.pieces = []
            if not share.count:
                del self._streams[stream_id]
        self._look_again()
        return found

    def _note(self, share: Share, size: int, now: int) -> None:
        share.size += size
        self._size += size
        self._count += 1
        if self._since is None:
            self._since = now

    def _leave(self, share: Share, size: int, count: int) -> None:
        share.size -= size
        self._size -= size
        self._count -= count
        if not self._count:
            self._since = None

    def _cause(self) -> FlushCause | None:
        """Why what waits goes at once; None where it lingers."""
        if self._again:
            return FlushCause.AGAIN
        if self._size >= self._bounds.size_max or self._count >= WAL_PIECE_COUNT_MAX:
            return FlushCause.SIZE
        return FlushCause.DRAIN if self._ends else None

    def _take_from(self, stream_id: StreamId, space: "_Space") -> Share | None:
        """Take what fits of a stream; what is left of it goes after all other streams. None where
        nothing fits."""
        share = self._streams[stream_id]
        pieces = space.count([piece.round.size for piece in share.pieces])
        appends = 0
        if pieces == len(share.pieces):
            appends = space.count([one.append.append.size for one in share.appends])
        if not pieces and not appends:
            return None
        del self._streams[stream_id]
        taken = Share(share.pieces[:pieces], share.appends[:appends])
        taken.size = sum(one.round.size for one in taken.pieces)
        taken.size += sum(one.append.append.size for one in taken.appends)
        self._size -= taken.size
        self._count -= taken.count
        left = Share(share.pieces[pieces:], share.appends[appends:], share.size - taken.size)
        if left.count:
            self._streams[stream_id] = left
        return taken

    def _look_again(self) -> None:
        """Find out since when what is left lingers."""
        shares = self._streams.values()
        left = {piece for share in shares for piece in share.pieces} if self._again else ()
        self._again = {piece: at for piece, at in self._again.items() if piece in left}
        # What came again goes at once, whatever its time.
        oldest = [share.appends[0].at for share in shares if share.appends]
        self._since = min(oldest, default=self._since) if self._count else None


class _Space:
    """How much more an object takes; its first piece always finds room, whatever its size."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = self._count = 0

    @property
    def is_full(self) -> bool:
        return self._size >= self._size_max or self._count >= WAL_PIECE_COUNT_MAX

    def count(self, sizes: Sequence[int]) -> int:
        """How many of these go in, one after the other."""
        for number, size in enumerate(sizes):
            if self.is_full or (self._count and self._size + size > self._size_max):
                return number
            self._size += size
            self._count += 1
        return len(sizes)
