"""What an appender asks of the nodes that hold its stream beside this one.

`ingest/replicas/other_nodes.py` implements this. Of a stream with one replica the appender has None in
its place, and asks nobody.

The steps of a round that are asked of it, in the order of design and of `local/appender.py`:

1. `require_enough`: before an append is put in line; `enough`: before a round is written
3. `send`: after the round was written, while it is being synced here
4. `all_have`: after it was synced here, and before anybody is shown it

On the record's path: beside it; asked by appender.py.
"""

from collections.abc import Callable, Collection
from typing import Final, Protocol

from bottomless.errors import Code, Fenced, Outcome, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.config import StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.ingest.log.segments import SegmentLog, Unsynced
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.owner import Claim

Refuse = Callable[[StoreError], None]
"""Answers callers that have no answer yet."""


class Replicas(Protocol):
    """The other nodes of one stream, under one claim."""

    def require_enough(self) -> None:
        """Refuse an append that nobody could confirm.

        Raises:
            Unavailable: too few nodes are in sync, or a round is held; outcome none.
        """
        ...

    async def enough(self) -> None:
        """Return when a round may be written: after a claim the first nodes may be waited for.

        Raises:
            Unavailable: too few nodes are in sync; outcome none.
            Fenced: somebody claimed the stream since.
        """
        ...

    def send(self, written: Unsynced, /) -> None:
        """Send a round to all members; in the event loop, before the log counts it."""
        ...

    @property
    def in_sync_others(self) -> tuple[NodeId, ...]:
        """The nodes in sync beside this one."""
        ...

    @property
    def waiting_since(self) -> int | None:
        """Since when a round waits for other nodes, by the monotonic clock in ms; None: none does."""
        ...

    @property
    def awaits_nodes(self) -> bool:
        """Whether nothing is shown or taken before other nodes have something, as the floor is now."""
        ...

    @property
    def ahead(self) -> Collection[NodeId]:
        """Nodes in sync that have more than this one: one of them is to own the stream."""
        ...

    @property
    def failing(self) -> tuple[NodeId, ...]:
        """Nodes that said last that they cannot store what they are sent."""
        ...

    @property
    def stalled(self) -> tuple[NodeId, ...]:
        """Nodes that live, lack something, and of which nothing more was heard for long."""
        ...

    async def all_have(self, end: tuple[int, int], late: Callable[[], None], /) -> None:
        """Return when every node in sync has the log up to a segment and a position in it.

        Until then the log does not grow. `late` is called once if that takes longer than callers
        are to wait; appends are refused from then on, until this returns.

        Raises:
            Fenced: somebody claimed the stream since.
            LogBroken: nobody waits any more, and the log is to be opened anew; outcome unknown.
        """
        ...

    def configure(self, config: StreamConfig, /) -> None:
        """Go by another configuration: how many nodes are to hold the stream."""
        ...

    async def add(self, node: NodeId, /) -> None:
        """Take a node in, on the word of an operator. It is in sync later, once it has everything.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: as `ReplicaRecords.add_member`.
            StoreError: nobody knows whether it was taken in; the same again is right.
        """
        ...

    async def remove(self, node: NodeId, /) -> None:
        """Let a node go, on the word of an operator.

        Raises:
            Fenced: somebody claimed the stream since.
            Refused: as `ReplicaRecords.remove_member`.
            StoreError: nobody knows whether it was let go; the same again is right.
        """
        ...

    def replace(self, node: NodeId, /) -> None:
        """Have another node take the place of one, which goes once that has everything."""
        ...

    def note_published(self, next_offset: int, version: int, /) -> None:
        """Note what object storage holds, for those that follow the log."""
        ...

    def end(self) -> None:
        """At a stop: a wait ends soon, by an error unless all have the round."""
        ...

    async def close(self) -> None:
        """Send nothing more, once nothing more is written."""
        ...


Replicate = Callable[[StreamRecord, Claim, SegmentLog], Replicas | None]
"""Says who holds a stream that was just claimed; None: this node alone."""


class CommittedNote:
    """What the checkpoint of an owner says where others hold the stream too.

    In place of what it has reserved, which the record knows, it says what is committed, as that of a
    follower does: it may be one soon, of an owner whose disk came back older.
    """

    def __init__(self, claim: Claim, local: SegmentLog) -> None:
        self.stream_id: Final = claim.stream_id
        self.epoch: Final = claim.epoch
        self._log = local

    @property
    def reserved_next(self) -> int:
        return self._log.committed_next


@guard("all in sync before a round is shown")
async def until_all_have(
    replicas: Replicas, end: tuple[int, int], refuse: Refuse, refuse_waiting: Refuse
) -> None:
    """Return when a round may be shown that is synced here.

    `refuse` answers those whose appends are in the round, if it is held or lost, and `refuse_waiting`
    those that wait for a later one.

    Raises:
        Fenced, LogBroken: as `Replicas.all_have`; the round may be shown by another owner.
    """

    def late() -> None:
        refuse(_commit_timeout())
        try:
            replicas.require_enough()
        except StoreError as error:
            refuse_waiting(error)

    try:
        await replicas.all_have(end, late)
    except Fenced:
        # The new owner may have it, so nobody may be told that nothing is stored.
        refuse(not_owner(outcome=Outcome.UNKNOWN))
        raise


def _commit_timeout() -> Unavailable:
    return Unavailable(
        "the append is stored here, and not yet by enough other nodes",
        code=Code.COMMIT_TIMEOUT,
        outcome=Outcome.UNKNOWN,
        retry_after_seconds=1,
    )
