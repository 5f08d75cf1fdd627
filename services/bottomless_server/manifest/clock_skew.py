"""How far the clock of the object store is from ours: asked now and then, not for every stream.

Asked again when our own clock has moved by more than a minute either way, so that a clock
that was set, which is what this is about, is noticed before anything is decided by it.
"""

from collections.abc import Callable
from typing import Final

from bottomless.drives.base import Drive

_KNOWN_MS: Final = 60_000


class ClockSkew:
    def __init__(self, drive: Drive, clock: Callable[[], int]) -> None:
        self._drive = drive
        self._clock = clock
        self._asked_at: int | None = None
        self._skew_ms = 0

    async def skew_ms(self) -> int:
        """The store's time minus ours, in ms, some seconds exact.

        Raises:
            DriveUnavailable, DriveRefused
        """
        now = self._clock()
        if self._asked_at is None or abs(now - self._asked_at) >= _KNOWN_MS:
            self._skew_ms = await self._drive.clock() - now
            self._asked_at = now
        return self._skew_ms
