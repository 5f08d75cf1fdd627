"""Decide what an owner sends to one other node, of all the streams whose logs that one follows.

Only the replicator calls this, for streams with replicas. Events go in, with the time; actions come
out of `next_actions`, and whoever does them says how they ended. Of a stream one opening, or one body,
is on its way at a time. So its answers come in order, and a late one, of which the request counts as
failed, is of an older session and means nothing. Meanwhile its own log is read ahead (sent_stream.py).

Items of many streams share a body, and four bodies may be on their way. What was just written goes apart
from what a node missed, which takes long to be stored there, and of which two bodies leave room for the
others. As long as one with new rounds is on its way, small ones gather for the next, but not for long: so a
thousand streams cost few requests, and one alone waits for nobody.

Who asks what is to be done meets the streams of which something can be begun, and no others: one whose
answer is waited for comes back with it, and one that waits for a time stands in a heap by that time.

What was just written is sent from memory, as far as there is room for it; anything else is read
from the log, where it is once it is synced. Both begin where the follower says that its log ends. A node
that does not answer keeps its part of the memory, and leaves some to the others.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final

from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.limits import KIB, MIB
from bottomless.model.names import StreamId
from bottomless_server.node.core.sends import (
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
from bottomless_server.node.core.sent_stream import CATCH_UP_SIZE, Phase, SentStream
from bottomless_server.protocol.replica import ITEM_COUNT_MAX, NOWHERE, Answer, Place, Taken

IN_FLIGHT_MAX: Final = 4
"""Bodies on their way to one node."""
CATCHING_UP_MAX: Final = 2
"""How many of them hold what a node missed."""
ERRAND_COUNT_MAX: Final = 16
"""Openings and reads at once, for one node."""
GATHERED_SIZE: Final = 16 * MIB
"""Bytes of a body after which nothing more is added."""
RIPE_SIZE: Final = 256 * KIB
"""So many bytes of new rounds go at once."""
RIPE_COUNT: Final = 32
"""So many new rounds go at once."""
GATHERING_SECONDS: Final = 0.03
"""Seconds for which new rounds gather beside a body that has others, unless that is answered before."""
BOUNDS_SECONDS: Final = 0.5
"""How often bounds are told of a stream to which nothing else is sent."""
_PAUSE_MIN: Final = 0.05
_PAUSE_MAX: Final = 2.0


@dataclass(slots=True)
class _Body:
    """What is put together for one body."""

    size_max: int
    """Bytes after which nothing more is added."""
    parts: list[Part] = field(default_factory=list)
    streams: list[SentStream] = field(default_factory=list)
    size: int = 0

    def take(self, stream: SentStream, parts: Sequence[Part]) -> None:
        """Take in what is to be said of one more stream, unless there is no room for it."""
        if self.size < self.size_max and len(self.parts) + len(parts) <= ITEM_COUNT_MAX:
            self.parts += parts
            self.streams.append(stream)
            self.size += _size(parts)


class Sending:
    """All that is to be sent to one node; times are seconds of a monotonic clock."""

    def __init__(self, memory: Memory) -> None:
        self._kept = memory.share()
        self._streams: dict[StreamId, SentStream] = {}
        self._due: dict[StreamId, None] = {}
        """Streams of which something may be begun now, in their turn."""
        self._later: list[tuple[float, StreamId]] = []
        """Streams by the time from which on something may be begun of them, a heap. Each has an entry in
        force, and some that an earlier one has overtaken, until their time comes."""
        self._sessions = count(1)
        self._bodies = 0
        self._rounds = 0
        """How many bodies on their way hold new rounds."""
        self._catching_up = 0
        """How many bodies on their way hold what that node missed."""
        self._gathering_since: float | None = None
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
        self._streams[stream_id] = SentStream(
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
        if stream is None or stream.phase is Phase.ENDED:
            return
        stream.log_end = piece.end
        if stream.since is None:
            stream.since = now
        if self._kept.take(stream_id, len(piece.data)):
            stream.offered.append(piece)
        else:
            # Those before it go too: what is kept has no gap, and this one is read of the disk.
            self._kept.give_back(stream.take_offered())
        self._due[stream_id] = None

    def tell(self, stream_id: StreamId, told: Told) -> None:
        """Note new bounds, and that all that was offered can be read of the own log by now."""
        stream = self._streams.get(stream_id)
        if stream is not None and stream.phase is not Phase.ENDED:
            if told != stream.told or stream.all_read:
                self._due[stream_id] = None
            stream.told, stream.all_read = told, False
            stream.told_count += 1

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
        self._take_up_later(now)
        actions: list[Action] = []
        rounds, missed = _Body(GATHERED_SIZE), _Body(CATCH_UP_SIZE)
        # After a failure one thing is tried before all others.
        alone = self._failures > 0
        for stream_id in list(self._due):
            if alone and (self._errands or self._bodies or actions or rounds.parts or missed.parts):
                break
            stream = self._streams[stream_id]
            if now < stream.again_at:
                self._put_off(stream, stream.again_at)
                continue
            parts = [] if stream.is_asked else stream.next_parts(now, BOUNDS_SECONDS)
            if parts:
                body = missed if parts[0].piece is not None and not stream.is_live else rounds
                body.take(stream, parts)
            elif not self._begin_errand(stream, actions):
                self._put_off(stream, stream.told_at + BOUNDS_SECONDS)
        self._begin_rounds(rounds, now, actions)
        self._begin_missed(missed, actions)
        return actions

    def next_time(self, now: float) -> float | None:
        """When to ask for actions again although nothing was said meanwhile; None: not before."""
        if self._again_at > now:
            return self._again_at if self._due or self._later else None
        times = [at for at, _ in self._later[:1]]
        if self._gathering_since is not None:
            times.append(self._gathering_since + GATHERING_SECONDS)
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
        stream.is_asked = False
        if refusal is not None:
            stream.phase = Phase.ENDED
            self._drop_pieces(stream)
            return [Event(News(refusal), stream.stream_id)]
        stream.phase, stream.end, stream.all_read = Phase.OPEN, end, False
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
        stream.is_read = False
        self._due[stream.stream_id] = None
        if stream.phase is not Phase.OPEN:
            return []
        if freed:
            return self._close(stream)
        if action.end != stream.read_end:
            # What was read before it went another way meanwhile.
            return []
        if piece is None:
            # Unless it became longer while it was read.
            stream.all_read = stream.told_count == stream.told_before_read
        elif self._has_room(stream, len(piece.data), now):
            stream.ahead.append(piece)
        return []

    def answered(self, action: Send, answers: Sequence[Answer], now: float) -> list[Event]:
        """Hear the answers to a body, one for each item; returns what owners have to know."""
        self._end_body(action)
        self._failures = 0
        events: list[Event] = []
        for part, answer in _by_stream(action.parts, answers):
            stream = self._of(part.stream_id, part.session)
            if stream is not None:
                stream.is_asked = False
                self._due[stream.stream_id] = None
                if stream.phase is Phase.OPEN:
                    events += self._hear(stream, part, answer, now)
        return events

    def failed(self, action: Action, now: float, *, refused: bool = False) -> list[Event]:
        """Nothing is known of what became of it. `refused`: that node answered, so it can do other
        things; otherwise one thing is tried before all others. Returns what owners have to know."""
        events: list[Event] = []
        if isinstance(action, Send):
            self._end_body(action)
            sessions = dict.fromkeys((part.stream_id, part.session) for part in action.parts)
        else:
            self._errands -= 1
            sessions = {(action.stream_id, action.session): None}
        if not refused and not isinstance(action, Read):
            self._again_at = now + backoff(self._failures, _PAUSE_MIN, _PAUSE_MAX)
            self._failures += 1
        for stream_id, session in sessions:
            stream = self._of(stream_id, session)
            if stream is not None:
                if isinstance(action, Read):
                    stream.is_read = False
                else:
                    stream.is_asked = False
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
        assert 0 <= self._rounds + self._catching_up <= self._bodies
        assert self._catching_up <= CATCHING_UP_MAX
        assert 0 <= self._errands <= ERRAND_COUNT_MAX
        for stream_id, stream in self._streams.items():
            assert stream_id in self._due or self._is_later(stream) or not stream.has_work
            waits = stream.has_work or stream.is_asked or stream.is_read
            waits |= stream.all_read or stream.phase is Phase.ENDED
            assert waits or (not stream.lacks and stream.told == stream.has_told)
            # Where it ends is not known for a while after bounds alone had no answer: it lacks nothing then.
            assert stream.since is not None or not stream.lacks or stream.phase is Phase.CLOSED

    # Inside.

    def _put_off(self, stream: SentStream, at: float) -> None:
        """Have a stream due no more: before a time, if something is to be done of it then, or before
        somebody says something of it."""
        del self._due[stream.stream_id]
        if stream.has_work and (stream.later_at is None or at < stream.later_at):
            stream.later_at = at
            heappush(self._later, (at, stream.stream_id))

    def _take_up_later(self, now: float) -> None:
        """Have those due of which the time has come."""
        while self._later and self._later[0][0] <= now:
            at, stream_id = heappop(self._later)
            stream = self._streams.get(stream_id)
            if stream is not None and stream.later_at == at:
                stream.later_at = None
                self._due.setdefault(stream_id)

    def _is_later(self, stream: SentStream) -> bool:
        return (stream.later_at, stream.stream_id) in self._later

    def _begin_errand(self, stream: SentStream, actions: list[Action]) -> bool:
        """Open the log of a stream there, or read of the own log. Whether there is something of that to do:
        it may have to wait for others."""
        opens = stream.phase is Phase.CLOSED and not stream.is_asked
        if not opens and not (stream.phase is Phase.OPEN and stream.wants_read):
            return False
        if self._errands >= ERRAND_COUNT_MAX:
            return True
        self._errands += 1
        if opens:
            stream.session = next(self._sessions)
            # What is read of an older session is not wanted any more.
            stream.is_asked, stream.is_read = True, False
            actions.append(Open(stream.stream_id, stream.session, stream.epoch))
        else:
            stream.is_read, stream.told_before_read = True, stream.told_count
            actions.append(Read(stream.stream_id, stream.session, stream.read_end))
        self._turn(stream)
        return True

    def _begin_rounds(self, body: _Body, now: float, actions: list[Action]) -> None:
        if not body.parts or self._bodies >= IN_FLIGHT_MAX:
            return
        if self._gathering_since is None:
            self._gathering_since = now
        waits = now < self._gathering_since + GATHERING_SECONDS
        if self._rounds and waits and body.size < RIPE_SIZE and len(body.parts) < RIPE_COUNT:
            return
        self._gathering_since = None
        self._rounds += _has_pieces(body.parts)
        self._begin_body(body, actions)

    def _begin_missed(self, body: _Body, actions: list[Action]) -> None:
        if not body.parts or self._bodies >= IN_FLIGHT_MAX or self._catching_up >= CATCHING_UP_MAX:
            return
        self._catching_up += 1
        self._begin_body(body, actions, catches_up=True)
        if not self._failures:
            for stream in body.streams:
                self._begin_errand(stream, actions)

    def _begin_body(self, body: _Body, actions: list[Action], *, catches_up: bool = False) -> None:
        self._bodies += 1
        actions.append(Send(tuple(body.parts), catches_up))
        for stream in body.streams:
            stream.is_asked = True
            self._turn(stream)

    def _end_body(self, action: Send) -> None:
        self._bodies -= 1
        if action.catches_up:
            self._catching_up -= 1
        else:
            self._rounds -= _has_pieces(action.parts)

    def _turn(self, stream: SentStream) -> None:
        # The others first, the next time.
        self._due.pop(stream.stream_id, None)
        self._due[stream.stream_id] = None

    def _hear(self, stream: SentStream, part: Part, answer: Answer, now: float) -> list[Event]:
        stream.is_crowded = False
        self._kept.forget(stream.stream_id)
        if answer.taken is not Taken.OK:
            self._drop_read(stream)
        match answer.taken:
            case Taken.FENCED:
                stream.phase = Phase.ENDED
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

    def _has_room(self, stream: SentStream, size: int, now: float) -> bool:
        """Take room for what was read. What was offered waits until that node has what was read, so
        it must not keep the room: it is read later. Nothing makes way for what was read ahead."""
        if self._kept.take(stream.stream_id, size):
            return True
        if stream.ahead:
            stream.is_crowded = True
            return False
        self._kept.give_back(stream.take_offered())
        if self._kept.take(stream.stream_id, size):
            return True
        self._kept.wait(stream.stream_id)
        stream.again_at = now + _PAUSE_MIN
        return False

    def _has(self, stream: SentStream, now: float) -> list[Event]:
        """Note where the log ends there: what it has need not be kept."""
        stream.all_read = False
        self._kept.give_back(stream.take_held())
        stream.since = now if stream.lacks else None
        self._due[stream.stream_id] = None
        return [Event(News.HAS, stream.stream_id, stream.end)]

    def _close(self, stream: SentStream) -> list[Event]:
        """What it had may be gone when it is opened again, so it does not count until then."""
        self._drop_read(stream)
        stream.phase, stream.end = Phase.CLOSED, None
        return [Event(News.UNKNOWN, stream.stream_id)]

    def _pause(self, stream: SentStream, now: float) -> None:
        stream.again_at = now + backoff(stream.failures, _PAUSE_MIN, _PAUSE_MAX)
        stream.failures += 1

    def _of(self, stream_id: StreamId, session: int) -> SentStream | None:
        stream = self._streams.get(stream_id)
        return stream if stream is not None and is_of_session(stream.session, session) else None

    def _drop_read(self, stream: SentStream) -> None:
        self._kept.forget(stream.stream_id)
        self._kept.give_back(stream.take_ahead())

    def _drop_pieces(self, stream: SentStream) -> None:
        self._drop_read(stream)
        self._kept.give_back(stream.take_offered())


def _size(parts: Sequence[Part]) -> int:
    return sum(len(part.piece.data) for part in parts if part.piece is not None)


def _has_pieces(parts: Sequence[Part]) -> bool:
    return any(part.piece is not None for part in parts)


def _by_stream(parts: Sequence[Part], answers: Sequence[Answer]) -> Collection[tuple[Part, Answer]]:
    """The answer that counts of each stream: the first refusal, or the last one."""
    found: dict[StreamId, tuple[Part, Answer]] = {}
    for part, answer in zip(parts, answers, strict=True):
        earlier = found.get(part.stream_id)
        if earlier is None or earlier[1].taken is Taken.OK:
            found[part.stream_id] = part, answer
    return found.values()


@guard("the session of an answer")
def is_of_session(current: int, answered: int) -> bool:
    """Whether an answer is to something that was sent after the newest opening: an older one tells of
    a log that may have been put aside since."""
    return current == answered
