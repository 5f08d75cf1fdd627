"""To end tasks, also such as lose a cancellation: `end_tasks`."""

import asyncio
from typing import Any, Final

AGAIN_SECONDS: Final = 2.0
"""Longer than what a task usually does after it is cancelled: a second cancellation cuts that off."""


async def end_tasks(*tasks: asyncio.Future[Any], again_seconds: float = AGAIN_SECONDS) -> None:
    """Cancel tasks and return when they have ended; what they raise is dropped.

    One that goes on is cancelled again: a cancellation is lost where `asyncio.wait_for` has its
    result at the same moment, and where a task of a TaskGroup fails then. Whoever waits for the
    end of a loop that lost its only cancellation waits for ever.

    Who is cancelled while waiting here hears of it when they have ended, and not before: what is
    to be closed next must not be in use any more.
    """
    cancelled: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        try:
            await asyncio.wait(running, timeout=again_seconds)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            # Looked at, or the log would say that nobody did.
            task.exception()
    if cancelled is not None:
        raise cancelled
