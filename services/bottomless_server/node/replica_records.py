"""The transactions of the owner of a stream with replicas on its record: who is counted, who goes on.

Who owns a stream is decided by a claim, as that of any stream: `owner.py`. Each method here is one
EXEC that changes one record; `core/in_sync.py` decides, and the leases by which it decides are watched
with the record.

After a crash, or a lost reply (`coordination-unknown`), the record is as before or as decided, and
nothing else is anywhere. Whoever asked finds out by reading it, and is safe until then:

- admit, evict: the node counts as in sync until `settle` says otherwise; one too many only waits. To
  read is not enough: an EXEC that is late still lands as long as nobody has written the record
- settle: nothing is decided; whatever was asked for before and has not landed never does
- members: who comes is not in sync, and who goes was not; where an operator removes a member in sync, it
  counts as in sync until the record is known again
- transfer, step down: the owner has stopped, so nothing is acknowledged under either home
- reserve: it raises a bound, and may have made the stream dirty
- leave: the stream is clean, and all of it published; what is known of producers is in the same EXEC
- takeover: the epoch is raised or not; the same again is right
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from bottomless.guards import guard
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Values
from bottomless_server.node.core import in_sync
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.stores.streams import Streams, node_key

_ATTEMPTS: Final = 4
"""How often a transaction is begun anew since other nodes hold the stream than those whose leases it
watches: that happens once in a change of the home."""


class Owned(NamedTuple):
    """A stream as its owner has it."""

    stream_id: StreamId
    epoch: int


class Target(NamedTuple):
    """A node that may become the owner, and its internal address."""

    node_id: NodeId
    url: str


class ReplicaRecords:
    """Changes the records of streams with replicas, for one node."""

    def __init__(self, streams: Streams, mine: NodeId) -> None:
        self._streams = streams
        self._mine = mine

    async def admit(self, owned: Owned, node: NodeId) -> StreamRecord:
        """Count a member in that has everything.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: `not-home`, or `not-a-member`.
            NotFound, Unavailable
        """
        return await self._update(owned, lambda r: in_sync.admit(r, self._mine, owned.epoch, node))

    async def evict(self, owned: Owned, node: NodeId) -> StreamRecord:
        """Wait for a node no more. The round goes on only after this has returned.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: `not-home`, or `at-the-floor`.
            NotFound, Unavailable
        """
        return await self._update(owned, lambda r: in_sync.evict(r, self._mine, owned.epoch, node))

    async def settle(self, owned: Owned) -> StreamRecord:
        """Find out what became of an admission or an eviction that had no reply.

        The record is written as it is: an EXEC that is still on its way watches an older one, and fails.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: `not-home`.
            NotFound, Unavailable
        """
        return await self._update(owned, lambda r: in_sync.settled(r, self._mine, owned.epoch))

    async def set_members(self, owned: Owned, members: Collection[NodeId]) -> StreamRecord:
        """Let other nodes hold the stream; those that go have been evicted before.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: `not-home`, `in-sync` or `too-many`.
            NotFound, Unavailable
        """
        return await self._update(
            owned, lambda r: in_sync.set_members(r, self._mine, owned.epoch, members)
        )

    async def add_member(self, owned: Owned, node: NodeId) -> StreamRecord:
        """Take a node in on the word of an operator; the configuration wants as many then.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: `not-home`, `too-many` or `of-super`.
            NotFound, Unavailable
        """
        return await self._update(
            owned, lambda r: in_sync.with_member(r, self._mine, owned.epoch, node)
        )

    async def remove_member(self, owned: Owned, node: NodeId) -> StreamRecord:
        """Let a node go on the word of an operator, in sync or not; the configuration wants as many as are
        left then.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: `not-home`, `home`, `at-the-floor` or `of-super`.
            NotFound, Unavailable
        """
        return await self._update(
            owned, lambda r: in_sync.without_member(r, self._mine, owned.epoch, node)
        )

    async def reserve(self, owned: Owned, next_offset: int) -> StreamRecord:
        """Allow to acknowledge offsets below `next_offset`, and some more.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: `not-home`.
            NotFound, Unavailable
        """
        return await self._update(
            owned, lambda r: in_sync.reserve(r, self._mine, owned.epoch, next_offset)
        )

    async def leave(self, owned: Owned, next_offset: int, producers: bytes | None) -> StreamRecord:
        """Leave a stream clean of which all is published, with what is known of its producers.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: `not-home`.
            NotFound, Unavailable
        """
        return await self._streams.leave(
            owned.stream_id,
            lambda r: in_sync.leave_clean(r, self._mine, owned.epoch, next_offset),
            producers,
        )

    async def transfer(self, owned: Owned, target: Target) -> StreamRecord:
        """Give a stream to a node in sync; its owner has stopped, and all in sync are at the end.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: `not-home`, `not-in-sync` or `not-live`.
            NotFound, Unavailable
        """

        def decide(record: StreamRecord, live: Collection[NodeId]) -> StreamRecord:
            return in_sync.transfer(
                record, self._mine, owned.epoch, *target, live=target.node_id in live
            )

        return await self._watching(owned.stream_id, lambda _: [target.node_id], decide)

    async def step_down(self, owned: Owned, others: Sequence[Target]) -> StreamRecord:
        """Give a stream to any of these that is in sync and lives, the first of them.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: `not-home`, or `not-live`: none of them may go on, so the stream stays here.
            NotFound, Unavailable
        """

        def decide(record: StreamRecord, live: Collection[NodeId]) -> StreamRecord:
            for target in others:
                if target.node_id in record.in_sync and target.node_id in live:
                    return in_sync.transfer(record, self._mine, owned.epoch, *target, live=True)
            in_sync.check_home(record, self._mine, owned.epoch)
            raise Refused(Refusal.NOT_LIVE)

        nodes = [target.node_id for target in others]
        return await self._watching(owned.stream_id, lambda _: nodes, decide)

    async def _update(
        self, owned: Owned, decide: Callable[[StreamRecord], StreamRecord]
    ) -> StreamRecord:
        return await self._streams.update(owned.stream_id, decide)

    async def _watching(
        self,
        stream_id: StreamId,
        nodes_of: Callable[[StreamRecord], Sequence[NodeId]],
        decide: Callable[[StreamRecord, Collection[NodeId]], StreamRecord],
    ) -> StreamRecord:
        return await watching(self._streams, stream_id, nodes_of, decide)


async def take_over(
    streams: Streams,
    stream_id: StreamId,
    fence: Callable[[StreamRecord], StreamRecord],
    node: NodeId | None = None,
) -> StreamRecord:
    """Give up those that are in sync, on the word of an operator; with `node` that member goes on.

    `fence` makes of a record what a takeover makes of it where there are no replicas, and raises to
    leave it as it is.

    Raises:
        Refused: `in-sync-live`, or `not-a-member`.
        NotFound, Unavailable
    """

    def decide(record: StreamRecord, live: Collection[NodeId]) -> StreamRecord:
        return in_sync.take_over(record, fence(record), live, node)

    return await watching(streams, stream_id, lambda record: record.in_sync, decide)


async def watching(
    streams: Streams,
    stream_id: StreamId,
    nodes_of: Callable[[StreamRecord], Sequence[NodeId]],
    decide: Callable[[StreamRecord, Collection[NodeId]], StreamRecord],
) -> StreamRecord:
    """Change a record by which of the nodes live that it names: `nodes_of` finds these in it.

    Their leases are watched with the record. If it names others meanwhile, all begins anew.

    Raises:
        Unavailable: `not-owner`: it named others each time.
    """
    record = await streams.load(stream_id)
    for _ in range(_ATTEMPTS):
        nodes = list(nodes_of(record))
        try:
            return await _once(streams, stream_id, nodes, nodes_of, decide)
        except _OthersHold as found:
            record = found.record
    raise not_owner()


async def _once(
    streams: Streams,
    stream_id: StreamId,
    nodes: Sequence[NodeId],
    nodes_of: Callable[[StreamRecord], Sequence[NodeId]],
    decide: Callable[[StreamRecord, Collection[NodeId]], StreamRecord],
) -> StreamRecord:
    def told(record: StreamRecord, values: Values) -> StreamRecord:
        if not are_watched(nodes_of(record), nodes):
            raise _OthersHold(record)
        live = [node for node in nodes if values[node_key(node)] is not None]
        return decide(record, live)

    return await streams.update_watching(stream_id, [node_key(one) for one in nodes], told)


@guard("the leases of all that are named, watched with the record")
def are_watched(named: Collection[NodeId], watched: Collection[NodeId]) -> bool:
    """Whether the leases are watched of all nodes by whose lives is decided: of another one nobody
    would know whether it lives."""
    return set(named) <= set(watched)


class _OthersHold(Exception):
    """The record names other nodes than those whose leases were to be watched."""

    def __init__(self, record: StreamRecord) -> None:
        super().__init__()
        self.record = record
