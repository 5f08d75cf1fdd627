"""Ask the nodes that a stream may be given to whether their logs of it are good, before it stands still.

A node reads all of its log for that, unless it has since it was started, or says nothing since it is stopped,
or its disk hangs. So no node is waited for as long as another one may answer: that is asked too a moment
later. And where many streams are given away, what one question has shown of a node counts for the next.

Nothing is changed by a question, and nothing is kept beyond the streams that are given away together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import structlog

from bottomless.errors import Code, StoreError
from bottomless.model.names import NodeId, StreamId
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.replica_records import Target
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.on_loop import loop_time

log = structlog.get_logger(__name__)

NEXT_SECONDS: Final = 1.0
"""After so long without a word of those who were asked the next node is asked too."""

Ask = Callable[[NodeId, StreamId], Awaitable[None]]
"""Returns when a node has said what it holds of a stream; raises what it answered, or `peer-unavailable`."""


class Asking:
    """The questions about streams that are given away together, and what they have shown of nodes."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._heard_at: dict[NodeId, float] = {}
        self.slow: set[NodeId] = set()
        """Nodes that let somebody wait for a moment, and have said nothing since: others are asked before them."""
        self.silent: set[NodeId] = set()
        """Nodes that answered nothing at all for as long as a question waits: they are asked no more."""

    async def readable_first(
        self,
        stream_id: StreamId,
        targets: Sequence[Target],
        live: Collection[NodeId],
        unfit: Collection[NodeId],
    ) -> Sequence[Target]:
        """The nodes that a stream may be given to, with one first that has read all of its log, if any has.
        Those whose logs are damaged are left out. They are asked in their order, and one that is `unfit`
        only when nobody else may answer any more.

        Raises:
            Refused: `not-in-sync`: the logs of all of them are damaged.
        """
        left = list(targets)
        waiting = [one for one in targets if one.node_id in live and one.node_id not in self.silent]
        asked: dict[asyncio.Task[StoreError | None], Target] = {}
        try:
            while waiting or asked:
                began_at = loop_time()
                if waiting and (not asked or waiting[0].node_id not in unfit):
                    target = waiting.pop(0)
                    asked[asyncio.create_task(self._answer(target.node_id, stream_id))] = target
                is_next = bool(waiting) and waiting[0].node_id not in unfit
                pause = NEXT_SECONDS if is_next else None
                done, _ = await asyncio.wait(
                    asked, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    self._note_slow(asked.values(), began_at)
                for task in done:
                    target, error = asked.pop(task), task.result()
                    if error is None:
                        left.remove(target)
                        return [target, *left]
                    if error.code is Code.STORAGE_FAILED:
                        left.remove(target)
        finally:
            await end_tasks(*asked)
        if targets and not left:
            raise Refused(Refusal.NOT_IN_SYNC)
        return left

    async def _answer(self, node: NodeId, stream_id: StreamId) -> StoreError | None:
        began_at = loop_time()
        try:
            await self._ask(node, stream_id)
        except StoreError as error:
            # Of another one nobody knows; it is given the stream where no other one says more.
            log.warning(
                "a node has not read its log", node=node, stream_id=stream_id, error=str(error)
            )
            if error.code is not Code.PEER_UNAVAILABLE:
                self._hear(node)
            elif not self._has_said(node, began_at):
                self.silent.add(node)
            return error
        self._hear(node)
        return None

    def _hear(self, node: NodeId) -> None:
        self._heard_at[node] = loop_time()
        self.slow.discard(node)
        self.silent.discard(node)

    def _has_said(self, node: NodeId, since: float) -> bool:
        """Whether a node has answered a question about any stream: it may have many logs to read."""
        return self._heard_at.get(node, -1.0) >= since

    def _note_slow(self, targets: Collection[Target], since: float) -> None:
        self.slow.update(one.node_id for one in targets if not self._has_said(one.node_id, since))
