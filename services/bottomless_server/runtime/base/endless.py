"""Loops that live as long as their service: no exception that nobody expected ends one.

Such a loop keeps something alive that nobody else looks after (a lease, deletions, word of what
is published). If it ended the process would live on without it, and nobody would start it again.
So whatever a step raises beyond what it handles itself is a bug: it is logged with its traceback
and counted (`bottomless_loop_failures_total`, an alarm), and the loop goes on after a pause that
grows while the failures last. Being cancelled ends it, as always.

`tests/unit/test_endless_loops.py` finds every endless loop of the services and holds it to this.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from bottomless.guards import guard
from bottomless.model.backoff import backoff

log = structlog.get_logger(__name__)

PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 30.0

Step = Callable[[], Awaitable[float | None]]
"""Does one round; returns after how many seconds comes the next one, or None if there is none."""

_failures: dict[str, int] = {}


@guard("the last resort of lasting loops")
async def endless(loop: str, step: Step, *, pause_seconds_max: float = PAUSE_SECONDS_MAX) -> None:
    """Do `step` again and again, until it says that it is done or this is cancelled.

    `loop` is what it is called in the log and the metric: one of few names.
    """
    _failures.setdefault(loop, 0)
    longest = min(pause_seconds_max, PAUSE_SECONDS_MAX)
    failures = 0
    while True:
        try:
            seconds = await step()
            failures = 0
        except Exception:
            _failures[loop] += 1
            log.exception("a loop met a bug and goes on", loop=loop)
            seconds = backoff(failures, PAUSE_SECONDS_MIN, longest)
            failures += 1
        if seconds is None:
            return
        await asyncio.sleep(seconds)


def loop_failures() -> Mapping[str, int]:
    """How often a step of each loop of this process failed as nobody expected."""
    return _failures
