"""Refuse to give timestamps while the clock of this node and that of coordination are far apart.

Nodes that append to one stream take turns at giving its records their timestamps, which never go back:
one clock that is ahead would pull all later records of the stream ahead with it. So all of them are
held to one clock, that of coordination. It is asked now and then; in between its time is told by how
much has passed here.
"""

from bottomless.errors import Code, Unavailable
from bottomless.guards import guard


class StoreClock:
    """What is known of the clock of coordination. All times are in ms."""

    def __init__(self, difference_ms_max: int) -> None:
        self._difference_ms_max = difference_ms_max
        self._offset: int | None = None
        """Its time minus the time since boot here."""

    def hear(self, store: int, asked_at: int, answered_at: int) -> None:
        """Take up the time that coordination told, between two times since boot."""
        self._offset = store - (asked_at + answered_at) // 2

    def read(self, wall: int, since_boot: int) -> int:
        """Tell the wall time, if it is close to that of coordination.

        Raises:
            Unavailable: `clock-skew`, until the clocks agree.
        """
        if self._offset is None:
            raise Unavailable("the clock of the coordination store is not known yet")
        require_close(wall - (self._offset + since_boot), self._difference_ms_max)
        return wall


@guard("the clock of a node beside that of coordination")
def require_close(difference_ms: int, difference_ms_max: int) -> None:
    """Refuse where a clock is ahead of another one, or after it, by more than is allowed.

    Raises:
        Unavailable: `clock-skew`.
    """
    if abs(difference_ms) > difference_ms_max:
        raise Unavailable(
            "the clock of this node differs from that of the coordination store",
            code=Code.CLOCK_SKEW,
            retry_after_seconds=5,
            facts={"difference_ms": difference_ms, "bound_ms": difference_ms_max},
        )
