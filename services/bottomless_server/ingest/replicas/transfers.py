"""Give streams to other nodes that hold them: on demand, at a drain, and where too few follow.

Before a transfer on demand, or at a drain, the other node is asked what it holds (asking.py): it reads its log
whole then, unless it has since it was started, and not while the stream stands still.

In the order of a transfer, with what a crash of this node leaves after each step:

1. nothing more is taken              the stream is this node's, and dirty
2. the last round is on all in sync   the same
3. the record names another home,     that node claims it: it is told, or finds it when it looks at a
   by one EXEC under its lease        stream whose owner is silent; if it dies first, another in sync
                                      does. The epoch is still the old one, and this node may write
                                      nothing: each of its EXECs asks for the home
4. that node is told                  the same

Requests that come meanwhile wait, and are passed on to the new owner. What fails before the EXEC has
the stream opened here again, under the next epoch. An EXEC without a reply is settled by that opening:
it writes the record, or finds the other home in it.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

import orjson
import structlog

from bottomless.errors import StoreError
from bottomless.guards import guard
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import NOBODY, StreamRecord
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.giving import Giving
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.replicas.asking import Asking
from bottomless_server.ingest.replicas.figures import ReplicaFigures
from bottomless_server.ingest.replicas.replicator import Follower
from bottomless_server.node.core.failover import heirs
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.owner import Owner
from bottomless_server.node.replica_records import Owned, ReplicaRecords, Target
from bottomless_server.protocol.held import HELD
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.transfer import TRANSFER, encode_transfer_asked

log = structlog.get_logger(__name__)

DRAIN_COUNT: Final = 16
"""Streams that are given away at once when this node drains."""
_TELL_SECONDS: Final = 10.0
"""After so long a node that was told is left to find out by itself."""
_READ_SECONDS: Final = 20.0
"""After so long a stream is given to a node though that has not said whether its log is good: it reads on,
and claims nothing before it has."""
_DRAIN_READ_SECONDS: Final = 5.0
"""A drain waits for so long for a node that reads a log: it has 20 seconds by default, and refuses appends."""
_HINT_SECONDS: Final = 1.0
"""How long a node is told that may not be reached, while other streams wait to be given away."""


class OtherNode(Follower, Protocol):
    """Another node, which is also asked."""

    async def get(self, path: str, timeout_seconds: float) -> Any:
        """Ask something and read the JSON of the answer.

        Raises:
            StoreError: as `post`.
        """
        ...


class Ways(Protocol):
    """The ways to other nodes."""

    def of(self, node: NodeId) -> OtherNode:
        """The way to a node."""
        ...

    async def url_of(self, node: NodeId) -> str | None:
        """The internal address of a node; None if it has not said so.

        Raises:
            Unavailable
        """
        ...


class Transfers:
    """Gives streams of this node to other nodes."""

    def __init__(
        self,
        owner: Owner,
        streams: OwnedStreams,
        giving: Giving,
        ways: Ways,
        figures: ReplicaFigures | None = None,
    ) -> None:
        self._figures = figures or ReplicaFigures()
        self._owner = owner
        self._streams = streams
        self._giving = giving
        self._ways = ways
        self.given_away: Callable[[StreamId], None] | None = None
        """Hears of each stream that another node is to claim, which may die before anybody follows it."""

    async def give(self, stream_id: StreamId, node: NodeId | None = None) -> NodeId:
        """Give a stream that is open here to a node in sync; with None to any that lives.

        Returns the node whose it is then, once that was told. It may not have claimed it yet.

        Raises:
            Unavailable: `not-owner`: it is not open here, or its last round is not on all nodes in
                sync; or coordination does not answer.
            Refused: `not-in-sync` or `not-live`. The stream is open here again.
        """
        return await self._give(stream_id, node, self._asking(_READ_SECONDS))

    async def _give(self, stream_id: StreamId, node: NodeId | None, asking: Asking) -> NodeId:
        appender = self._streams.find(stream_id)
        require_unbound(appender)
        record = await self._owner.load(stream_id)
        targets = fittest_first(await self._targets(record, node), appender, asking.slow)
        live = await self._owner.live_of([target.node_id for target in targets])
        unfit = () if appender is None else appender.failing
        targets = await asking.readable_first(stream_id, targets, live, unfit)
        try:
            await self._giving.hand_over(
                stream_id, lambda appender: self._transferred(appender, targets, node)
            )
        except _NotGiven as error:
            raise error.refused from error
        self._watch(stream_id)
        given = await self._owner.load(stream_id)
        if given.home is None or given.home == self._owner.node_id:
            raise not_owner()
        if given.home not in asking.silent:
            # Else it would be waited for in vain, as the questions were; it finds out by itself.
            await self._tell(stream_id, given.home)
        return given.home

    async def step_down(self, stream_id: StreamId) -> bool:
        """Give a stream to a node in sync that lives, with a round that this node cannot finish: to one that
        has more than this node, if there is any. Returns whether that has more.

        That round is on this disk, and perhaps on others: whether it is shown depends on who goes on.

        Raises:
            Unavailable, Refused: as `give`; of a stream that nobody else can have nothing is stopped.
        """
        appender = self._streams.find(stream_id)
        require_unbound(appender)
        record = await self._owner.load(stream_id)
        ahead = () if appender is None else appender.ahead
        targets = fittest_first(await self._targets(record, None), appender)
        live = await self._owner.live_of([target.node_id for target in targets])
        if not live:
            raise Refused(Refusal.NOT_LIVE)
        try:
            await self._giving.hand_over(
                stream_id, lambda appender: self._written_down(appender, targets, None)
            )
        except _NotGiven as error:
            raise error.refused from error
        home = await self._left(stream_id)
        log.warning("a stream was given up, since too few follow it here", stream_id=stream_id)
        return home in ahead

    async def give_unopened(self, stream_id: StreamId) -> None:
        """Give a stream of this node that its disk does not let it open to any node in sync that lives.

        Nothing is written here meanwhile, so whatever was acknowledged is on that node.

        Raises:
            Unavailable: `not-owner`: it is open here by now; or coordination does not answer.
            Refused: `not-home`, or `not-live`: nobody else can have it.
            Fenced: somebody claimed the stream since.
        """
        record = await self._owner.load(stream_id)
        targets = await self._targets(record, None)
        if record.home != self._owner.node_id:
            raise Refused(Refusal.NOT_HOME)
        owned = Owned(stream_id, record.epoch)
        try:
            await self._giving.give_unopened(stream_id, lambda: self._noted(owned, targets, None))
        except _NotGiven as error:
            raise error.refused from error
        await self._left(stream_id)
        log.warning("a stream was given up, since the disk here fails", stream_id=stream_id)

    async def give_all(self) -> None:
        """Give every stream away that other nodes in sync hold; those stay that nobody can take."""
        room, asking = asyncio.Semaphore(DRAIN_COUNT), self._asking(_DRAIN_READ_SECONDS)

        async def give(stream_id: StreamId) -> None:
            async with room:
                try:
                    await self._give(stream_id, None, asking)
                except (StoreError, Refused) as error:
                    log.warning("a stream stays here", stream_id=stream_id, error=str(error))

        await asyncio.gather(
            *(give(one.stream_id) for one in self._streams.opened() if one.has_replicas)
        )

    async def _targets(self, record: StreamRecord, node: NodeId | None) -> list[Target]:
        others = heirs(record) if node is None else [node]
        found = [(one, await self._ways.url_of(one)) for one in others if one != record.home]
        return [Target(one, url) for one, url in found if url is not None]

    def _asking(self, seconds: float) -> Asking:
        """Questions that wait for so long each."""

        async def ask(node: NodeId, stream_id: StreamId) -> None:
            await self._ways.of(node).get(of_stream(HELD, stream_id), seconds)

        return Asking(ask)

    async def _transferred(
        self, appender: LocalAppender, targets: Sequence[Target], node: NodeId | None
    ) -> str:
        require_all_committed(appender)
        return await self._written_down(appender, targets, node)

    async def _written_down(
        self, appender: LocalAppender, targets: Sequence[Target], node: NodeId | None
    ) -> str:
        require_unbound(appender)
        owned = Owned(appender.stream_id, appender.claim.epoch)
        return await self._noted(owned, targets, node)

    async def _noted(self, owned: Owned, targets: Sequence[Target], node: NodeId | None) -> str:
        """Have the record name another home; returns where that is reached."""
        records = ReplicaRecords(self._owner.streams, self._owner.node_id)
        try:
            if node is None or not targets:
                record = await records.step_down(owned, targets)
            else:
                record = await records.transfer(owned, targets[0])
        except Refused as error:
            raise _NotGiven(error) from error
        self._figures.transfers += 1
        return str(record.owner_url)

    async def _left(self, stream_id: StreamId) -> NodeId | None:
        """Have the node hear of it that a stream was given to; returns which it is, None if nobody knows.

        It may be one that this node does not reach: it finds out by itself, some seconds later.
        """
        self._watch(stream_id)
        self._figures.step_downs += 1
        try:
            home = (await self._owner.load(stream_id)).home
        except StoreError as error:
            log.info("a new owner was not told", stream_id=stream_id, error=str(error))
            return None
        if home not in (None, NOBODY, self._owner.node_id):
            assert home is not None
            await self._tell(stream_id, home, _HINT_SECONDS)
        return home

    def _watch(self, stream_id: StreamId) -> None:
        if self.given_away is not None:
            self.given_away(stream_id)

    async def _tell(
        self, stream_id: StreamId, node: NodeId, seconds: float = _TELL_SECONDS
    ) -> None:
        body = orjson.dumps(encode_transfer_asked(node))
        path = of_stream(TRANSFER, stream_id)
        try:
            await self._ways.of(node).post(path, [body], "application/json", seconds)
        except StoreError as error:
            log.warning("a new owner was not told", stream_id=stream_id, error=str(error))


class _Seen(Protocol):
    """What an owner has heard of the other nodes of a stream."""

    @property
    def ahead(self) -> Collection[NodeId]: ...

    @property
    def failing(self) -> Collection[NodeId]: ...


@guard("who is given a stream before others")
def fittest_first(
    targets: Sequence[Target], seen: _Seen | None, slow: Collection[NodeId] = ()
) -> Sequence[Target]:
    """Put those first that have more than this node, and those last whose disks took nothing the last time;
    before these the ones that are slow.

    Each transfer goes to a longer log then, so that they end, and nobody cuts what another one has to show.
    A node whose disk fails would give the stream away once more, and nothing is taken meanwhile; it is given
    one all the same where no other node lives, since it has everything.
    """
    if seen is None:
        return targets
    ahead, failing = seen.ahead, seen.failing
    return sorted(
        targets,
        key=lambda one: (one.node_id not in ahead, one.node_id in failing, one.node_id in slow),
    )


@guard("all of the log in a transfer")
def require_all_committed(appender: LocalAppender) -> None:
    """Refuse to give a stream away whose end may be on this disk alone.

    Raises:
        Unavailable: `not-owner`.
    """
    if appender.failed or appender.log.committed_end != appender.log.synced_end:
        raise not_owner()


@guard("the rest of a commit, before a stream is given away")
def require_unbound(appender: LocalAppender | None) -> None:
    """Refuse to give a stream away with a commit that only this disk can finish, some seconds later.

    Raises:
        Unavailable: `not-owner`.
    """
    if appender is not None and appender.is_bound():
        log.warning("a stream stays for a commit", stream_id=appender.stream_id)
        raise not_owner()


class _NotGiven(StoreError):
    """The record does not let a stream be given."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(str(refused))
        self.refused = refused
