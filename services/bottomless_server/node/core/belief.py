"""When a node may believe in its lease, from its clocks and from what coordination answered.

A node believes for lease minus margin after the moment *before* it asked, and coordination keeps
the lease for lease plus margin after the moment at which it was asked: so the node stops first,
as long as its clock sees the time pass. A monotonic clock does not while the machine is suspended
(that is how Linux defines CLOCK_MONOTONIC), and the clock of boot time does. Where the two drift
apart the node slept, and what it believed before is worth nothing: it asks before it acts.

Some sleep no clock of a machine sees, such as a pause of a virtual machine by its host. Then the
answer to the next renewal tells: the lease was not renewed but taken anew.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from bottomless.guards import guard

SLEEP_SECONDS_MIN: Final = 0.1
"""A machine that is suspended sleeps for longer; the two clocks differ by less only in rounding."""


class Moment(NamedTuple):
    """In seconds. Where a belief begins, the monotonic clock is read first; where it is looked
    at, the boot clock is: what passes between two readings then never looks like a sleep."""

    monotonic: float
    boot: float


@dataclass(frozen=True, slots=True)
class Belief:
    """The belief that the lease is held, as of the moment before it was asked for."""

    since: Moment
    seconds: float

    def holds(self, now: Moment) -> bool:
        return now.monotonic < self.since.monotonic + self.seconds and not self.slept(now)

    @guard("the boot clock beside the monotonic one")
    def slept(self, now: Moment) -> bool:
        """Whether this machine was suspended since."""
        apart = (now.boot - now.monotonic) - (self.since.boot - self.since.monotonic)
        return apart > SLEEP_SECONDS_MIN


@guard("the time at which a renewal is answered")
def is_lapse(before: Belief | None, answered: Moment, *, taken: bool, unheard: bool) -> bool:
    """Whether others may have held what this node claims, at any time up to this answer.

    `taken`: the lease was not renewed but taken anew. `unheard`: an earlier renewal had no answer,
    and may have been the one that took it. An answer that arrives after `before` is over proves
    nothing either: in between others could act, and an answer that was lost could be of then.
    """
    return taken or unheard or before is None or not before.holds(answered)
