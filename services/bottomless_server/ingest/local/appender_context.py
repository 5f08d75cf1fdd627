"""What all appenders of a process share, and how they say that a log failed."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from bottomless.errors import Outcome, Unavailable
from bottomless.model.names import StreamId
from bottomless_server.core.tracking.known_producers import TrackingBounds
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.local.freeing import DiskUse, FreeingBounds
from bottomless_server.ingest.local.replicas import Replicate
from bottomless_server.ingest.local.sound_logs import SoundLogs
from bottomless_server.ingest.log.rounds import RoundWriter
from bottomless_server.ingest.log.segments import LogBroken
from bottomless_server.ingest.producers.tracking_room import TrackingRoom
from bottomless_server.node.core.clock import CommitClock
from bottomless_server.node.lease import Clocks
from bottomless_server.runtime.base.shared_hops import SharedHops

HasBegun = Callable[[StreamId, Tracking], bool]
"""Tells whether this node, and no other, has what finishes a commit of a stream."""


@dataclass(frozen=True, slots=True)
class AppenderContext:
    """What all appenders of a process share."""

    executor: Executor
    hops: SharedHops
    """Hops into threads, for calls that many streams make at once."""
    rounds: RoundWriter
    clocks: Clocks
    commit_clock: CommitClock
    disk: DiskUse
    has_begun: HasBegun
    chunk_size_max: int
    open_log_count_max: int
    """Streams that keep their file handles while nothing is written."""
    freeing: FreeingBounds
    tracking: TrackingBounds
    tracking_room: TrackingRoom
    replicate: Replicate | None = None
    """None: no stream has replicas."""
    sound: SoundLogs = field(default_factory=SoundLogs)
    """The logs of this node that were read whole, owned and followed."""

    def read_clock(self) -> int:
        """Return the wall time in ms since 1970, and tell the room for producers what time it is.

        A suspended machine's boot clock goes on as its wall clock does, so waking up is no jump.

        Raises:
            Unavailable: `clock-skew`, until the clock is back.
        """
        self.tell_time()
        return self.commit_clock.read(self.clocks.wall(), int(self.clocks.boot() * 1000))

    def tell_time(self) -> None:
        """Tell the room for producers and keys what time it is, by the monotonic clock."""
        self.tracking_room.tell(self.clocks.elapsed())


def log_broken(outcome: Outcome) -> Unavailable:
    return LogBroken("the local log failed and is being recovered", outcome=outcome)
