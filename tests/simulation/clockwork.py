"""Time and chance of this whole program, in the hands of a simulation.

`install` has to come before anything of the product is imported, since some of it takes
`time.monotonic` as a default; so a simulation is a program of its own (`__main__.py`).
Outside of a run everything is as it always is.

Each simulated process has a wall clock of its own, which its context says.
"""

import os
import random
import secrets
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
    time.time = _either(time.time, lambda work: work.wall_ns() / 1e9)
    time.time_ns = _either(time.time_ns, Clockwork.wall_ns)
    for name in ("monotonic", "perf_counter"):
        setattr(time, name, _either(getattr(time, name), lambda work: work.elapsed()))
    for name in ("monotonic_ns", "perf_counter_ns"):
        nanoseconds = lambda work: int(work.elapsed() * 1e9)  # noqa: E731
        setattr(time, name, _either(getattr(time, name), nanoseconds))
    os.urandom = _urandom
    random._urandom = _urandom  # type: ignore[attr-defined]
    assert secrets.token_bytes.__module__ == "secrets"


def _either(real: Callable[[], object], ours: Callable[[Clockwork], object]) -> Callable[[], object]:
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
