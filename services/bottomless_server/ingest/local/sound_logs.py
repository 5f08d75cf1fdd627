"""Remember which logs here were read whole since the process began, and so need not be read again.

Recovery believes an index below the place up to which all was synced, so a node that was started again may
have a chunk that went bad without knowing it. Others in sync have the same chunk, and one of them can go
on. So such a log is read before it counts for anything: before its owner is told what it holds
(ingest/replicas/log_opener.py), and before this node goes on with its stream, whoever owned that last. What
comes to it later was verified on its way or made here, so it is not read again in this life of the process.

Nothing is written here. It is in memory alone: after a restart every log is read once more.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from cachetools import LRUCache

from bottomless.guards import guard
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.runtime.base.on_loop import in_thread

T = TypeVar("T")

READ_COUNT: Final = 4
"""Logs that are read whole at once: each takes a thread, maybe for seconds, and rounds have the others."""
_COUNT_MAX: Final = 100_000
"""Streams that are remembered; another one is read once more."""


class SoundLogs:
    """The logs that were read whole here since the process began, and of which nothing was bad."""

    def __init__(self) -> None:
        self._known: LRUCache[StreamId, bool] = LRUCache(_COUNT_MAX)
        self._room = asyncio.Semaphore(READ_COUNT)

    def note(self, stream_id: StreamId) -> None:
        """Note that all of a log is good: it was read whole, or nothing lay here."""
        self._known[stream_id] = True

    def forget(self, stream_id: StreamId) -> None:
        """Note that a log is damaged."""
        self._known.pop(stream_id, None)

    async def in_turn(self, executor: Executor, read: Callable[[], T]) -> T:
        """What a call returns, or raises, that reads all of a log; it runs in a thread of `executor`, with few
        others beside it. As many wait as logs are opened at once."""
        async with self._room:
            return await in_thread(executor, read)

    def is_known(self, stream_id: StreamId) -> bool:
        """Whether nothing was bad, when all of a log was read."""
        return stream_id in self._known


@guard("the checksums of a log before this node goes on with it")
def is_read_before_it_goes_on(record: StreamRecord | None, mine: NodeId) -> bool:
    """Whether a log has to be read whole before its stream is claimed: another node has everything too, and
    can go on where it is damaged here."""
    return record is not None and any(node != mine for node in record.in_sync)
