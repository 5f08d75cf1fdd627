"""The nodes that are counted of those that hold a stream: its record, as the owner changes it.

Counted is each node that may be in sync: those that the newest record of this owner names, and those
whose admission or eviction is under way, or had no reply. Each change is one EXEC on the record. What
a crash of this node leaves after each step of it:

1. the node counts here                nothing: that is known in memory alone
2. the EXEC is on its way              the record as before or as decided; a node that is admitted had
                                       all that was written, and no round is shown that it lacks
3. it has returned                     the record as decided; a round that one was evicted for is
                                       shown only now

A change of the members is the same: who comes is not in sync, and who goes is not, or counts until
step 3. An owner that comes later goes by the record.

Of an EXEC without a reply nobody knows whether it was done. The node counts as in sync until another
EXEC returns: that one wrote the record, so one that is still on its way finds it changed, and fails.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from bottomless.errors import Fenced, StoreError
from bottomless.guards import guard
from bottomless.model.config import StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.ingest.replicas.answers import Answers
from bottomless_server.ingest.replicas.owner_context import OwnerContext
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.core.replica_waits import Do, Holders, Step
from bottomless_server.node.owner import Claim
from bottomless_server.node.replica_records import Owned, ReplicaRecords

log = structlog.get_logger(__name__)


class Counted:
    """The holders of one stream under one claim, and all that changes them in its record."""

    def __init__(
        self, context: OwnerContext, record: StreamRecord, claim: Claim, answers: Answers
    ) -> None:
        """`record` is that of the claim."""
        self._context = context
        self._claim = claim
        self._owned = Owned(claim.stream_id, claim.epoch)
        self._answers = answers
        self._holders = Holders.of(record, context.mine)
        self._evicting: set[NodeId] = set()
        """Nodes whose eviction was asked for since the record was written last."""
        self._changing = asyncio.Lock()
        """Held around each EXEC, so that one that comes later was read later."""
        self._doubted_members = False
        self._moved: set[NodeId] = set()
        self.config = record.config
        """The newest that this owner has heard of."""

    @property
    def holders(self) -> Holders:
        """The nodes that hold the stream, and which of them are counted."""
        return self._holders

    @property
    def others(self) -> list[NodeId]:
        """The members beside this node."""
        return [node for node in self._holders.members if node != self._context.mine]

    @property
    def doubted_members(self) -> bool:
        """Whether a change of the members had no reply: the record may name others."""
        return self._doubted_members

    def take_moved(self) -> set[NodeId]:
        """The nodes that came or went since this was asked last, or may have: a change whose reply was lost
        is seen with whatever is written next."""
        moved, self._moved = self._moved, set()
        return moved

    def configure(self, config: StreamConfig) -> None:
        """Go by another number of nodes that have to be in sync."""
        self.config = config
        self._holders = replace(self._holders, least=config.replication.least_in_sync)

    def fence(self) -> None:
        """Nothing is shown any more; whoever waits for other nodes hears of it."""
        self._claim.note_fence()
        self._answers.pulse.fire()

    async def change(self, step: Step) -> bool:
        """Do an EXEC, unless it is not wanted any more. False: it is to be asked for again later.

        Raises:
            Fenced: somebody claimed the stream since.
        """
        node, records = step.node, self._context.records
        assert node is not None
        async with self._changing:
            before = self._holders
            if step.do is Do.ADMIT and not self._answers.has_all(node):
                return False
            if self._is_known(step.do, node):
                return True
            # Counted as long as nobody knows: it may be in sync before the reply is here.
            self._holders = replace(before, doubted=before.doubted | {node})
            try:
                # To take one back is to admit it, whatever it has of this log.
                if step.do is Do.EVICT:
                    self._evicting.add(node)
                    record = await evicted(records, self._owned, node)
                else:
                    record = await records.admit(self._owned, node)
            except Fenced:
                self.fence()
                raise
            except (Refused, StoreError) as error:
                self._not_changed(step, before, error)
                return False
            self._take_up(record)
        self._context.figures.note(step.do)
        log.info("a replica", does=step.do, node=node, stream_id=self._owned.stream_id)
        self._answers.pulse.fire()
        return True

    async def settle(self) -> bool:
        """Find out who is in sync, where nobody knows. False: it is to be asked for again later.

        Raises:
            Fenced: somebody claimed the stream since.
        """
        async with self._changing:
            before = self._holders
            try:
                record = await self._context.records.settle(self._owned)
            except Fenced:
                self.fence()
                raise
            except (Refused, StoreError) as error:
                self._not_changed(Step(Do.SETTLE), before, error)
                return False
            self._take_up(record)
            self._doubted_members = False
        return True

    async def set_members(
        self, members: tuple[NodeId, ...], instead_of: tuple[NodeId, ...]
    ) -> None:
        """Have other nodes hold the stream; those that go have been evicted before. Nothing changes where
        the members are not those `instead_of` which these were chosen.

        Raises:
            Fenced, Refused, StoreError
        """
        async with self._changing:
            before = self._holders.members
            if not are_those(None if self._doubted_members else before, instead_of):
                return
            try:
                record = await self._context.records.set_members(self._owned, members)
            except Fenced:
                self.fence()
                raise
            except StoreError:
                self._doubt_members(set(before) ^ set(members))
                raise
            self._take_up(record)

    async def add(self, node: NodeId) -> None:
        """Take a node in, on the word of an operator.

        Raises:
            Fenced, Refused, StoreError
        """
        await self._set(node, self._context.records.add_member)

    async def remove(self, node: NodeId) -> None:
        """Let a node go, on the word of an operator.

        Raises:
            Fenced, Refused, StoreError
        """
        await self._set(node, self._context.records.remove_member)

    async def _set(
        self, node: NodeId, change: Callable[[Owned, NodeId], Awaitable[StreamRecord]]
    ) -> None:
        """Change members and configuration by one EXEC."""
        async with self._changing:
            before = self._holders
            # Counted as long as nobody knows, as in every change.
            if node in before.counted:
                self._holders = replace(before, doubted=before.doubted | {node})
            try:
                record = await change(self._owned, node)
            except Fenced:
                self.fence()
                raise
            except Refused:
                self._holders = replace(self._holders, doubted=before.doubted)
                raise
            except StoreError:
                self._doubt_members({node})
                raise
            self._take_up(record)

    def _doubt_members(self, nodes: set[NodeId]) -> None:
        """Nobody knows whether these came, or went, before another EXEC has returned."""
        self._doubted_members = True
        self._moved |= nodes
        self._answers.pulse.fire()

    def _is_known(self, do: Do, node: NodeId) -> bool:
        """Whether the record says already, beyond doubt, what an EXEC is to write."""
        if node in self._holders.doubted:
            return False
        return (node in self._holders.in_sync) is (do is not Do.EVICT)

    def _not_changed(self, step: Step, before: Holders, error: Refused | StoreError) -> None:
        log.warning("a replica could not be changed", does=step.do, error=str(error))
        if isinstance(error, Refused):
            # Nothing was written, so what was in doubt before still is. A PATCH may have come meanwhile.
            self._holders = replace(self._holders, doubted=before.doubted)
            if error.refusal is Refusal.NOT_HOME:
                self.fence()
            elif step.do is Do.TAKE_BACK and step.node is not None:
                # It is no member any more, on the word of an operator.
                self._answers.forget(step.node)

    def _take_up(self, record: StreamRecord) -> None:
        """Go by a record that this owner has written just now, and nobody since."""
        before, self.config = self._holders.members, record.config
        self._holders = Holders.of(record, self._context.mine)
        self._moved |= set(before) ^ set(self._holders.members)
        now = self._context.clocks.elapsed()
        for node in self._evicting - set(record.in_sync):
            # Also one whose eviction had no reply.
            self._answers.note_evicted(node, now)
        self._evicting.clear()


@guard("an eviction before a round goes on")
async def evicted(records: ReplicaRecords, owned: Owned, node: NodeId) -> StreamRecord:
    """The record as it is when a node is no more in sync, and cannot become the owner."""
    return await records.evict(owned, node)


@guard("members that nobody has changed while others were chosen")
def are_those(members: tuple[NodeId, ...] | None, instead_of: tuple[NodeId, ...]) -> bool:
    """Whether members, None where nobody knows them, are those that were looked at when others were chosen.
    Meanwhile an operator may have taken one in, or let one go, and was told so."""
    return members == instead_of
