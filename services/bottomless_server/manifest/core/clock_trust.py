"""Whether the wall clock may be believed where something is deleted for its age. Pure.

A wall clock that is ahead makes everything look old, and what is deleted then was seconds old.
So it is compared with time that nobody can set: the time since the machine started, which goes
on while it sleeps. The difference of the two, here the *line*, changes only where the clock is set.

    known before        the line of the same start of the machine, which an earlier process wrote down
    the first process   believed, as there is nothing yet that could be deleted too early
    another start       believed once it stood for `SETTLE_MS`: NTP corrects a clock after a start;
                        at once where the store has a clock of its own, and it agrees
    a step ahead        not believed until it is taken back, or stood for `SETTLE_MS` where the
                        store's clock agrees, and for `STAND_MS` where nothing else tells the time
    a step back         harmless, since what is deleted later was kept too long; it becomes the line
                        when it stood for `SETTLE_MS`, so that the same step ahead is one again

A sleep of the machine moves both alike and changes nothing. Whatever is believed, the clocks of
the object store and of coordination must agree too: one that does not is a doubt by itself.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SKEW_MS_MAX: Final = 5 * 60_000
"""Beyond this nobody knows how old anything is, and nothing goes for its age."""
SETTLE_MS: Final = 10 * 60_000
STAND_MS: Final = 24 * 3_600_000
_SAME_MS: Final = 1_000
"""Two clocks that are read one after the other differ by the time between."""


class Doubt(StrEnum):
    """Why nothing is deleted for its age now."""

    AHEAD = "the wall clock was set ahead, against the time that passed"
    NEW_START = "the machine has just started, and nothing confirms its wall clock yet"
    STORE = "the wall clock and the object store's differ"
    COORDINATION = "the wall clock and the coordination store's differ"
    UNKNOWN = "another clock was not heard yet"


@dataclass(frozen=True, slots=True)
class Known:
    """What outlives a process: about one start of the machine."""

    boot_id: str
    line: int
    settled: bool


@dataclass(frozen=True, slots=True)
class Others:
    """How far other clocks are ahead of ours, in ms."""

    store: int | None
    """None of a store that has no clock of its own, like a directory."""
    coordination: int


class ClockTrust:
    """Times are in ms; `elapsed` counts from any moment, and goes on while the machine sleeps."""

    def __init__(self, boot_id: str, known: Known | None) -> None:
        self._boot_id = boot_id
        same = known is not None and known.boot_id == boot_id
        self._first = known is None
        self._line = known.line if known is not None and same else None
        self._settled = known is not None and same and known.settled
        """Whether a line stood since the start of the machine; what changes then is no correction
        of its start."""
        self._seen: int | None = None
        """The line as it is, believed or not."""
        self._seen_since = 0

    @property
    def known(self) -> Known | None:
        """What is to be written down."""
        return None if self._line is None else Known(self._boot_id, self._line, self._settled)

    def look(self, wall: int, elapsed: int, others: Others) -> Doubt | None:
        """Compare the clocks as they are now."""
        line = wall - elapsed
        if self._seen is None or abs(line - self._seen) > _SAME_MS:
            self._seen, self._seen_since = line, elapsed
        stood = elapsed - self._seen_since
        doubt = self._look(line, stood, others)
        if others.store is not None and abs(others.store) > SKEW_MS_MAX:
            return Doubt.STORE
        if abs(others.coordination) > SKEW_MS_MAX:
            return Doubt.COORDINATION
        return doubt

    def _look(self, line: int, stood: int, others: Others) -> Doubt | None:
        confirmed = others.store is not None and abs(others.store) <= SKEW_MS_MAX
        if self._line is None and (self._first or confirmed):
            self._line = line
        ahead = self._line is None or line - self._line > SKEW_MS_MAX
        if not ahead:
            if stood >= SETTLE_MS:
                self._line, self._settled = line, True
            return None
        if stood >= (SETTLE_MS if confirmed or not self._settled else STAND_MS):
            self._line, self._settled = line, True
            return None
        return Doubt.NEW_START if self._line is None else Doubt.AHEAD

    def latest(self, wall: int, elapsed: int, others: Others | None) -> int:
        """The time by which a grace or a lease begins that another clock may end."""
        times = [wall]
        if others is not None:
            times += [wall + max(others.coordination, 0), wall + max(others.store or 0, 0)]
        if self._line is not None:
            times.append(self._line + elapsed)
        return max(times)

    def earliest(self, wall: int, elapsed: int, others: Others) -> int:
        """The time by which something may be called old: that of the slowest clock."""
        times = [wall, wall + min(others.coordination, 0), wall + min(others.store or 0, 0)]
        if self._line is not None:
            times.append(self._line + elapsed)
        return min(times)
