"""Time and chance of this whole program, in the hands of a simulation.

`install` has to come before anything of the product is imported, since some of it takes
`time.monotonic` as a default; so a simulation is a program of its own (`__main__.py`).
Outside of a run everything is as it always is.

Each simulated machine has clocks of its own, and the context of a process says which: a wall
clock that may be wrong, a monotonic clock that stands still while the machine sleeps (a virtual
machine that is paused, a host that is suspended; Linux says the same of CLOCK_MONOTONIC), and a
boot clock that does not (CLOCK_BOOTTIME). A machine may also be paused so that no clock of it
sees that: then the boot clock stands still as well.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

BEGIN_MS: Final = 1_750_000_000_000
"""Where the wall clocks of a run begin."""


@dataclass
class MachineClock:
    """Of one machine. `now` is true time everywhere, in seconds since the run began."""

    skew_ms: int = 0
    """How far its wall clock is ahead of true time."""
    slept_seconds: float = 0.0
    """What its monotonic clock did not see, of the sleeps that are over."""
    unseen_seconds: float = 0.0
    """Of these, what its boot clock did not see either."""
    asleep_since: float | None = None
    unseen: bool = False
    """Whether the sleep that goes on is one that no clock of the machine sees."""

    def monotonic(self, now: float) -> float:
        return now - self.slept_seconds - self._sleeping(now)

    def boot(self, now: float) -> float:
        return now - self.unseen_seconds - (self._sleeping(now) if self.unseen else 0.0)

    def fall_asleep(self, now: float, *, unseen: bool = False) -> None:
        if self.asleep_since is None:
            self.asleep_since, self.unseen = now, unseen

    def wake(self, now: float) -> float:
        """How long it slept."""
        slept = self._sleeping(now)
        self.slept_seconds += slept
        self.unseen_seconds += slept if self.unseen else 0.0
        self.asleep_since, self.unseen = None, False
        return slept

    def _sleeping(self, now: float) -> float:
        return 0.0 if self.asleep_since is None else now - self.asleep_since


@dataclass
class Clockwork:
    elapsed: Callable[[], float]
    """Virtual seconds since the run began: true time."""
    chance: random.Random
    """What takes the place of the system's randomness."""
    true: MachineClock = field(default_factory=MachineClock)

    @property
    def machine(self) -> MachineClock:
        return MACHINE.get() or self.true

    def wall_ns(self) -> int:
        return (BEGIN_MS + self.machine.skew_ms) * 1_000_000 + int(self.elapsed() * 1e9)

    def monotonic(self) -> float:
        return self.machine.monotonic(self.elapsed())

    def clock_gettime(self, clock: int) -> float:
        if clock == time.CLOCK_BOOTTIME:
            return self.machine.boot(self.elapsed())
        return self.wall_ns() / 1e9 if clock == time.CLOCK_REALTIME else self.monotonic()


MACHINE: ContextVar[MachineClock | None] = ContextVar("machine", default=None)
_running: list[Clockwork] = []
_real_urandom = os.urandom


def install() -> None:
    """Put ourselves between the program and its clocks.

    Raises:
        RuntimeError: the product is imported already, and may have taken the real ones.
    """
    if "bottomless" in sys.modules:
        raise RuntimeError("clocks are to be replaced before the product is imported")
    ours: dict[str, Callable[..., float]] = {
        "time": lambda work: work.wall_ns() / 1e9,
        "time_ns": Clockwork.wall_ns,
        "monotonic": Clockwork.monotonic,
        "monotonic_ns": lambda work: int(work.monotonic() * 1e9),
        "perf_counter": Clockwork.monotonic,
        "perf_counter_ns": lambda work: int(work.monotonic() * 1e9),
        "clock_gettime": Clockwork.clock_gettime,
    }
    for name, read in ours.items():
        setattr(time, name, _either(getattr(time, name), read))
    os.urandom = _urandom
    random._urandom = _urandom  # type: ignore[attr-defined]


def _either(real: Callable[..., object], ours: Callable[..., object]) -> Callable[..., object]:
    return lambda *clock: ours(_running[-1], *clock) if _running else real(*clock)


def _urandom(size: int, /) -> bytes:
    if not _running or _is_import():
        return _real_urandom(size)
    return _running[-1].chance.randbytes(size)


def _is_import() -> bool:
    """Whether a module is imported just now. That happens once in a process, so what it draws is
    not of the run in which it happens to be: the next run of the same seed would not draw it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


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
