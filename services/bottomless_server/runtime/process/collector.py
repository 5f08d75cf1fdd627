"""Keep the passes of Python's garbage collector short; `long_lived.py` decides when it looks at what.

Objects are set aside by `gc.freeze`. The interpreter goes on looking at young objects by itself, and
when it has done so often enough for a full pass, that pass is made here, a moment later, over what is
not set aside.

Right for every collector that the interpreter had so far. One that looks at a part of its objects at
a time (3.14.0 to 3.14.4) needs no full passes and counts towards none, so nothing is set aside there
after the start. docs/decisions/0054-what-lives-long-is-set-aside.md.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.observe.gc_pauses import timed_passes
from bottomless_server.runtime.process.long_lived import LongLived, Look

TICK_SECONDS: Final = 1.0
_PASSES_UNTIL_FULL: Final = 10
"""Passes over young objects for a full one: what the interpreter itself takes."""
_PASSES_AT_MOST: Final = 1_000
"""So many make the interpreter begin a full pass by itself: nobody has ticked for long."""


class Collector:
    """What is set aside in this process, which has one collector: there is one of these at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds and never goes back."""
        self._clock = clock
        self._long_lived = self._look_at_all()

    def tick(self) -> Look:
        """Do what is due; returns the look that was taken, if any."""
        look = self._decide()
        if look is Look.COUNT:
            too_many = self._long_lived.take_count(gc.get_freeze_count())
            look = Look.ALL if too_many else self._decide()
        if look is Look.ALL:
            self._long_lived = self._look_at_all()
        elif look is Look.NEW:
            gc.collect()
            if self._long_lived.take_new(len(gc.get_objects())):
                gc.freeze()
        return look

    def _decide(self) -> Look:
        _, _, passes = gc.get_count()
        return self._long_lived.decide(self._clock(), aged=passes >= _PASSES_UNTIL_FULL)

    def _look_at_all(self) -> LongLived:
        began = self._clock()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        now = self._clock()
        return LongLived.after_all(gc.get_freeze_count(), began, now)


@asynccontextmanager
async def short_passes() -> AsyncIterator[None]:
    """Put around a process: what its modules hold is set aside now, and the rest as it comes. A process
    that looked for no garbage while it loaded does from here on."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _PASSES_AT_MOST)
    with timed_passes():
        collector = Collector()
        gc.enable()

        async def tick() -> float:
            collector.tick()
            return TICK_SECONDS

        ticking = asyncio.create_task(endless("collector", tick), name="collector")
        try:
            yield
        finally:
            await end_tasks(ticking)
            gc.unfreeze()
            gc.set_threshold(young, middle, old)
