"""The joins of a stream: nodes come to those that hold it, and go, as long as its owner has it.

A task of its own counts members in that have everything, takes nodes in where there are to be more, and
lets some go where there are to be fewer, or where one is to be replaced. Which these are, membership.py
decides; counted.py writes it into the record, and says what a crash leaves there. Nothing else is saved
here: who is known to be away is forgotten with the process, and the next owner looks anew.
"""

import asyncio
from typing import Final

import structlog

from bottomless.errors import Fenced, NotFound, StoreError
from bottomless.model.config import StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.ingest.replicas.answers import Answers
from bottomless_server.ingest.replicas.counted import Counted
from bottomless_server.ingest.replicas.membership import LOOK_SECONDS, Membership
from bottomless_server.ingest.replicas.own_log import OwnLog
from bottomless_server.ingest.replicas.owner_context import OwnerContext
from bottomless_server.node.core.in_sync import Refused
from bottomless_server.node.core.replica_waits import Do, Step, joiner
from bottomless_server.node.owner import Claim
from bottomless_server.node.pulse import wait_for
from bottomless_server.protocol.replica import NOWHERE
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless

log = structlog.get_logger(__name__)

AGAIN_SECONDS: Final = 0.2
"""How long after an EXEC that failed, or before a node may join, it is decided anew."""
LONGEST_WAIT: Final = 3_600.0
"""Seconds after which it is decided anew though nothing was heard, and no time is near."""
_LOOKS: Final = 4
_LOOKS_AT_ABSENT: Final = 20
"""So often in the time after which a member is replaced the leases of members are looked at, and where
one of them is silent or out of sync."""


