"""Whether the wall clock may be believed where something is deleted for its age. Pure.

A wall clock that is ahead makes everything look old, and what is deleted then was seconds old.
So it is compared with time that nobody can set: the time since the machine started, which goes
on while it sleeps. The difference of the two, here the *line*, changes only where the clock is set.

    known before        the line of the same start of the machine, which an earlier process wrote down
    the first process   believed, as there is nothing yet that could be deleted too early
    any other start     believed once it stood for `SETTLE_MS`: NTP corrects a clock after a start
    a step ahead        not believed until it is taken back, or stood for `SETTLE_MS` where the
                        store's clock confirms it, and for `STAND_MS` where nothing does
    a step back         harmless, since what is deleted later was kept too long; it becomes the line
                        when it stood for `SETTLE_MS`, so that the same step ahead is one again

The clocks of the object store and of coordination have lines too, since they may stand on our
machine: the store's confirms a step of ours if it agrees now and did not make the same step at the same time.

A sleep of the machine moves all of them alike and changes nothing. Whatever is believed, the clocks
of the object store and of coordination must agree too: one that does not is a doubt by itself.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SKEW_MS_MAX: Final = 5 * 60_000
"""Beyond this nobody knows how old anything is, and nothing goes for its age."""
SETTLE_MS: Final = 10 * 60_000
STAND_MS: Final = 24 * 3_600_000
_SAME_MS: Final = SKEW_MS_MAX // 10
"""A line that moves by less stands: clocks are read one after the other, some to the second, and
some are set a little every few minutes."""


class Doubt(StrEnum):
    """Why nothing is deleted for its age now."""

    AHEAD = "the wall clock was set ahead, against the time that passed"
    NEW_START = "the machine has just started, and nothing confirms its wall clock yet"
    STORE = "the wall clock and the object store's differ"
    COORDINATION = "the wall clock and the coordination store's differ"
    UNKNOWN = "another clock was not heard yet"


@dataclass(frozen=True, slots=True)
class KnownClock:
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


class _ClockLine:
    """One clock against the time that passed: what is believed of it, and what is seen."""

    def __init__(self, believed: int | None) -> None:
        self.believed = believed
        self._day = believed
        """What was believed when this day began: small steps do not add up to a large one."""
        self._day_began = 0
        self._seen: int | None = None
        self._seen_since = 0

    def look(self, line: int, elapsed: int) -> int:
        """Tell for how long the clock has stood as it does now."""
        if self._seen is None:
            self._day_began = elapsed
        if self._seen is None or abs(line - self._seen) > _SAME_MS:
            self._seen, self._seen_since = line, elapsed
        return elapsed - self._seen_since

    def is_ahead(self, line: int) -> bool:
        if self.believed is None or self._day is None:
            return True
        return line - min(self.believed, self._day) > SKEW_MS_MAX

    def believe(self, line: int, elapsed: int) -> None:
        if self.is_ahead(line) or elapsed - self._day_began >= STAND_MS:
            self._day, self._day_began = line, elapsed
        self.believed = line

    def bounded(self, wall: int, elapsed: int) -> int:
        """What the clock says, unless that is far ahead of what is believed of it."""
        if self.believed is None:
            return wall
        return min(wall, self.believed + elapsed + SKEW_MS_MAX)


class ClockTrust:
    """Times are in ms; `elapsed` counts from any moment, and goes on while the machine sleeps."""

    def __init__(self, boot_id: str, known: KnownClock | None) -> None:
        """`known` is None in the first process of all."""
        self._boot_id = boot_id
        # Where a start of the machine has no name, nobody knows whether this is the same one.
        same = known is not None and known.boot_id == boot_id and boot_id != ""
        self._first = known is None
        self._ours = _ClockLine(known.line if known is not None and same else None)
        self._store, self._coordination = _ClockLine(None), _ClockLine(None)
        self._apart: int | None = None
        """The store's line when it was last seen to differ from ours: then it is another clock."""
        self._settled = known is not None and same and known.settled
        """Whether a line stood since the start of the machine; what changes then is no correction
        of its start."""

    @property
    def known(self) -> KnownClock | None:
        """What is to be written down."""
        line = self._ours.believed
        return None if line is None else KnownClock(self._boot_id, line, self._settled)

    def look(self, wall: int, elapsed: int, others: Others) -> Doubt | None:
        """Compare the clocks as they are now."""
        line = wall - elapsed
        if self._ours.believed is None and self._first:
            self._ours.believe(line, elapsed)
        self._hear(self._store, line, elapsed, others.store)
        self._hear(self._coordination, line, elapsed, others.coordination)
        doubt = self._look(line, elapsed, others)
        if others.store is not None and abs(others.store) > SKEW_MS_MAX:
            self._apart = line + others.store
            return Doubt.STORE
        if abs(others.coordination) > SKEW_MS_MAX:
            return Doubt.COORDINATION
        if doubt is None:
            self._apart = None
        return doubt

    def _look(self, line: int, elapsed: int, others: Others) -> Doubt | None:
        ours = self._ours
        stood = ours.look(line, elapsed)
        if not ours.is_ahead(line):
            if stood >= SETTLE_MS:
                ours.believe(line, elapsed)
                self._settled = True
            return None
        soon = not self._settled or self._confirmed(line, others)
        if stood >= (SETTLE_MS if soon else STAND_MS):
            ours.believe(line, elapsed)
            self._settled = True
            return None
        return Doubt.NEW_START if ours.believed is None else Doubt.AHEAD

    def _hear(self, other: _ClockLine, ours: int, elapsed: int, ahead: int | None) -> None:
        """Note what another clock says, `ahead` of ours."""
        if ahead is None:
            return
        line = ours + ahead
        stood = other.look(line, elapsed)
        if other.believed is None:
            # What is heard first while ours is ahead, and agrees, may be the same clock.
            if not self._ours.is_ahead(ours) or abs(ahead) > SKEW_MS_MAX:
                other.believe(line, elapsed)
        elif stood >= (STAND_MS if other.is_ahead(line) else SETTLE_MS):
            other.believe(line, elapsed)

    def _confirmed(self, line: int, others: Others) -> bool:
        """Whether the store's clock agrees, and is another one: it did not make our step, or made
        it at another time."""
        if others.store is None or abs(others.store) > SKEW_MS_MAX:
            return False
        its = line + others.store
        alone = self._apart is not None and abs(its - self._apart) <= SKEW_MS_MAX
        return alone or not self._store.is_ahead(its)

    def latest(self, wall: int, elapsed: int, others: Others | None) -> int:
        """The time by which a grace or a lease begins that another clock may end. What a clock says
        far ahead of what is believed of it is left out, or the grace would last for years."""
        times = [self._ours.bounded(wall, elapsed)]
        if others is not None:
            heard = ((self._store, others.store), (self._coordination, others.coordination))
            for line, ahead in heard:
                # One that was heard first while ours was ahead, and agreed, may be the same clock.
                if ahead is not None and line.believed is not None:
                    times.append(line.bounded(wall + ahead, elapsed))
        if self._ours.believed is not None:
            times.append(self._ours.believed + elapsed)
        return max(times)

    def passed(self, wall: int, elapsed: int) -> int:
        """The time of our clock, without the steps ahead that are not believed."""
        return wall if self._ours.believed is None else min(wall, self._ours.believed + elapsed)

    def earliest(self, wall: int, elapsed: int, others: Others) -> int:
        """The time by which something may be called old: that of the slowest clock."""
        times = [wall, wall + min(others.coordination, 0), wall + min(others.store or 0, 0)]
        if self._ours.believed is not None:
            times.append(self._ours.believed + elapsed)
        return min(times)
