"""Streams that are set aside: their chunks are damaged, or cannot be uploaded.

Each time that a stream fails again it waits for twice as long. Meanwhile rounds pass it over, so that
it costs the others nothing.
"""

from typing import Final, NamedTuple

from bottomless.model.backoff import backoff
from bottomless.model.names import StreamId

COUNT_MAX: Final = 10_000
"""Streams that are remembered; beyond, the one that failed longest ago is tried again sooner."""
_SECONDS_FIRST: Final = 1.0
_SECONDS_MAX: Final = 60.0


class _SetAside(NamedTuple):
    until: int
    failure_count: int


class AsideStreams:
    """Which streams rounds pass over, and until when. Times are of a clock that never goes back."""

    def __init__(self) -> None:
        self._streams: dict[StreamId, _SetAside] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def set_aside(self, stream_id: StreamId, now: int) -> int:
        """Set a stream aside because it failed; returns until when."""
        before = self._streams.pop(stream_id, _SetAside(0, 0))
        wait = backoff(before.failure_count, _SECONDS_FIRST, _SECONDS_MAX)
        after = _SetAside(now + int(wait * 1_000), before.failure_count + 1)
        self._streams[stream_id] = after
        if len(self._streams) > COUNT_MAX:
            del self._streams[next(iter(self._streams))]
        return after.until

    def until(self, stream_id: StreamId, now: int) -> int | None:
        """Until when a stream is to be passed over; None if it is not, or not any more."""
        found = self._streams.get(stream_id)
        return None if found is None or found.until <= now else found.until

    def was_until(self, stream_id: StreamId) -> int:
        """Until when a stream is or was set aside; 0 of one that is not known."""
        found = self._streams.get(stream_id)
        return 0 if found is None else found.until

    def is_known(self, stream_id: StreamId) -> bool:
        """Whether a stream failed, and was not well since."""
        return stream_id in self._streams

    def clear(self, stream_id: StreamId) -> None:
        """Note that a stream is well, or gone."""
        self._streams.pop(stream_id, None)
