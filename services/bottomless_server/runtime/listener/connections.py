"""All connections of one listener: the bounds that they have, each and together.

Uvicorn bounds neither the time nor the bytes of a connection. Here clocks are not set by
request, which would cost every one of them: a listener looks at its connections about once
a second, and each adds the time since the last look to what it has spent in its state.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from bottomless.model.limits import KIB, MIB
from bottomless_server.runtime.base.settings import CommonSettings

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 1.0
_ROOM_AFTER_CUT: Final = 7 / 8
"""The share of the bound on waiting bytes down to which connections are cut, so that not every
write cuts."""


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """What an operator may set of connections; base/settings.py has the reasons."""

    head_seconds: float = 15.0
    body_seconds: float = 60.0
    body_stall_seconds: float = 15.0
    idle_seconds: float = 75.0
    send_stall_seconds: float = 90.0
    head_bytes_max: int = 64 * KIB
    header_count_max: int = 100
    body_bytes_max: int = 512 * MIB
    send_bytes_max: int = 256 * MIB
    connection_count_max: int = 10_000

    @property
    def look_seconds(self) -> float:
        """Often enough that the shortest of the times is kept within a quarter of it."""
        times = (self.head_seconds, self.body_seconds, self.body_stall_seconds)
        shortest = min(*times, self.idle_seconds, self.send_stall_seconds)
        return min(LOOK_SECONDS, shortest / 4)


def http_bounds(settings: CommonSettings, connection_count_max: int) -> HttpBounds:
    """The bounds that settings say; so many connections as this process can have."""
    return HttpBounds(
        head_seconds=settings.http_head_seconds,
        body_seconds=settings.http_body_seconds,
        body_stall_seconds=settings.http_body_stall_seconds,
        idle_seconds=settings.http_idle_seconds,
        send_stall_seconds=settings.http_send_stall_seconds,
        head_bytes_max=settings.http_head_bytes_max,
        header_count_max=settings.http_header_count_max,
        body_bytes_max=settings.http_body_bytes_max,
        send_bytes_max=settings.http_send_bytes_max,
        connection_count_max=min(settings.http_connection_count_max, connection_count_max),
    )


class Watched(Protocol):
    """One connection, as far as it is looked at."""

    @property
    def took_at(self) -> float:
        """When its client last took something, or nothing waited for it; on the loop's clock."""
        ...

    def look(self, seconds: float) -> int:
        """Count the time; end what is over its own bounds. Returns the bytes that wait to be sent."""
        ...

    def cut_off(self, why: str) -> None:
        """Drop it, with all that waits."""
        ...


@dataclass(eq=False)
class Connections:
    """The connections of one listener."""

    bounds: HttpBounds
    body_bytes: int = 0
    """Bytes of bodies of requests that have no answer yet."""
    ended: Counter[str] = field(default_factory=Counter)
    """How many were ended by a bound, by which."""
    _open: set[Watched] = field(default_factory=set)
    _waiting: int = 0
    """Bytes that wait to be sent, at most: nothing that was taken since the last look is out."""
    _shown: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Watched]:
        return iter(self._open)

    @property
    def waiting_bytes(self) -> int:
        return self._waiting

    def add(self, connection: Watched) -> None:
        self._open.add(connection)

    def remove(self, connection: Watched) -> None:
        self._open.discard(connection)

    def cut_all(self) -> None:
        """Drop those that are left when the listener has had its time."""
        for connection in list(self._open):
            connection.cut_off("stop")

    def note_written(self, size: int) -> None:
        """Something waits to be sent. The bound on all that waits is kept here, not at a look:
        pages come faster than looks."""
        self._waiting += size
        if self._waiting > self.bounds.send_bytes_max:
            self._look(0)

    def look(self, seconds: float) -> None:
        """Do what is due; `seconds` went by since the last time."""
        self._look(seconds)
        news = self.ended - self._shown
        if news:
            self._shown = self.ended.copy()
            log.info("connections were ended by a bound", **news)

    def _look(self, seconds: float) -> None:
        waiting = {each: each.look(seconds) for each in list(self._open)}
        self._waiting = sum(waiting.values())
        if self._waiting > self.bounds.send_bytes_max:
            self._cut(waiting.items())

    def _cut(self, waiting: Iterable[tuple[Watched, int]]) -> None:
        """Cut off clients: first those that have taken nothing for longest, then those for which most
        waits."""
        by_blame = sorted(waiting, key=lambda one: (one[0].took_at, -one[1]))
        for connection, size in by_blame:
            if self._waiting <= self.bounds.send_bytes_max * _ROOM_AFTER_CUT:
                return
            if size:
                connection.cut_off("send_bytes")
                self._waiting -= size
