"""What an owner sends to a node that holds replicas, what it does for that, and what it hears: values."""

from enum import StrEnum
from typing import Final, NamedTuple

from bottomless.model.names import StreamId
from bottomless_server.protocol.replica import Place


class Piece(NamedTuple):
    """Bytes of a log between two places, in one segment: whole appends."""

    place: Place
    begins: bool
    """Whether the segment begins here."""
    before: int
    """Where the segment before ended, in bytes, if one begins here; 0 if there was none."""
    data: bytes

    @property
    def end(self) -> Place:
        """Where a log ends that has it."""
        return Place(self.place.segment_first, self.place.position + len(self.data))


class Told(NamedTuple):
    """Bounds that a follower is told."""

    committed_next: int = 0
    published_next: int = 0
    version: int = 0


NOTHING_TOLD: Final = Told()


class Memory:
    """Bytes that senders of a node keep for all others, beside what lies on the disk."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self.held = 0

    def take(self, size: int) -> bool:
        """Whether there was room for so many bytes; it is taken then. What is larger than all of it
        passes alone."""
        if self.held and self.held + size > self._size_max:
            return False
        self.held += size
        return True

    def give_back(self, size: int) -> None:
        """Make room free again."""
        self.held -= size
        assert self.held >= 0


class Open(NamedTuple):
    """Open the log of a stream there."""

    stream_id: StreamId
    session: int
    epoch: int


class Read(NamedTuple):
    """Read what comes after a place in the own log of a stream; after None, what an empty log
    begins with."""

    stream_id: StreamId
    session: int
    end: Place | None


class Part(NamedTuple):
    """An item of a body; without a piece it tells bounds."""

    stream_id: StreamId
    session: int
    epoch: int
    """Under which the piece was written, or is in the log: that of the owner when it was planned."""
    piece: Piece | None
    told: Told


class Send(NamedTuple):
    """Send a body."""

    parts: tuple[Part, ...]


Action = Open | Read | Send


class News(StrEnum):
    """What an owner hears of a node to which it sends."""

    HAS = "has"
    """Its log ends at a place, synced."""
    FENCED = "fenced"
    """Another node owns the stream under a later epoch."""
    UNKNOWN = "unknown"
    """Where its log ends is not known any more, before the next opening is answered."""
    DIVERGED = "diverged"
    """It is in sync, and was told of more than this owner has."""


class Event(NamedTuple):
    """News of one stream; `end` is None of an empty log."""

    news: News
    stream_id: StreamId
    end: Place | None = None