class Joins:
    """The nodes that come to one stream and go from it, under one claim."""

    def __init__(
        self,
        context: OwnerContext,
        record: StreamRecord,
        claim: Claim,
        counted: Counted,
        answers: Answers,
        own: OwnLog,
    ) -> None:
        """`record` is that of the claim, and `own` the log that all are to have."""
        self._context = context
        self._claim = claim
        self._counted = counted
        self._answers = answers
        self._own = own
        self._membership = Membership(record, context.choose)
        self._task: asyncio.Task[None] | None = None
        self._looked_at: int | None = None
        """When the leases of members were looked at last."""
        self._to_note = asyncio.Event()
        self._noting: asyncio.Task[None] | None = None
        """Begun with the first change: most streams have none."""
        self._is_closed = False

    @property
    def wanted(self) -> int:
        """How many nodes are to hold the stream by its configuration."""
        return self._membership.replicas

    @property
    def stalled(self) -> tuple[NodeId, ...]:
        """Members that live and do not catch up."""
        return self._membership.stalled(self._counted.holders)

    @property
    def are_begun(self) -> bool:
        """Whether other nodes were asked to follow."""
        return self._task is not None

    def begin(self) -> None:
        """Have the other nodes follow, and go on counting them in; once."""
        for node in self._counted.others:
            self.follow(node)
        self._task = asyncio.create_task(endless("ingest-replica-joins", self._join), name="joins")

    async def close(self) -> None:
        """Change nothing more."""
        self._is_closed = True
        await end_tasks(*(one for one in (self._task, self._noting) if one is not None))

    async def _note(self) -> float:
        """Have the bucket name the members of now, once they were changed: after a loss of coordination and
        of the owner one of them is named by an operator to go on."""
        await self._to_note.wait()
        self._to_note.clear()
        assert self._context.note is not None
        try:
            await self._context.note(self._claim.stream_id)
        except NotFound:
            pass
        except StoreError as error:
            log.info("the bucket does not name new members yet", error=str(error))
            self._to_note.set()
            return LOOK_SECONDS
        return 0

    def follow(self, node: NodeId, pause: float = 0.0) -> None:
        """Have one node follow, after `pause` seconds."""
        sender, end = self._context.senders.of(node), self._own.end
        if sender is not None:
            log_end = None if end == NOWHERE else end
            sender.follow(self._claim.stream_id, self._own, log_end, self._own.told, pause)

    def configure(self, config: StreamConfig) -> None:
        """Go by another number of nodes from now on."""
        self._membership.configure(config)
        self._counted.configure(config)
        self._answers.pulse.fire()

    def replace(self, node: NodeId) -> None:
        """Have another node take the place of one: of the owner once the stream was given to that node."""
        if node == self._context.mine:
            self._membership.give_way()
        elif node in self._counted.holders.members:
            self._membership.replace(node)
        self._answers.pulse.fire()

    async def add(self, node: NodeId) -> None:
        """Take a node in, on the word of an operator.

        Raises:
            Fenced, Refused, StoreError
        """
        await self._counted.add(node)
        self._take_up()

    async def remove(self, node: NodeId) -> None:
        """Let a node go, on the word of an operator.

        Raises:
            Fenced, Refused, StoreError
        """
        await self._counted.remove(node)
        self._take_up()

    async def settle(self) -> bool:
        """Find out who is in sync, where nobody knows, and who the members are. False: it is to be asked
        for again later.

        Raises:
            Fenced: somebody claimed the stream since.
        """
        if not await self._counted.settle():
            return False
        self._take_up()
        self._answers.pulse.fire()
        return True

    async def _join(self) -> float | None:
        """Count a member in that has everything, or wait until somebody has said something."""
        heard = self._answers.pulse.next()
        self._take_up()
        node = self._joiner()
        try:
            if node is not None and await self._counted.change(Step(Do.ADMIT, node)):
                return 0
            if await self._mend_members():
                return 0
        except Fenced:
            return None
        # By time alone a member joins that was evicted before.
        holders = self._counted.holders
        out = set(holders.members) - set(holders.in_sync) | holders.doubted
        is_near = any(self._answers.has_all(one) for one in out)
        idle = LOOK_SECONDS
        if self._membership.is_right(holders) and not self._counted.doubted_members:
            idle = LONGEST_WAIT if self._context.live_of is None else self._look_seconds
        await wait_for(heard, AGAIN_SECONDS if is_near else idle)
        return 0

    def _joiner(self) -> NodeId | None:
        """Name a member that may be counted in, or one of which nobody knows whether it was."""
        answers, holders = self._answers, self._counted.holders
        if answers.diverged or self._claim.fenced:
            return None
        for node in sorted(holders.doubted):
            if answers.has_all(node):
                return node
        now, bounds = self._context.clocks.elapsed(), self._context.bounds
        return joiner(holders, answers.said, answers.written, now, bounds)

    async def _mend_members(self) -> bool:
        """Take a node in, or let one go, if there are to be more, or fewer. False: there is nothing to
        do, or it is to be tried again later.

        Raises:
            Fenced: somebody claimed the stream since.
        """
        if self._answers.diverged:
            return False
        if self._counted.doubted_members:
            return await self.settle()
        await self._look_at_leases()
        holders = self._counted.holders
        if self._membership.is_right(holders):
            return False
        try:
            wanted = await self._membership.next(holders)
            if wanted is None or isinstance(wanted, Step):
                return wanted is not None and await self._counted.change(wanted)
            await self._counted.set_members(wanted, holders.members)
        except Fenced:
            self._counted.fence()
            raise
        except (Refused, StoreError) as error:
            log.warning("the nodes of a stream stay as they are", error=str(error))
            return False
        self._take_up()
        return True

    @property
    def _look_seconds(self) -> float:
        """How long after one look at the leases of members they are looked at again: sooner where one of
        them is out of sync, or says nothing."""
        in_sync = self._counted.holders.in_sync
        are_well = all(
            node in in_sync and self._answers.of(node).end is not None
            for node in self._counted.others
        )
        looks = _LOOKS if are_well else _LOOKS_AT_ABSENT
        return self._context.bounds.replace_ms / looks / 1000

    async def _look_at_leases(self) -> None:
        """Find out which members have no lease, now and then."""
        others, live_of = self._counted.others, self._context.live_of
        now, replace_ms = self._context.clocks.elapsed(), self._context.bounds.replace_ms
        seen_at = self._looked_at
        if live_of is None or not others:
            return
        if seen_at is not None and now - seen_at < self._look_seconds * 1000:
            return
        try:
            live = await live_of(others)
        except StoreError as error:
            log.warning("the leases of members were not looked at", error=str(error))
            return
        self._looked_at = now
        counted = self._counted.holders.counted
        lacking = {
            one: self._answers.of(one).end
            for one in others
            if one not in counted and not self._answers.has_all(one)
        }
        away = [one for one in others if one not in live]
        self._membership.looked(away, now, replace_ms, lacking)

    def _take_up(self) -> None:
        """Go by the record as it was written last, by whatever: a change whose reply was lost is found by an
        EXEC that was for something else."""
        self._membership.configure(self._counted.config)
        moved, stream_id = self._counted.take_moved(), self._claim.stream_id
        if not moved or self._is_closed:
            return
        members = self._counted.holders.members
        log.info("nodes of a stream", nodes=members, moved=sorted(moved), stream_id=stream_id)
        for node in moved - {self._context.mine}:
            # It may have been a member before, and have thrown its log away since.
            self._answers.forget(node)
            if node in members:
                self.follow(node)
            elif (sender := self._context.senders.of(node)) is not None:
                sender.leave(stream_id)
        self._membership.forget(moved - set(members))
        self._to_note.set()
        if self._noting is None and self._context.note is not None:
            noting = endless("ingest-replica-notes", self._note)
            self._noting = asyncio.create_task(noting, name="members-note")
        self._answers.pulse.fire()
