"""Decide what an owner sends to one other node, of all the streams whose logs that one follows.

Only the replicator calls this, for streams with replicas. Events go in, with the time; actions come out of `next_actions`, and whoever does them says how they ended. Of a stream one thing is on its
way at a time: an opening, a read of the own log, or an item in a body. So its answers come in order,
and a late one, of which the request counts as failed, is of an older session and means nothing. Items
of many streams share a body, and four bodies may be on their way.

What was just written is sent from memory, as far as there is room for it; anything else is read
from the log, where it is once it is synced. Both begin where the follower says that its log ends. A node
that does not answer keeps its part of the memory, and leaves some to the others.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Final

from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId
from bottomless_server.node.core.sends import (
    NOTHING_TOLD,
    Action,
    Event,
    Memory,
    News,
    Open,
    Part,
    Piece,
    Read,
    Send,
    Told,
)
from bottomless_server.protocol.replica import ITEM_COUNT_MAX, NOWHERE, Answer, Place, Taken

IN_FLIGHT_MAX: Final = 4
"""Bodies on their way to one node."""
ERRAND_COUNT_MAX: Final = 16
"""Openings and reads at once, for one node."""
GATHERED_SIZE: Final = 16 * MIB
"""Bytes of a body after which nothing more is added."""
BOUNDS_SECONDS: Final = 0.5
"""How often bounds are told of a stream to which nothing else is sent."""
_PAUSE_MIN: Final = 0.05
_PAUSE_MAX: Final = 2.0


class _Phase(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    ENDED = "ended"


@dataclass(slots=True)
class _Stream:
    stream_id: StreamId
    epoch: int
    log_end: Place | None
    told: Told
    since: float | None
    phase: _Phase = _Phase.CLOSED
    session: int = 0
    """Number of the newest opening; no other has it, of whatever stream."""
    busy: bool = False
    end: Place | None = None
    """Where its log ends there, as it said in this session."""
    offered: deque[Piece] = field(default_factory=deque)
    """What was written last, without a gap."""
    read: Piece | None = None
    """What was read of the own log, to be sent next."""
    all_read: bool = False
    """The own log had nothing more to read; so what lacks is not synced yet, or offered."""
    has_told: Told = NOTHING_TOLD
    told_at: float = 0.0
    told_count: int = 0
    told_before_read: int = 0
    again_at: float = 0.0
    failures: int = 0

    @property
    def lacks(self) -> bool:
        return self.end != self.log_end

    def pieces(self) -> Iterator[Piece]:
        yield from self.offered
        if self.read is not None:
            yield self.read

    def next_offered(self) -> Piece | None:
        return self.offered[0] if self.offered and follows(self.end, self.offered[0]) else None


class Sending:
    """All that is to be sent to one node; times are seconds of a monotonic clock."""

    def __init__(self, memory: Memory) -> None:
        self._kept = memory.share()
        self._streams: dict[StreamId, _Stream] = {}
        self._due: dict[StreamId, None] = {}
        """Streams of which something may be sent now or later, in their turn."""
        self._sessions = count(1)
        self._bodies = 0
        self._errands = 0
        self._failures = 0
        self._again_at = 0.0

    # What the owner says.

    def follow(
        self,
        stream_id: StreamId,
        epoch: int,
        log_end: Place | None,
        told: Told,
        now: float,
        pause: float = 0.0,
    ) -> None:
        """Have that node follow a stream, owned here under an epoch, whose own log ends at a place.

        Nothing is asked of it before `pause` seconds have passed.
        """
        earlier = self._streams.get(stream_id)
        if earlier is not None:
            self._drop_pieces(earlier)
        # What is on its way is of an older session, also of a stream that was left meanwhile.
        self._streams[stream_id] = _Stream(
            stream_id, epoch, log_end, told, since=now, again_at=now + pause
        )
        self._due[stream_id] = None

    def leave(self, stream_id: StreamId) -> None:
        """Send nothing more of a stream."""
        stream = self._streams.pop(stream_id, None)
        self._due.pop(stream_id, None)
        if stream is not None:
            self._drop_pieces(stream)

    def offer(self, stream_id: StreamId, piece: Piece, now: float) -> None:
        """Have a piece sent that was just written at the end of the own log, synced or not yet."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.phase is _Phase.ENDED:
            return
        stream.log_end = piece.end
        if stream.since is None:
            stream.since = now
        if self._kept.take(stream_id, len(piece.data)):
            stream.offered.append(piece)
        else:
            # Those before it go too: what is kept has no gap, and this one is read of the disk.
            self._drop_pieces(stream)
        self._due[stream_id] = None

    def tell(self, stream_id: StreamId, told: Told) -> None:
        """Note new bounds, and that all that was offered can be read of the own log by now."""
        stream = self._streams.get(stream_id)
        if stream is not None and stream.phase is not _Phase.ENDED:
            stream.told, stream.all_read = told, False
            stream.told_count += 1
            self._due[stream_id] = None

    def silent_since(self, stream_id: StreamId) -> float | None:
        """Since when that node owes an answer for something of a stream; None if it has everything."""
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.since

    def end_of(self, stream_id: StreamId) -> Place | None:
        """Where a log ends there, as far as it said in this session."""
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.end

    # What is to be done.

    def next_actions(self, now: float) -> list[Action]:
        """All that can be begun now; each is to be ended by one of the calls below."""
        if now < self._again_at:
            return []
        actions: list[Action] = []
        parts, size = list[Part](), 0
        # After a failure one thing is tried before all others.
        alone = self._failures > 0
        for stream_id in list(self._due):
            if alone and (self._errands or self._bodies or actions or parts):
                break
            stream = self._streams[stream_id]
            if stream.busy or now < stream.again_at:
                continue
            part = self._part_of(stream, now)
            if part is not None:
                if self._bodies >= IN_FLIGHT_MAX or size >= GATHERED_SIZE:
                    continue
                if len(parts) >= ITEM_COUNT_MAX:
                    continue
                parts.append(part)
                size += 0 if part.piece is None else len(part.piece.data)
            elif (errand := self._errand_of(stream)) is not None:
                if self._errands >= ERRAND_COUNT_MAX:
                    continue
                self._errands += 1
                actions.append(errand)
            else:
                if stream.told == stream.has_told or stream.phase is _Phase.ENDED:
                    del self._due[stream_id]
                continue
            stream.busy = True
            # The others first, the next time.
            self._due[stream_id] = self._due.pop(stream_id)
        if parts:
            self._bodies += 1
            actions.append(Send(tuple(parts)))
        return actions

    def next_time(self, now: float) -> float | None:
        """When to ask for actions again although nothing was said meanwhile; None: not before."""
        if self._again_at > now:
            return self._again_at if self._due else None
        times = []
        for stream_id in self._due:
            stream = self._streams[stream_id]
            if not stream.busy:
                bounds_at = stream.told_at + BOUNDS_SECONDS
                times.append(max(stream.again_at, 0.0 if stream.lacks else bounds_at))
        later = [one for one in times if one > now]
        return min(later, default=None)

    # How it ended.

    def opened(
        self, action: Open, refusal: str | None, end: Place | None, now: float
    ) -> list[Event]:
        """Hear the answer to an opening; returns what its owner has to know."""
        self._errands -= 1
        self._failures = 0
        stream = self._of(action.stream_id, action.session)
        if stream is None:
            return []
        stream.busy = False
        if refusal is not None:
            stream.phase = _Phase.ENDED
            self._drop_pieces(stream)
            return [Event(News(refusal), stream.stream_id)]
        stream.phase, stream.end, stream.all_read = _Phase.OPEN, end, False
        return self._has(stream, now)

    def was_read(
        self, action: Read, piece: Piece | None, now: float, *, freed: bool = False
    ) -> list[Event]:
        """The own log was read; None: it has nothing synced after that place. `freed`: it does not go
        on from there, so that node opens its log anew. Returns what its owner has to know."""
        self._errands -= 1
        stream = self._of(action.stream_id, action.session)
        if stream is None:
            return []
        stream.busy = False
        self._due[stream.stream_id] = None
        if freed:
            return self._close(stream)
        if piece is None:
            # Unless it became longer while it was read.
            stream.all_read = stream.told_count == stream.told_before_read
        elif self._has_room(stream, len(piece.data)):
            stream.read = piece
        else:
            stream.again_at = now + _PAUSE_MIN
        return []

    def answered(self, action: Send, answers: Sequence[Answer], now: float) -> list[Event]:
        """Hear the answers to a body, one for each item; returns what owners have to know."""
        self._bodies -= 1
        self._failures = 0
        events: list[Event] = []
        for part, answer in zip(action.parts, answers, strict=True):
            stream = self._of(part.stream_id, part.session)
            if stream is not None:
                stream.busy = False
                self._due[stream.stream_id] = None
                events += self._hear(stream, part, answer, now)
        return events

    def failed(self, action: Action, now: float, *, refused: bool = False) -> list[Event]:
        """Nothing is known of what became of it. `refused`: that node answered, so it can do other
        things; otherwise one thing is tried before all others. Returns what owners have to know."""
        events: list[Event] = []
        if isinstance(action, Send):
            self._bodies -= 1
            sessions = [(part.stream_id, part.session) for part in action.parts]
        else:
            self._errands -= 1
            sessions = [(action.stream_id, action.session)]
        if not refused and not isinstance(action, Read):
            self._again_at = now + backoff(self._failures, _PAUSE_MIN, _PAUSE_MAX)
            self._failures += 1
        for stream_id, session in sessions:
            stream = self._of(stream_id, session)
            if stream is not None:
                stream.busy = False
                self._due[stream_id] = None
                events += self._close(stream)
                self._pause(stream, now)
        return events

    def check(self) -> None:
        """Hold what must be true after each event.

        Raises:
            AssertionError: it is not.
        """
        kept = sum(len(piece.data) for one in self._streams.values() for piece in one.pieces())
        assert kept <= self._kept.held
        assert 0 <= self._bodies <= IN_FLIGHT_MAX
        assert 0 <= self._errands <= ERRAND_COUNT_MAX
        for stream_id, stream in self._streams.items():
            due = stream_id in self._due or stream.busy or stream.phase is _Phase.ENDED
            assert due or (not stream.lacks and stream.told == stream.has_told) or stream.all_read
            assert stream.since is not None or not stream.lacks

    # Inside.

    def _part_of(self, stream: _Stream, now: float) -> Part | None:
        if stream.phase is not _Phase.OPEN:
            return None
        piece = stream.next_offered() or stream.read
        is_told = now < stream.told_at + BOUNDS_SECONDS or stream.told == stream.has_told
        if piece is None and (stream.lacks or is_told):
            return None
        return Part(stream.stream_id, stream.session, stream.epoch, piece, stream.told)

    def _errand_of(self, stream: _Stream) -> Open | Read | None:
        if stream.phase is _Phase.CLOSED:
            stream.session = next(self._sessions)
            return Open(stream.stream_id, stream.session, stream.epoch)
        if stream.phase is _Phase.OPEN and stream.lacks and not stream.all_read:
            stream.told_before_read = stream.told_count
            return Read(stream.stream_id, stream.session, stream.end)
        return None

    def _hear(self, stream: _Stream, part: Part, answer: Answer, now: float) -> list[Event]:
        self._drop_read(stream)
        match answer.taken:
            case Taken.FENCED:
                stream.phase = _Phase.ENDED
                self._drop_pieces(stream)
                return [Event(News.FENCED, stream.stream_id)]
            case Taken.NOT_OPEN:
                if stream.failures:
                    self._pause(stream, now)
                # The first time it has only let go of what was not used for long.
                stream.failures += 1
                return self._close(stream)
            case Taken.STORAGE:
                self._pause(stream, now)
                return [Event(News.FAILED, stream.stream_id)]
            case Taken.GAP:
                # What it lacks may be no more in memory.
                self._drop_pieces(stream)
                self._pause(stream, now)
                if answer.end == NOWHERE:
                    # With what an empty log may begin is told by an opening, and more is published now.
                    return self._close(stream)
            case Taken.OK:
                stream.failures = 0
                stream.has_told, stream.told_at = part.told, now
        stream.end = None if answer.end == NOWHERE else answer.end
        return self._has(stream, now)

    def _has_room(self, stream: _Stream, size: int) -> bool:
        """Take room for what was read. What was offered waits until that node has what was read, so
        it must not keep the room: it is read later."""
        if self._kept.take(stream.stream_id, size):
            return True
        self._drop_pieces(stream)
        if self._kept.take(stream.stream_id, size):
            return True
        self._kept.wait(stream.stream_id)
        return False

    def _has(self, stream: _Stream, now: float) -> list[Event]:
        """Note where the log ends there: what it has need not be kept."""
        stream.all_read = False
        while stream.offered and stream.end is not None and stream.offered[0].end <= stream.end:
            self._kept.give_back(len(stream.offered.popleft().data))
        stream.since = now if stream.lacks else None
        self._due[stream.stream_id] = None
        return [Event(News.HAS, stream.stream_id, stream.end)]

    def _close(self, stream: _Stream) -> list[Event]:
        """What it had may be gone when it is opened again, so it does not count until then."""
        self._drop_read(stream)
        stream.phase, stream.end = _Phase.CLOSED, None
        return [Event(News.UNKNOWN, stream.stream_id)]

    def _pause(self, stream: _Stream, now: float) -> None:
        stream.again_at = now + backoff(stream.failures, _PAUSE_MIN, _PAUSE_MAX)
        stream.failures += 1

    def _of(self, stream_id: StreamId, session: int) -> _Stream | None:
        stream = self._streams.get(stream_id)
        return stream if stream is not None and is_of_session(stream.session, session) else None

    def _drop_read(self, stream: _Stream) -> None:
        self._kept.forget(stream.stream_id)
        if stream.read is not None:
            self._kept.give_back(len(stream.read.data))
            stream.read = None

    def _drop_pieces(self, stream: _Stream) -> None:
        self._drop_read(stream)
        self._kept.give_back(sum(len(piece.data) for piece in stream.offered))
        stream.offered.clear()


@guard("the session of an answer")
def is_of_session(current: int, answered: int) -> bool:
    """Whether an answer is to something that was sent after the newest opening: an older one tells of
    a log that may have been put aside since."""
    return current == answered


def follows(end: Place | None, piece: Piece) -> bool:
    """Whether a piece goes on where a log ends; of an empty log only its owner can tell, from the
    disk."""
    if end is None:
        return False
    if piece.begins:
        return end.segment_first < piece.place.segment_first and end.position == piece.before
    return piece.place == end
