"""Memory for what all streams of a process remember of producers and keys: a bound, in bytes.

Each stream has bounds of its own, and there may be many streams. What a new producer or key
takes is counted before its append is chosen, and stays counted until it is stored or refused.
Where no room is left, what nothing is promised of any more is given up, in this order:

1. keys whose time is over, of all streams;
2. producers that were silent for that time, the one that was silent longest first.

Whatever is younger stays, and who is new is refused: nothing is forgotten within its time.

How old something is, is judged by the time that has gone by on this node since it was written,
never by a stream's timestamps: those of one stream may be ahead, and say nothing of another's.
What an earlier process wrote was as old as its timestamp said when its log was read. What is too
old then is not taken up, as far as there is no room for it.
"""

from typing import Final

from bottomless_server.ingest.core.tracking import Tracking

_FREED_SHARE: Final = 64
"""A look at all streams frees at least so small a part of the room, so that looks are rare."""


class TrackingRoom:
    """One for all streams of a process."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.held = 0
        """Bytes of what is remembered, and of what is about to be."""
        self.elapsed = 0
        """The time of this node, in ms of a clock that never goes back."""
        self._wall = 0
        self._members: dict[Tracking, None] = {}
        self._nothing_before = 0
        """No look finds anything before this time."""

    def tell(self, wall: int, elapsed: int) -> None:
        """What time it is: of a wall clock that is believed, and of one that never goes back."""
        self._wall, self.elapsed = wall, elapsed

    def join(self, tracking: Tracking) -> None:
        """Count what a stream remembers, without what is too old as far as there is no room."""
        if tracking in self._members:
            return
        self._members[tracking] = None
        self.held += tracking.size
        tracking.room = self
        tracking.date(self._wall, self.elapsed)
        tracking.forget_keys(self.elapsed)
        for _, producer_id in list(tracking.silent_producers(self.elapsed)):
            if self.held <= self.size_max:
                break
            tracking.forget_producer(producer_id)
        due = tracking.due_at()
        if due is not None:
            self._nothing_before = min(self._nothing_before, due)
        self.fits(0)

    def leave(self, tracking: Tracking) -> None:
        """Count it no more: nobody asks that stream here any more."""
        if tracking in self._members:
            del self._members[tracking]
            self.held -= tracking.size
            tracking.room = None

    def count(self, size: int) -> None:
        """A member has become so much larger, or smaller."""
        self.held += size

    def fits(self, size: int) -> bool:
        """Whether there is room for more, if need be by giving up what is old enough."""
        if self.held + size > self.size_max and self.elapsed >= self._nothing_before:
            self._free(size + self.size_max // _FREED_SHARE)
        return self.held + size <= self.size_max

    def _free(self, size: int) -> None:
        members = [tracking for tracking in self._members if not tracking.busy]
        for tracking in members:
            tracking.forget_keys(self.elapsed)
        silent = sorted(
            (taken_at, number, producer_id)
            for number, tracking in enumerate(members)
            for taken_at, producer_id in tracking.silent_producers(self.elapsed)
        )
        for _, number, producer_id in silent:
            if self.held + size <= self.size_max:
                return
            members[number].forget_producer(producer_id)
        # Everything that may go has gone: the next look is worth it when something else is old.
        self._nothing_before = min(
            (due for tracking in self._members if (due := tracking.due_at()) is not None),
            default=self.elapsed,
        )
