"""Time and chance of this whole program, in the hands of a simulation.

`install` has to come before anything of the product is imported, since some of it takes
`time.monotonic` as a default; so a simulation is a program of its own (`__main__.py`).
Outside of a run everything is as it always is.

Each simulated process has a wall clock of its own, which its context says.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

BEGIN_MS: Final = 1_750_000_000_000
"""Where the wall clocks of a run begin."""


@dataclass
class WallClock:
    """Of one machine: how far it is ahead of true time."""

    skew_ms: int = 0


@dataclass
class Clockwork:
    elapsed: Callable[[], float]
    """Virtual seconds since the run began."""
    chance: random.Random
    """What takes the place of the system's randomness."""
    true: WallClock = field(default_factory=WallClock)

    def wall_ns(self) -> int:
        clock = WALL_CLOCK.get() or self.true
        return (BEGIN_MS + clock.skew_ms) * 1_000_000 + int(self.elapsed() * 1e9)


WALL_CLOCK: ContextVar[WallClock | None] = ContextVar("wall clock", default=None)
_running: list[Clockwork] = []
_real_urandom = os.urandom


def install() -> None:
    """Put ourselves between the program and its clocks.

    Raises:
        RuntimeError: the product is imported already, and may have taken the real ones.
    """
    if "bottomless" in sys.modules:
        raise RuntimeError("clocks are to be replaced before the product is imported")
    ours: dict[str, Callable[[Clockwork], float]] = {
        "time": lambda work: work.wall_ns() / 1e9,
        "time_ns": Clockwork.wall_ns,
        "monotonic": lambda work: work.elapsed(),
        "monotonic_ns": lambda work: int(work.elapsed() * 1e9),
        "perf_counter": lambda work: work.elapsed(),
        "perf_counter_ns": lambda work: int(work.elapsed() * 1e9),
    }
    for name, read in ours.items():
        setattr(time, name, _either(getattr(time, name), read))
    os.urandom = _urandom
    random._urandom = _urandom  # type: ignore[attr-defined]


def _either(
    real: Callable[[], object], ours: Callable[[Clockwork], object]
) -> Callable[[], object]:
    return lambda: ours(_running[-1]) if _running else real()


def _urandom(size: int, /) -> bytes:
    return _running[-1].chance.randbytes(size) if _running else _real_urandom(size)


@contextmanager
def running(clockwork: Clockwork, seed: object) -> Iterator[None]:
    """Let a run have its own time and chance until it ends."""
    before = random.getstate()
    random.seed(f"{seed} shared")
    _running.append(clockwork)
    try:
        yield
    finally:
        _running.pop()
        random.setstate(before)
