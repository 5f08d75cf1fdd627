"""Tell which logs of other nodes' streams were read whole, before this node goes on with one of them.

Recovery believes an index below the place up to which all was synced, so a node that was started again may
have a chunk that went bad without knowing it. Others in sync have the same chunk, and one of them can go
on. A log that was read whole since the process began, as its owner opened it, is not read again.

A stream that another node gave to this one has this node as its home before it is claimed, as has one that
this node owned when it was started again. So it is remembered which streams were another node's.

Nothing is written here. It is in memory alone: after a restart every log is read once more.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from cachetools import LRUCache

from bottomless.errors import Corrupt
from bottomless.guards import guard
from bottomless.model.names import NodeId, StreamId
from bottomless_server.ingest.local.opening import FoundHere

_COUNT_MAX: Final = 100_000
"""Streams that are remembered; another one is read once more."""


class SoundLogs:
    """The logs that were read whole here since the process began."""

    def __init__(self, is_sound: Callable[[StreamId], Awaitable[bool]]) -> None:
        """`is_sound` reads all of a log, and tells whether nothing in it is damaged."""
        self._is_sound = is_sound
        self._known: LRUCache[StreamId, bool] = LRUCache(_COUNT_MAX)
        self._others: LRUCache[StreamId, bool] = LRUCache(_COUNT_MAX)
        """Streams that another node owned since this one did."""

    def note_others(self, stream_id: StreamId) -> None:
        """Note that another node owns a stream, or gave it to this one."""
        self._others[stream_id] = True

    def note_followed(self, stream_id: StreamId) -> None:
        """Note that another node opens a log here, which may find that it is damaged by now."""
        self.note_others(stream_id)
        self._known.pop(stream_id, None)

    def note_owned(self, stream_id: StreamId) -> None:
        """Note that this node goes on with a stream."""
        self._others.pop(stream_id, None)

    def note(self, stream_id: StreamId) -> None:
        """Note that a log was read whole, and that all that came since was verified."""
        self._known[stream_id] = True

    async def require(self, stream_id: StreamId, found: FoundHere, mine: NodeId) -> None:
        """Refuse to go on with a stream of another node whose log here is damaged.

        Raises:
            Corrupt: it is damaged.
            LogBroken: it cannot be read.
        """
        was_others = stream_id in self._others
        if not is_read_before_it_goes_on(found, mine, was_others) or stream_id in self._known:
            return
        if not await self._is_sound(stream_id):
            raise Corrupt("the log of another node's stream is damaged here")
        self.note(stream_id)


@guard("the checksums of a log before another node goes on with it")
def is_read_before_it_goes_on(found: FoundHere, mine: NodeId, was_others: bool, /) -> bool:
    """Whether a log has to be read whole before its stream is claimed: other nodes have it too, and one of
    them owns the stream so far, or did and gave it to this node."""
    record = found.record
    return record is not None and bool(record.members) and (record.home != mine or was_others)
