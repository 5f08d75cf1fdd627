"""What befalls requests: seeded, better or worse by the hour, and fair in the end."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from support.wire import Mishap, Passage

from simulation.loop import PROCESS

_QUICK_SECONDS = {"network": 0.004, "coordination": 0.003, "drive": 0.04}
_SILENCE_SECONDS = {"network": 2.0, "coordination": 1.0, "drive": 2.0}
_LOSSES = (Mishap.LOSE_REQUEST, Mishap.LOSE_REPLY, Mishap.LATE_REQUEST)


@dataclass
class Weather:
    chance: random.Random
    now: Callable[[], float]
    """True time."""
    loss: float = 0.0
    """How many of all requests are lost, in one of three ways."""
    slow: float = 0.0
    """How many take seconds."""
    away: set[str] = field(default_factory=set)
    """Kinds of routes on which everything is lost."""
    jams: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of a program that renews a lease: until when no answer to that comes, and until when after
    that no request arrives."""
    lost_count: int = 0
    slow_count: int = 0

    def clear_up(self) -> None:
        self.loss = self.slow = 0.0
        self.away.clear()
        self.jams.clear()

    def passage(self, route: str) -> Passage:
        kind = route.partition(".")[0]
        quick, silence = _QUICK_SECONDS[kind], _SILENCE_SECONDS[kind]
        there, back = (self._moment(quick) for _ in range(2))
        if kind in self.away:
            self.lost_count += 1
            return Passage(Mishap.LOSE_REQUEST, silence_seconds=0.05)
        if route == "coordination.hold" and (jammed := self._jammed(there, back)) is not None:
            return jammed
        draw = self.chance.random()
        if draw < self.loss:
            self.lost_count += 1
            mishap = self.chance.choice(_LOSSES)
            return Passage(mishap, there, back, silence * self.chance.uniform(0.1, 1))
        if draw < self.loss + self.slow:
            self.slow_count += 1
            there += self.chance.uniform(0.1, silence)
        return Passage(Mishap.NONE, there, back)

    def _jammed(self, there: float, back: float) -> Passage | None:
        process = PROCESS.get()
        jam = None if process is None else self.jams.get(process.name)
        if jam is None:
            return None
        replies, requests = (until - self.now() for until in jam)
        if replies > 0:
            return Passage(Mishap.NONE, there, replies)
        return Passage(Mishap.NONE, requests, back) if requests > 0 else None

    def _moment(self, quick: float) -> float:
        # Mostly near nothing, now and then some ten times the usual.
        return float(quick * self.chance.random() ** 4 * 10)
