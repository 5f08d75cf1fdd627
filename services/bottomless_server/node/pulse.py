"""Wake all tasks that wait for something to change, however many they are."""

import asyncio


class Pulse:
    """Tells of changes. Ask `next()` first, then look, then wait for that: no change is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Wake all that wait, since something has changed."""
        self._event.set()
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """An event that is set at the next `fire`."""
        return self._event


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; False if the time was over first."""
    if seconds <= 0:
        return event.is_set()
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
