"""What of a request is being read, and whose time it is: the client's, or ours.

A client has a bound on the time for each part of a request, but only while it is the one to go
on. While nothing is read from it, since requests wait or a body is not taken yet, it cannot.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from bottomless_server.runtime.listener.connections import HttpBounds

LINGER_SECONDS: Final = 5.0
"""How long the rest of a body is read that nobody needs any more."""


class Reading(Enum):
    """What of a request is being read."""

    NOTHING = auto()
    """Between requests: one is being answered, or none is there."""
    HEAD = auto()
    BODY = auto()
    REST = auto()
    """Nothing counts any more; what comes is dropped."""


@dataclass(slots=True)
class ClientTime:
    """The time that the client of one connection has taken."""

    bounds: HttpBounds
    reading: Reading = Reading.NOTHING
    _seconds: float = 0.0
    """Spent in this state, while the client was the one to go on."""
    _stall_seconds: float = 0.0
    """How many of these seconds passed since something of a body came."""

    def enter(self, reading: Reading) -> None:
        self.reading = reading
        self._seconds = self._stall_seconds = 0.0

    def came(self) -> None:
        """Something of a body came."""
        self._stall_seconds = 0.0

    def is_over(
        self, seconds: float, *, asked: bool, answered: bool, is_read: bool
    ) -> Reading | None:
        """Count so many seconds; returns the state that lasted too long, if it did.

        `asked` says that a request came at all, `answered` that none waits for its answer,
        `is_read` that the client can go on.
        """
        if not self._is_the_clients(answered=answered, is_read=is_read):
            return None
        self._seconds += seconds
        self._stall_seconds += seconds
        if self._seconds >= self._seconds_max(asked=asked, answered=answered):
            return self.reading
        if self.reading is Reading.BODY and not answered:
            return Reading.BODY if self._stall_seconds >= self.bounds.body_stall_seconds else None
        return None

    def _is_the_clients(self, *, answered: bool, is_read: bool) -> bool:
        if self.reading in (Reading.NOTHING, Reading.REST):
            return answered
        return is_read or (self.reading is Reading.BODY and answered)

    def _seconds_max(self, *, asked: bool, answered: bool) -> float:
        match self.reading:
            case Reading.NOTHING:
                # A client that never said anything gets no more time than one that began to.
                return self.bounds.idle_seconds if asked else self.bounds.head_seconds
            case Reading.HEAD:
                return self.bounds.head_seconds
            case Reading.BODY if not answered:
                return self.bounds.body_seconds
            case _:
                return LINGER_SECONDS
