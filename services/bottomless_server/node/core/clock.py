"""Refuse a wall clock that jumped ahead: one wrong hour would stay in the stream for ever.

Commit timestamps never decrease, so a clock that is ahead for a moment pulls all later
records ahead with it. A jump is what the wall clock gained on elapsed time since it was
last believed; a clock that goes back is harmless and does not change what is believed.
"""

from bottomless.errors import Code, Unavailable


class CommitClock:
    """The wall clock of a process, as far as it is believed. All times are in ms."""

    def __init__(self, jump_ms_max: int) -> None:
        self._jump_ms_max = jump_ms_max
        self._offset: int | None = None
        """Wall time minus elapsed time, as it was last believed."""

    def read(self, wall: int, elapsed: int) -> int:
        """The wall time, if it can be believed; `elapsed` is that of a clock that never goes back,
        and that goes on while the machine is suspended.

        Raises:
            Unavailable: `clock-skew`, until the clock is back.
        """
        offset = wall - elapsed
        if self._offset is None:
            self._offset = offset
        if offset - self._offset > self._jump_ms_max:
            raise Unavailable(
                "the clock of this node jumped ahead",
                code=Code.CLOCK_SKEW,
                retry_after_seconds=5,
                facts={"ahead_ms": offset - self._offset, "bound_ms": self._jump_ms_max},
            )
        self._offset = max(self._offset, offset)
        return wall


def commit_timestamp(previous: int, wall: int) -> int:
    """The timestamp of the next chunk: search by time relies on its never decreasing."""
    return max(previous, wall)
