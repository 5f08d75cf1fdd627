"""Know where a stream ends without asking all the time.

Spark asks an idle streaming query for the end some eighty times a second, and once more each time
for its progress report. All of that is answered from one place: a request is made at most every
quarter of a second, and while nothing is new it waits at the reader until something is.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from bottomless.model.names import StreamId

if TYPE_CHECKING:
    from bottomless.client import Offsets

SPACING_SECONDS: Final = 0.25
"""The least time between the beginnings of two requests."""
WAIT_MS: Final = 500
"""How long a request waits for news: also how much later a query notices that it is to stop."""

Ask = Callable[[dict[str, int]], dict[str, Any]]
"""Asks for the members of `GET …/offsets` with this query."""


class Tip:
    """The end of one stream, as a streaming query knows it."""

    def __init__(self, ask: Ask, now: Callable[[], float], *, tail: bool) -> None:
        """`tail` says whether what is not in object storage yet counts."""
        self._ask = ask
        self._now = now
        self._tail = tail
        self._asked_at = 0.0
        self._known: Offsets | None = None

    @property
    def known(self) -> "Offsets | None":
        """The answer to the last request, however long ago; None before the first."""
        return self._known

    def end(self, offsets: "Offsets") -> int:
        """Choose the end (exclusive) that the query reads to, with the tail or without it."""
        return offsets.next_offset if self._tail else offsets.object_store_next_offset

    def refresh(self) -> "Offsets":
        """Ask for the stream's bounds now."""
        return self._request({})

    def recent(self) -> "Offsets":
        """Give the stream's bounds, which are at most a quarter of a second old."""
        if self._known is None or self._now() - self._asked_at >= SPACING_SECONDS:
            return self.refresh()
        return self._known

    def beyond(self, offset: int) -> "Offsets":
        """Wait until the stream has something at `offset`, or half a second; returns its bounds."""
        known = self._known
        if known is None or self.end(known) > offset:
            return self.recent()
        if self._now() - self._asked_at < SPACING_SECONDS:
            return known
        return self._request({"wait_ms": WAIT_MS, "after": known.next_offset})

    def _request(self, query: dict[str, int]) -> "Offsets":
        self._asked_at = self._now()
        value = self._ask(query)
        from bottomless.client import Offsets  # noqa: PLC0415  # executors have no library for it

        self._known = Offsets(
            StreamId(value["stream_id"]),
            value["first_offset"],
            value["next_offset"],
            value["object_store_next_offset"],
        )
        return self._known
