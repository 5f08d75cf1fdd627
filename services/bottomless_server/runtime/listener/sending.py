"""What is sent on one connection, and since when its client takes nothing of it."""

import asyncio
from collections.abc import Callable

from bottomless_server.runtime.listener.gathered import Gathered


class Sending:
    def __init__(
        self,
        transport: asyncio.Transport,
        note_written: Callable[[int], None],
        now: Callable[[], float],
    ) -> None:
        """`note_written` is told of all bytes that go out; `now` is the clock of the loop."""
        self._transport = transport
        self._note_written = note_written
        self._now = now
        self._written = self._taken = 0
        self.stuck_seconds = 0.0
        """How long something has been waiting while nothing was taken."""
        self.took_at = now()
        """When the client last took something, or nothing waited for it."""

    def write(self, data: bytes | Gathered) -> None:
        """Send; what waits to be taken is counted. Nothing is sent to who has gone, which
        the loop would take for a bug."""
        if self._transport.is_closing():
            return
        self._written += len(data)
        if isinstance(data, Gathered):
            self._transport.writelines(data.views)
        else:
            self._transport.write(data)
        self._note_written(len(data))

    def look(self, seconds: float) -> int:
        """Count the time; returns the bytes that wait to be sent."""
        waiting = self._transport.get_write_buffer_size()
        taken = self._written - waiting
        if not waiting or taken != self._taken:
            self._taken, self.stuck_seconds = taken, 0.0
            self.took_at = self._now()
        else:
            self.stuck_seconds += seconds
        return waiting
