"""The highest that this process has seen of each tail: a store that shows less has gone back."""

from typing import Final

from bottomless.model.names import StreamId
from bottomless_server.leaderless.tail import UNSEEN, SeenTail, Tail
from bottomless_server.leaderless.tail_changes import seen_of

SEEN_COUNT_MAX: Final = 100_000
"""Streams of which it is remembered: the one that was written longest ago makes room."""


class SeenTails:
    """What the commits of this process have seen, whichever instance made them."""

    def __init__(self, count_max: int = SEEN_COUNT_MAX) -> None:
        self._count_max = count_max
        self._seen: dict[StreamId, SeenTail] = {}

    def of(self, stream_id: StreamId) -> SeenTail:
        """Tell what was seen of a tail."""
        return self._seen.get(stream_id, UNSEEN)

    def note(self, stream_id: StreamId, tail: Tail) -> None:
        """Take up a tail as a commit has left it."""
        seen = seen_of(tail, self._seen.pop(stream_id, UNSEEN))
        self._seen[stream_id] = seen
        if len(self._seen) > self._count_max:
            del self._seen[next(iter(self._seen))]
