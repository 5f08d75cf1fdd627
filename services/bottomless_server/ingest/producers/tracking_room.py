"""Memory for what all streams of a process remember of producers and keys: a bound, in bytes.

Each stream has bounds of its own, and there may be many streams. What a new producer or key
takes is counted before its append is chosen, and stays counted until it is stored or refused.
Where no room is left, what nothing is promised of any more is given up, in this order:

1. keys whose time is over, of all streams, the oldest first;
2. producers that were silent for that time, the one that was silent longest first.

No more is given up than is needed, so that a new name costs as much as ever however many streams
there are (dues.py). Whatever is younger stays, and a new name is refused: nothing is forgotten
within its time.

How old something is, is judged by the time that has gone by on this node since it was written,
never by a stream's timestamps: those of one stream may be ahead, and say nothing of another's.
What an earlier process wrote is as old, when its log is read, as the newest timestamp of that log
says, so it may be kept for longer than its time and never for less. What is too old then is not
taken up, as far as there is no room for it.
"""

from collections.abc import Callable

from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers.dues import Dues


class TrackingRoom:
    """The memory for producers and keys of all streams of a process."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.held = 0
        """Bytes of what is remembered, and of what is about to be."""
        self.elapsed = 0
        """The time of this node, in ms of a clock that never goes back."""
        self._members: set[Tracking] = set()
        self._keys = Dues(Tracking.key_due_at)
        self._producers = Dues(Tracking.producer_due_at)

    def tell(self, elapsed: int) -> None:
        """What time it is, in ms of a clock that never goes back."""
        self.elapsed = elapsed

    def join(self, tracking: Tracking, newest: int) -> None:
        """Count what a stream remembers, without what is too old as far as there is no room;
        `newest` is the newest timestamp of its log, in ms since 1970."""
        if tracking in self._members:
            return
        self._members.add(tracking)
        self.held += tracking.size
        tracking.room = self
        tracking.date(newest, self.elapsed)
        while tracking.forget_key(self.elapsed):
            pass
        while self.held > self.size_max and tracking.forget_producer(self.elapsed):
            pass
        self.count(tracking, 0)
        self.fits(0)

    def leave(self, tracking: Tracking) -> None:
        """Count it no more: nobody asks that stream here any more."""
        if tracking in self._members:
            self._members.discard(tracking)
            self._keys.leave(tracking)
            self._producers.leave(tracking)
            self.held -= tracking.size
            tracking.room = None

    def count(self, tracking: Tracking, size: int) -> None:
        """A member has changed, and become so much larger or smaller."""
        self.held += size
        self._keys.note(tracking)
        self._producers.note(tracking)

    def fits(self, size: int) -> bool:
        """Whether there is room for more, if need be by giving up what is old enough."""
        self._free(size, self._keys, Tracking.forget_key)
        self._free(size, self._producers, Tracking.forget_producer)
        return self.held + size <= self.size_max

    def _free(
        self, size: int, dues: Dues[Tracking], forget_oldest: Callable[[Tracking, int], bool]
    ) -> None:
        busy = []
        while self.held + size > self.size_max:
            tracking = dues.first(self.elapsed)
            if tracking is None:
                break
            if tracking.busy:
                busy.append(tracking)
                dues.leave(tracking)
            else:
                forget_oldest(tracking, self.elapsed)
        for tracking in busy:
            dues.note(tracking)
