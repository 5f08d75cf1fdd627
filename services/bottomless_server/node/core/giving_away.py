"""Decide when a stream may be given away again that cannot go on at this node.

Only `ingest/replicas/step_down.py` asks. The fault may lie with the other nodes, and two nodes of which
neither can go on would give a stream to each other for ever: each time appends wait, and a round is given
up. So whoever gave a stream away keeps it the longer the oftener it comes back, up to an hour. A stream is
given at once a minute to a node that has more than this one: nobody else can go on with it, and that node
keeps it longer each time. What failed before the record was changed is tried again soon.

Times are milliseconds of the monotonic clock.
"""

from dataclasses import dataclass
from typing import Final

from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.names import StreamId

REST_MS: Final = 60_000
REST_MS_MAX: Final = 3_600_000
"""How long a stream stays that was given away: twice as long each time that it comes back."""
FAILED_MS: Final = 5_000
FAILED_MS_MAX: Final = 60_000
"""How long after it could not be given away, and twice as long each time that this fails again."""


@dataclass(frozen=True, slots=True)
class _Tried:
    again_at: int
    until: int
    """Until when it is remembered how often it was given away."""
    given: int = 0
    failures: int = 0


class GivingAway:
    """The streams that this node gave away, or tried to; no more than lie on its disk."""

    def __init__(self) -> None:
        self._streams: dict[StreamId, _Tried] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def may_give(self, stream_id: StreamId, now: int) -> bool:
        """Whether a stream may be given away now."""
        one = self._streams.get(stream_id)
        return one is None or now >= one.again_at

    def given(self, stream_id: StreamId, now: int, *, has_more: bool) -> None:
        """Note that a stream was given away; `has_more`: to a node that has more than this one."""
        before = self._streams.get(stream_id)
        times = 0 if before is None else before.given
        rest = REST_MS if has_more else rest_after(times)
        times += not has_more
        # Not forgotten in the moment in which it may be given again.
        self._streams[stream_id] = _Tried(now + rest, now + rest + REST_MS_MAX, times)

    def failed(self, stream_id: StreamId, now: int) -> None:
        """Note that a stream could not be given away, and is still here."""
        before = self._streams.get(stream_id, _Tried(now, now))
        rest = int(backoff(before.failures, FAILED_MS, FAILED_MS_MAX))
        until = max(before.until, now + rest + FAILED_MS_MAX)
        self._streams[stream_id] = _Tried(now + rest, until, before.given, before.failures + 1)

    def forget_old(self, now: int) -> None:
        """Forget streams that were not given away for long."""
        self._streams = {key: one for key, one in self._streams.items() if now < one.until}


@guard("a longer stay each time that a stream comes back")
def rest_after(times: int) -> int:
    """How long a stream stays here that was given away so often before, in ms."""
    return int(backoff(times, REST_MS, REST_MS_MAX))
