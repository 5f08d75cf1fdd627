"""Time in queues: the wall clock, that goes on where the wall clock is set back.

Visibilities, delays and ends of messages are moments of one time that never decreases, over restarts
too: the ledger has the last one. A wall clock that was set back would let that time stand still until
the clock has caught up: for an hour nothing that a dead consumer had would come again. So it goes on by
elapsed time, a little slower, until both are the same.
"""

from typing import Final

from bottomless.errors import Unavailable
from bottomless.guards import guard
from bottomless_server.node.core.clock import CommitClock

SLOWER: Final = 16
"""It loses this part of what passes against the wall clock: an hour is made good in 16 hours."""


class QueueTime:
    """The time of the queues of one node. All times are in ms; what is elapsed never goes back."""

    def __init__(self, jump_ms_max: int) -> None:
        """`jump_ms_max` is how far the wall clock may be set ahead and still be believed."""
        self._wall = CommitClock(jump_ms_max)
        self._from: tuple[int, int] | None = None
        """The last time that was that of the wall clock or of the ledger, and what was elapsed then. Two
        threads may read and replace it: either is right."""

    def go_on_from(self, time: int, elapsed: int) -> None:
        """Let no time be before that of a ledger that was opened."""
        if self._from is None or time > gone_on(*self._from, elapsed):
            self._from = (time, elapsed)

    def read(self, wall: int, elapsed: int) -> int:
        """The time now.

        Raises:
            Unavailable: `clock-skew`: the wall clock was set ahead too far, and is not back yet.
        """
        believed = self._wall.read(wall, elapsed)
        time = believed if self._from is None else gone_on(*self._from, elapsed)
        if believed < time:
            return time
        self._from = (believed, elapsed)
        return believed

    def shown(self, wall: int, elapsed: int) -> int:
        """The time now, for what is only shown: where the wall clock is not believed, what was goes on."""
        try:
            return self.read(wall, elapsed)
        except Unavailable:
            return wall if self._from is None else gone_on(*self._from, elapsed)


@guard("the time of queues goes on where the wall clock is set back")
def gone_on(time: int, since: int, elapsed: int) -> int:
    """What became of a time since so much was elapsed, without a look at the wall clock."""
    passed = max(elapsed - since, 0)
    return time + passed - passed // SLOWER
