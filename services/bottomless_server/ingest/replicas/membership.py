"""How many nodes hold a stream, and which are to go: the owner takes others in, or lets some go.

The number is that of the configuration, which changes while a stream is open. Who comes holds nothing
yet, and is admitted once it has everything; who goes is evicted first, if it is in sync. A member without
a lease for long is replaced, and one of which an operator says so: another one is taken in and has
everything before that one goes, so that no disk is given up that may still be needed.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Final

from bottomless.guards import guard
from bottomless.model.config import StreamConfig
from bottomless.model.limits import REPLICA_COUNT_MAX
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
        self._away: dict[NodeId, int] = {}
        """Members without a lease, each with the time at which that was seen first."""
        self._asked: set[NodeId] = set()
        """Members that somebody wants replaced."""
        self._going: frozenset[NodeId] = frozenset()
        self._gives_way = False

    def configure(self, config: StreamConfig) -> None:
        """Go by another configuration from now on."""
        self._record = replace(self._record, config=config)

    def replace(self, node: NodeId) -> None:
        """Have a member replaced, whether it lives or not."""
        self._asked.add(node)
        self._going |= {node}

    def give_way(self) -> None:
        """Have another node hold a stream of one node too, so that it may become the owner in place of this
        one. It lets this one go then, since its configuration wants one."""
        self._gives_way = True

    def forget(self, gone: Collection[NodeId]) -> None:
        """Note which nodes are no members any more; one that comes again is like any other."""
        self._asked -= set(gone)
        self._going -= set(gone)

    def looked(self, away: Collection[NodeId], now: int, replace_ms: int) -> None:
        """Note which members have no lease; who had none for `replace_ms` is replaced. Times are
        milliseconds of the monotonic clock."""
        self._away = {node: self._away.get(node, now) for node in away}
        late = {node for node, since in self._away.items() if now - since >= replace_ms}
        self._going = frozenset(self._asked | late)

    def is_right(self, holders: Holders) -> bool:
        """Whether as many hold the stream as are to, and all of them are to."""
        lacks = len(holders.members) < self.wanted and self._choose is not None
        goes = bool(self._leaving(holders)) and self._choose is not None
        return not lacks and not goes and len(holders.members) <= self.wanted

    async def next(self, holders: Holders) -> tuple[NodeId, ...] | Step | None:
        """The members as they are to be next, or who is evicted before that; None if nothing can be done.

        Raises:
            Unavailable: coordination does not answer.
        """
        if len(holders.members) > self.wanted:
            return self._fewer(holders)
        if len(holders.members) < self.wanted:
            return await self._more(holders, self.wanted)
        leaving = self._leaving(holders)
        if leaving and len(holders.members) == REPLICA_COUNT_MAX:
            return _without(holders, leaving[-1])
        return await self._more(holders, self.wanted + 1) if leaving else None

    def _fewer(self, holders: Holders) -> tuple[NodeId, ...] | Step | None:
        others = [node for node in holders.members if node != holders.mine]
        leaving = self._leaving(holders)
        if leaving and len(holders.members) <= self.wanted + len(leaving):
            joining = [node for node in others if node not in (*holders.counted, *leaving)]
            return _without(holders, leaving[-1]) if may_leave(joining) else None
        out = [node for node in others if node not in holders.counted]
        return _without(holders, (out or others)[-1])

    async def _more(self, holders: Holders, wanted: int) -> tuple[NodeId, ...] | None:
        if self._choose is None:
            return None
        config = self._record.config
        replication = config.replication.model_copy(update={"replicas": wanted})
        asked = replace(self._record, config=config.model_copy(update={"replication": replication}))
        found = await self._choose(asked, holders.members)
        return (*holders.members, *found) if found else None

    def _leaving(self, holders: Holders) -> list[NodeId]:
        """Members to be replaced, those first that are in sync: the others go before them."""
        leaving = [node for node in holders.members if node in self._going and node != holders.mine]
        return sorted(leaving, key=lambda node: node not in holders.counted)

    @property
    def wanted(self) -> int:
        """How many nodes are to hold the stream now."""
        return max(self.replicas, 2) if self._gives_way else self.replicas

    @property
    def replicas(self) -> int:
        """How many nodes are to hold the stream by its configuration."""
        return self._record.config.replication.replicas


@guard("who comes has everything before the one goes that it replaces")
def may_leave(joining: Collection[NodeId]) -> bool:
    """Whether a member that is replaced may go: not as long as another one catches up. Until then what it
    has may be what is left to go on with."""
    return not joining


def _without(holders: Holders, node: NodeId) -> tuple[NodeId, ...] | Step:
    """The members without one; one that may be in sync is evicted before."""
    if node in holders.counted:
        return Step(Do.EVICT, node)
    return tuple(one for one in holders.members if one != node)
