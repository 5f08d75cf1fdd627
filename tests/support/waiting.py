"""Wait for a fact, with a deadline: never for a time."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(fact: Callable[[], T | None], seconds: float = 240, what: str = "the fact") -> T:
    """Ask until the answer is true and return it; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    never = threading.Event()
    while not (answer := fact()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        never.wait(0.02)
    return answer


async def eventually(fact: Callable[[], object], seconds: float = 240) -> None:
    """Let everything else in this loop go on until the answer is true; fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while not fact():
            await asyncio.sleep(0.002)
