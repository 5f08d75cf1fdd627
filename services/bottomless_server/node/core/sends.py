"""What an owner sends to a node that holds replicas, what it does for that, and what it hears: values."""

from enum import StrEnum
from typing import Final, NamedTuple

from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.protocol.replica import Place


class Piece(NamedTuple):
    """Bytes of a log between two places, in one segment: whole appends."""

    place: Place
    begins: bool
    """Whether the segment begins here."""
    before: int
    """Where the segment before ended, in bytes, if one begins here; 0 if there was none."""
    data: bytes | memoryview

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

    @property
    def free(self) -> int:
        """Bytes that nobody keeps."""
        return max(self._size_max - self.held, 0)

    def share(self) -> "Share":
        """The part of it that is kept for one other node."""
        return Share(self)


class Share:
    """What is kept for one other node: no more than is free beside it, for nodes that take what is sent.

    However many nodes stall, each of the others finds room: of three shares none is more than a half,
    of nine none that comes last less than a tenth. What finds no room is waited for: nothing else is
    kept for that node before, so an append larger than all the memory passes too, when the node has
    taken what was kept for it before. Together the senders keep no more than the memory and, for each
    node, one such piece.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.held = 0
        self._first: StreamId | None = None
        """The stream whose piece goes before all others."""

    def take(self, stream_id: StreamId, size: int) -> bool:
        """Whether there was room for so many bytes of a stream; it is taken then."""
        if self._first not in (None, stream_id):
            return False
        if self.held and not leaves_room(self.held + size, self._memory.free):
            return False
        self._first = None
        self.held += size
        self._memory.held += size
        return True

    def wait(self, stream_id: StreamId) -> None:
        """Keep nothing of other streams before a piece of this one, unless another one waits already."""
        if self._first is None:
            self._first = stream_id

    def forget(self, stream_id: StreamId) -> None:
        """Wait no more for a piece of a stream."""
        if self._first == stream_id:
            self._first = None

    def give_back(self, size: int) -> None:
        """Make room free again."""
        self.held -= size
        self._memory.held -= size
        assert self.held >= 0


@guard("room for nodes that take what is sent")
def leaves_room(share: int, free: int) -> bool:
    """Whether one node may have so many bytes kept for it, where so many are free before that: who does
    not answer keeps what it has for long, and another one needs some too."""
    return share <= free


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
    """Send a body. Parts of one stream go on from one another."""

    parts: tuple[Part, ...]
    catches_up: bool = False
    """Whether it holds what that node missed, and no new rounds."""


Action = Open | Read | Send


class News(StrEnum):
    """What an owner hears of a node to which it sends."""

    HAS = "has"
    """Its log ends at a place, synced."""
    FAILED = "failed"
    """It said that its disk does not take what it is sent; it is asked again."""
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
