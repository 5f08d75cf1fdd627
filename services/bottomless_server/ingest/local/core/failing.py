"""Streams whose logs this node's disk does not let it open or write, and for how long that has been so.

Of a stream that other nodes hold too one of them may go on with it (replicas/step_down.py). A single
failure says little: a log is opened anew after a failed sync, and is good again. So it counts when it
comes back after a while and nothing was written in between; damage counts at once.

local/streams.py tells it. Times are in ms of a clock that never goes back.
"""

from typing import NamedTuple

from bottomless.model.names import StreamId


class _Failures(NamedTuple):
    first: int
    last: int
    for_good: bool


class FailingLogs:
    """The streams that fail here; there are no more than streams on the disk."""

    def __init__(self) -> None:
        self._failures: dict[StreamId, _Failures] = {}

    def failed(self, stream_id: StreamId, now: int, *, for_good: bool = False) -> None:
        """Note a failure; `for_good`: another try would end in the same way."""
        before = self._failures.get(stream_id)
        first = now if before is None else before.first
        self._failures[stream_id] = _Failures(first, now, for_good)

    def drop(self, stream_id: StreamId) -> None:
        """Forget a stream, of which something was written since, or that is not this node's."""
        self._failures.pop(stream_id, None)

    def lasting(self, ms: int) -> list[StreamId]:
        """The streams that have failed for so long, or for good."""
        return [
            stream_id
            for stream_id, one in self._failures.items()
            if one.for_good or one.last - one.first >= ms
        ]
