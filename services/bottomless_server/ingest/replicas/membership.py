"""How many nodes hold a stream, and which are to go: the owner takes others in, or lets some go.

The number is that of the configuration, which changes while a stream is open. Who comes holds nothing
yet, and is admitted once it has everything; who goes is evicted first, if it is in sync. A member without
a lease for long is replaced, and one of which an operator says so: another one is taken in and has
everything before that one goes, so that no disk is given up that may still be needed.

A member that is out of sync, and of which nothing more was heard for as long, does not catch up, whether it
lives or not, as one with a bad disk. Another node is taken in beside it, and it goes once that one has
everything. Where it was itself taken in for somebody who goes, the other one comes in its place at once: then
nothing is there that only it has.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from bottomless.guards import guard
from bottomless.model.config import StreamConfig
from bottomless.model.limits import REPLICA_COUNT_MAX
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.node.core.replica_waits import Do, Holders, Step
from bottomless_server.protocol.replica import Place

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
        self._halted: dict[NodeId, _Halted] = {}
        """Members that are out of sync, also while they have no lease."""
        self._stalled: frozenset[NodeId] = frozenset()
        """Members that are out of sync, and of which nothing more was heard for too long."""
        self._tried: dict[NodeId, None] = {}
        """Nodes that went since they did not catch up, the last one last: others are chosen first."""
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
        for node in sorted(self._stalled.intersection(gone)):
            self._tried.pop(node, None)
            self._tried[node] = None
        self._asked -= set(gone)
        self._going -= set(gone)
        self._stalled -= set(gone)
        for node in gone:
            self._halted.pop(node, None)

    def looked(
        self,
        away: Collection[NodeId],
        now: int,
        replace_ms: int,
        lacking: Mapping[NodeId, Place | None] | None = None,
    ) -> None:
        """Note which members have no lease, and where the logs end of those that lack something, None where
        nobody knows now; who had no lease for `replace_ms`, or lives and got nothing for so long, is replaced.
        Times are milliseconds of the monotonic clock."""
        before, self._halted = self._halted, {}
        for node, end in (lacking or {}).items():
            known = before.get(node)
            self._halted[node] = _Halted(end, now) if known is None else known.heard(end, now)
        self._stalled = frozenset(
            node
            for node, one in self._halted.items()
            if node not in away and is_stalled(now - one.since, replace_ms)
        )
        self._away = {node: self._away.get(node, now) for node in away}
        late = {node for node, since in self._away.items() if now - since >= replace_ms}
        self._going = frozenset(self._asked | late)

    def stalled(self, holders: Holders) -> tuple[NodeId, ...]:
        """Members that live and do not catch up, whether or not another node could take their place."""
        return tuple(
            node
            for node in holders.members
            if node in self._stalled and node not in holders.counted
        )

    def is_right(self, holders: Holders) -> bool:
        """Whether as many hold the stream as are to, and all of them are to."""
        lacks = len(holders.members) < self.wanted and self._choose is not None
        goes = bool(self._leaving(holders) or self._stuck(holders)) and self._choose is not None
        return not lacks and not goes and len(holders.members) <= self.wanted

    async def next(self, holders: Holders) -> tuple[NodeId, ...] | Step | None:
        """The members as they are to be next, or who is evicted before that; None if nothing can be done.

        Raises:
            Unavailable: coordination does not answer.
        """
        count, leaving, stuck = len(holders.members), self._leaving(holders), self._stuck(holders)
        if stuck and (count > self.wanted or count == REPLICA_COUNT_MAX):
            other = await self._in_place_of(stuck[-1], holders)
            if other is not None:
                return other
        if count > self.wanted:
            return self._fewer(holders)
        if count < self.wanted:
            return await self._more(holders, self.wanted)
        if leaving and count == REPLICA_COUNT_MAX:
            return _without(holders, leaving[-1])
        return await self._more(holders, self.wanted + 1) if leaving or stuck else None

    async def _in_place_of(self, stuck: NodeId, holders: Holders) -> tuple[NodeId, ...] | None:
        """The members with another node in the place of one that does not catch up; None where enough others
        are to stay, or there is no other node."""
        out = {*self._going, *self._stuck(holders)}
        if len(set(holders.members) - out) >= self.wanted:
            return None
        more = await self._more(holders, len(holders.members) + 1)
        return None if more is None else tuple(node for node in more if node != stuck)

    def _fewer(self, holders: Holders) -> tuple[NodeId, ...] | Step | None:
        others = [node for node in holders.members if node != holders.mine]
        leaving, stuck = self._leaving(holders), self._stuck(holders)
        if (leaving or stuck) and len(holders.members) <= self.wanted + len(leaving) + len(stuck):
            are_enough = len(set(holders.members) - {*leaving, *stuck}) >= self.wanted
            # Who lacks something goes before who has everything.
            leaving += stuck if are_enough else []
            joining = [node for node in others if node not in (*holders.counted, *leaving)]
            return _without(holders, leaving[-1]) if leaving and may_leave(joining) else None
        out = [node for node in others if node not in holders.counted]
        return _without(holders, (out or others)[-1])

    async def _more(self, holders: Holders, wanted: int) -> tuple[NodeId, ...] | None:
        if self._choose is None:
            return None
        config = self._record.config
        left_out = [node for node in self._tried if node not in holders.members]
        while True:
            replicas = wanted + len(left_out)
            replication = config.replication.model_copy(update={"replicas": replicas})
            asked = replace(
                self._record, config=config.model_copy(update={"replication": replication})
            )
            found = await self._choose(asked, (*holders.members, *left_out))
            if found:
                return (*holders.members, *found)
            if not left_out:
                return None
            # Where there is nobody else they come again in their turn: one may have been mended since.
            del left_out[0]

    def _leaving(self, holders: Holders) -> list[NodeId]:
        """Members to be replaced, those first that are in sync: the others go before them."""
        leaving = [node for node in holders.members if node in self._going and node != holders.mine]
        return sorted(leaving, key=lambda node: node not in holders.counted)

    def _stuck(self, holders: Holders) -> list[NodeId]:
        """Members that do not catch up, and that nobody wants replaced for another reason."""
        return [
            node
            for node in holders.members
            if node in self._stalled and node not in (*holders.counted, *self._going)
        ]

    @property
    def wanted(self) -> int:
        """How many nodes are to hold the stream now."""
        return max(self.replicas, 2) if self._gives_way else self.replicas

    @property
    def replicas(self) -> int:
        """How many nodes are to hold the stream by its configuration."""
        return self._record.config.replication.replicas


class _Halted(NamedTuple):
    end: Place | None
    """Where its log ended when that was known last; None: it never was."""
    since: int

    def heard(self, end: Place | None, now: int) -> "_Halted":
        """What is known after one look more. That nobody knows where a log ends is no news of it: it was to
        be opened anew, as after each body that had no answer."""
        return self if end in (None, self.end) else _Halted(end, now)


@guard("another node for one that does not catch up")
def is_stalled(silent_ms: int, replace_ms: int) -> bool:
    """Whether a member that lives, and lacks something, is waited for no longer."""
    return silent_ms >= replace_ms


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
