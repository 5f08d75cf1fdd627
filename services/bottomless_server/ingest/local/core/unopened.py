"""Streams that lie on this disk and are not open, and when each is to be tried again.

A stream may be refused for a moment: coordination does not answer, or the disk fails. Until it is
open nothing of it is uploaded, and perhaps nobody ever touches it again. So it is tried again, at
first at once and then ever more rarely, for as long as it lies here.

local/streams.py asks and tells it. Times are in ms of a clock that never goes back.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.names import StreamId

WAIT_MS_MIN: Final = 500
WAIT_MS_MAX: Final = 30_000
"""Each try reads the end of a log and asks coordination, and thousands may be refused at once."""


class _Try(NamedTuple):
    due_at: int
    tries: int
    """Before this one."""


class Unopened:
    """The streams that are not open; there are no more than streams on the disk."""

    def __init__(self) -> None:
        self._tries: dict[StreamId, _Try] = {}

    def __len__(self) -> int:
        return len(self._tries)

    def __iter__(self) -> Iterator[StreamId]:
        return iter(self._tries)

    def add(self, stream_id: StreamId, now: int) -> None:
        """Have a stream tried at once, unless it is known already: then it keeps its turn."""
        self._tries.setdefault(stream_id, _Try(now, 0))

    @guard("another try to open what lies on the disk")
    def due(self, now: int) -> list[StreamId]:
        """The streams that are to be tried now."""
        return [stream_id for stream_id, next_try in self._tries.items() if next_try.due_at <= now]

    def begin_try(self, stream_id: StreamId, now: int) -> None:
        """Note that a stream is being tried: unless it is dropped, the next try waits for longer."""
        tries = self._tries[stream_id].tries if stream_id in self._tries else 0
        wait_ms = int(backoff(tries, WAIT_MS_MIN, WAIT_MS_MAX))
        self._tries[stream_id] = _Try(now + wait_ms, tries + 1)

    def drop(self, stream_id: StreamId) -> None:
        """Forget a stream that is open, or that is not for this node to open."""
        self._tries.pop(stream_id, None)
