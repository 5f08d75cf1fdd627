"""Wait for a fact that only asking tells."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

_PAUSE_SECONDS: Final = 0.2


async def wait_until(fact: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Ask until it is so, or until `seconds` are over; asks at least once."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not await fact():
        left = deadline - loop.time()
        if left <= 0:
            return False
        await asyncio.sleep(min(left, _PAUSE_SECONDS))
    return True
