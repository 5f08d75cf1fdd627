"""Wait for a fact, with a deadline: never for a time."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_PAUSE_SECONDS: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.5
_PAUSE_SHARE: Final = 0.05
"""Of what was waited so far: nobody waits longer for that by more than this."""


def until(fact: Callable[[], T | None], seconds: float = 240, what: str = "the fact") -> T:
    """Ask until the answer is true and return it; fails after `seconds`.

    What has taken long already is asked for less often: a question may be a request, or ten.
    """
    begun = time.monotonic()
    never = threading.Event()
    while not (answer := fact()):
        waited = time.monotonic() - begun
        assert waited < seconds, f"waited {seconds} s in vain for {what}"
        never.wait(min(max(_PAUSE_SECONDS, waited * _PAUSE_SHARE), _PAUSE_SECONDS_MAX))
    return answer


def until_later() -> None:
    """Return when what is appended has a later timestamp than all that was appended before this call: of two
    appends at once it may be the same millisecond."""
    now = time.time_ns() // 1_000_000
    until(lambda: time.time_ns() // 1_000_000 > now, what="the next millisecond")


async def eventually(fact: Callable[[], object], seconds: float = 240) -> None:
    """Let everything else in this loop go on until the answer is true; fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while not fact():
            await asyncio.sleep(0.002)
