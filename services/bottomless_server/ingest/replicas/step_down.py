"""Give streams away that cannot go on here although this node lives: nobody else may claim them.

Either their owner is cut off from the other nodes, and not from coordination.

A round that too few nodes have is held, and nobody is let go below the floor. If the nodes in sync live,
and only this one does not reach them, one of them may reach the others. It finds itself named as the
home when it looks at a stream whose owner is silent. What is there after a crash at each step says
transfers.py; the round that is held is given up, and its callers know that its outcome is unknown.

A node that died just before has a lease for a while, and a stream that is given to it has no owner until
that is over. So a round waits for the length of a lease at least: whoever has one then, has renewed it
since the round was sent.

Or the disk of this node does not let it open or write a log, for so long or for good. The nodes in sync
have everything that was acknowledged.

How often a stream is given away, `node/core/giving_away.py` decides. That is in memory alone.
"""

import asyncio
from typing import Final

import structlog

from bottomless.errors import StoreError
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.replicas.transfers import Transfers
from bottomless_server.node.core.giving_away import GivingAway
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.lease import Clocks
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless

log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 1.0
_GIVEN_COUNT: Final = 16
"""Streams that are given away at once: each waits for a moment for its round."""


class StepDown:
    """Looks at the streams of this node, and gives those away that cannot go on here."""

    def __init__(
        self,
        transfers: Transfers,
        streams: OwnedStreams,
        clocks: Clocks,
        *,
        after_ms: int,
        lease_ms: int,
    ) -> None:
        """`after_ms`: how long a round waits for other nodes, or a disk fails, before a stream is given
        away; a round for `lease_ms` at least, for which coordination keeps the lease of a node."""
        self._transfers = transfers
        self._streams = streams
        self._clocks = clocks
        self._after_ms = after_ms
        self._lease_ms = lease_ms
        self._tried = GivingAway()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.create_task(endless("ingest-step-down", self._step), name="step-down")

    async def stop(self) -> None:
        """Give nothing more away."""
        if self._task is not None:
            await end_tasks(self._task)

    async def _step(self) -> float:
        await self.look()
        return _LOOK_SECONDS

    async def look(self) -> None:
        """Give those streams away that have waited for too long."""
        now, patience = self._clocks.elapsed(), max(self._after_ms, self._lease_ms)
        self._tried.forget_old(now)
        late = [
            appender.stream_id
            for appender in self._streams.opened()
            if (since := appender.waiting_since) is not None
            # Of a node that has more nothing is waited for: it is not sent anything.
            and (now - since >= patience or appender.ahead)
        ]
        due = [
            one
            for one in dict.fromkeys([*late, *self._streams.failing(self._after_ms)])
            if self._tried.may_give(one, now)
        ]
        room = asyncio.Semaphore(_GIVEN_COUNT)
        await asyncio.gather(*(self._give(stream_id, room) for stream_id in due))

    async def _give(self, stream_id: StreamId, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                has_more = False
                if self._streams.owns(stream_id):
                    has_more = await self._transfers.step_down(stream_id)
                else:
                    await self._transfers.give_unopened(stream_id)
            except (StoreError, Refused) as error:
                self._tried.failed(stream_id, self._clocks.elapsed())
                if is_others(error) and await self._streams.leave_to_owner(stream_id):
                    log.info("a damaged log is left to its owner", stream_id=stream_id)
                else:
                    log.warning("a stream stays here", stream_id=stream_id, error=str(error))
            else:
                self._tried.given(stream_id, self._clocks.elapsed(), has_more=has_more)


@guard("no failing of streams that are another node's")
def is_others(error: StoreError | Refused) -> bool:
    """Whether a stream was not given away because it is not this node's."""
    return isinstance(error, Refused) and error.refusal is Refusal.NOT_HOME
