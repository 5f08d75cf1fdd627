"""How many nodes hold a stream, and how many are to: the owner takes others in, or lets some go.

The number is that of the configuration, which changes while a stream is open. Who comes holds nothing
yet, and is admitted once it has everything; who goes is evicted first, if it is in sync. A member that
is away is not replaced: only an operator knows whether its disk comes back.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Final

from bottomless.model.config import StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.node.core.replica_waits import Do, Holders, Step

Choose = Callable[[StreamRecord, Collection[NodeId]], Awaitable[tuple[NodeId, ...]]]
"""Chooses nodes to hold a stream beside those that are named, fewer than wanted where no more live."""

LOOK_SECONDS: Final = 5.0
"""How long after none was found nodes are looked for again."""


class Membership:
    """The nodes that are to hold one stream."""

    def __init__(self, record: StreamRecord, choose: Choose | None) -> None:
        """Nobody is taken in where `choose` is None."""
        self._record = record
        self._choose = choose

    def configure(self, config: StreamConfig) -> None:
        """Go by another configuration from now on."""
        self._record = replace(self._record, config=config)

    def is_right(self, holders: Holders) -> bool:
        """Whether as many hold the stream as are to."""
        lacks = len(holders.members) < self._wanted and self._choose is not None
        return not lacks and len(holders.members) <= self._wanted

    async def next(self, holders: Holders) -> tuple[NodeId, ...] | Step | None:
        """The members as they are to be next, or who is evicted before that; None if nothing can be done.

        Raises:
            Unavailable: coordination does not answer.
        """
        if len(holders.members) > self._wanted:
            others = [node for node in holders.members if node != holders.mine]
            out = [node for node in others if node not in holders.counted]
            if not out:
                return Step(Do.EVICT, others[-1])
            return tuple(node for node in holders.members if node != out[-1])
        if len(holders.members) < self._wanted and self._choose is not None:
            found = await self._choose(self._record, holders.members)
            return (*holders.members, *found) if found else None
        return None

    @property
    def _wanted(self) -> int:
        return self._record.config.replication.replicas
