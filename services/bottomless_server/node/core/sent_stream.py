"""One stream whose log another node follows, as its owner sends to that node: what `sending.py` knows of it.

Pieces wait here in two places. What was just written is offered, and kept without a gap as long as there
is memory for it. What that node lacks before it is read of the own log, some pieces ahead of what is on its
way, so that the disk here is read while the disk there is synced.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from bottomless.model.limits import MIB
from bottomless.model.names import StreamId
from bottomless_server.node.core.sends import NOTHING_TOLD, Part, Piece, Told
from bottomless_server.protocol.replica import Place

CATCH_UP_SIZE: Final = 8 * MIB
"""Bytes of the log of one stream that are read for a body, unless one piece has more: the other node syncs
them at once, and whatever comes meanwhile waits for that."""
AHEAD_SIZE: Final = 2 * CATCH_UP_SIZE
"""Bytes that are read of one stream while they wait or are on their way; no more is read then."""


class Phase(StrEnum):
    """Whether the log is open there."""

    CLOSED = "closed"
    OPEN = "open"
    ENDED = "ended"


@dataclass(slots=True)
class SentStream:
    """A stream that is sent to one node; times are seconds of a monotonic clock."""

    stream_id: StreamId
    epoch: int
    log_end: Place | None
    told: Told
    since: float | None
    phase: Phase = Phase.CLOSED
    session: int = 0
    """Number of the newest opening; no other has it, of whatever stream."""
    is_asked: bool = False
    """An opening, or a body with something of it, is on its way."""
    is_read: bool = False
    """The own log is being read."""
    end: Place | None = None
    """Where its log ends there, as it said in this session."""
    offered: deque[Piece] = field(default_factory=deque)
    """What was written last, without a gap."""
    ahead: deque[Piece] = field(default_factory=deque)
    """What was read of the own log and goes on from `end` without a gap; some of it is on its way."""
    all_read: bool = False
    """The own log had nothing more to read; so what lacks is not synced yet, or offered."""
    is_crowded: bool = False
    """There was no room for what was read ahead: nothing is, before something was answered."""
    has_told: Told = NOTHING_TOLD
    told_at: float = 0.0
    told_count: int = 0
    told_before_read: int = 0
    again_at: float = 0.0
    later_at: float | None = None
    """When it is looked at again although nobody said anything of it; None: not before somebody does."""
    failures: int = 0

    @property
    def lacks(self) -> bool:
        """Whether that node lacks something."""
        return self.end != self.log_end

    @property
    def has_work(self) -> bool:
        """Whether something can be begun of it, now or from some time on, although nobody says anything."""
        if self.phase is not Phase.OPEN:
            return self.phase is Phase.CLOSED and not self.is_asked
        says = bool(self.ahead) or self.is_live or (self.told != self.has_told and not self.lacks)
        return (says and not self.is_asked) or self.wants_read

    @property
    def read_end(self) -> Place | None:
        """After which place the own log is read next."""
        return self.ahead[-1].end if self.ahead else self.end

    @property
    def wants_read(self) -> bool:
        """Whether more of the own log is to be read now."""
        if self.is_read or self.all_read or not self.lacks:
            return False
        if self.is_asked and not self.ahead:
            # Of what is on its way nothing was read, so it is known only afterwards what lacks.
            return False
        if self.ahead:
            kept = sum(len(piece.data) for piece in self.ahead)
            if self.is_crowded or kept >= AHEAD_SIZE or self.read_end == self.log_end:
                return False
        return not self.offered or not follows(self.read_end, self.offered[0])

    def pieces(self) -> Iterator[Piece]:
        """All that is kept of it."""
        yield from self.offered
        yield from self.ahead

    def next_parts(self, now: float, bounds_seconds: float) -> list[Part]:
        """What goes into the next body: a piece that was offered, or some that were read, or bounds alone;
        nothing while there is nothing to say."""
        if self.phase is not Phase.OPEN:
            return []
        if self.is_live:
            return [self._part(self.offered[0])]
        if self.ahead:
            return list(self._parts_ahead())
        is_told = now < self.told_at + bounds_seconds or self.told == self.has_told
        return [] if self.lacks or is_told else [self._part(None)]

    @property
    def is_live(self) -> bool:
        """Whether what was just written comes next."""
        return bool(self.offered) and follows(self.end, self.offered[0])

    def _parts_ahead(self) -> Iterator[Part]:
        size = 0
        for piece in self.ahead:
            size += len(piece.data)
            if size > max(CATCH_UP_SIZE, len(self.ahead[0].data)):
                break
            yield self._part(piece)

    def _part(self, piece: Piece | None) -> Part:
        return Part(self.stream_id, self.session, self.epoch, piece, self.told)

    def take_held(self) -> int:
        """Keep no more what that node has; returns the bytes of it."""
        size, end = 0, self.end
        while self.offered and end is not None and self.offered[0].end <= end:
            size += len(self.offered.popleft().data)
        while self.ahead and end is not None and self.ahead[0].end <= end:
            size += len(self.ahead.popleft().data)
        if self.ahead and end is not None and not follows(end, self.ahead[0]):
            size += self.take_ahead()
        return size

    def take_ahead(self) -> int:
        """Keep nothing more that was read; returns the bytes of it."""
        size = sum(len(piece.data) for piece in self.ahead)
        self.ahead.clear()
        return size

    def take_offered(self) -> int:
        """Keep nothing more that was offered; returns the bytes of it."""
        size = sum(len(piece.data) for piece in self.offered)
        self.offered.clear()
        return size


def follows(end: Place | None, piece: Piece) -> bool:
    """Whether a piece goes on where a log ends; of an empty log only its owner can tell, from the
    disk."""
    if end is None:
        return False
    if piece.begins:
        return end.segment_first < piece.place.segment_first and end.position == piece.before
    return piece.place == end
