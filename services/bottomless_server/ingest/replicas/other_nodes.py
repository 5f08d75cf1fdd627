"""The nodes that hold a stream beside its owner: who is waited for, let go, and counted in.

It is what an appender asks at the steps of a round (`local/replicas.py`); `node/core/replica_waits.py`
decides, and here it is done. How many nodes there are to be is decided in membership.py.

In the order of a round, with what a crash of this node leaves after each step:

1. enough nodes are in sync            nothing of the round
2. it is written, and then sent        chunks that nobody had an answer for, here and on others
3. synced here, and by all in sync     the same; whoever of them becomes the owner has it
4. a silent node is evicted, by EXEC   the record names those that have it, or one more that lacks
                                       it: as in 2, since nothing was shown before the EXEC returned
5. shown and answered                  all that the record names have it

Of an EXEC without a reply nobody knows whether it was done. The node counts as in sync until another
EXEC returns: that one wrote the record, so one that is still on its way finds it changed, and fails.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from bottomless.errors import Code, Fenced, Outcome, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.config import StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.ingest.log.segments import LogBroken, SegmentLog, Unsynced
from bottomless_server.ingest.replicas.figures import ReplicaFigures, Seen, seen_of
from bottomless_server.ingest.replicas.membership import LOOK_SECONDS, Choose, Membership
from bottomless_server.ingest.replicas.own_log import OwnLog
from bottomless_server.ingest.replicas.senders import Senders
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.core.replica_waits import (
    Do,
    Holders,
    Said,
    Step,
    WaitBounds,
    Waited,
    heard_from,
    is_late,
    joiner,
    let_go,
    next_step,
    refuses,
    unheard,
)
from bottomless_server.node.core.sends import Event, News, Told
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.lease import Clocks
from bottomless_server.node.owner import Claim
from bottomless_server.node.pulse import Pulse, wait_for
from bottomless_server.node.replica_records import Owned, ReplicaRecords
from bottomless_server.protocol.replica import NOWHERE, Place
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.shared_hops import SharedHops

log = structlog.get_logger(__name__)

_AGAIN_SECONDS: Final = 0.2
"""How long after an EXEC that failed, or before a node may join, it is decided anew."""
_DIVERGED_SECONDS: Final = 1.0
_LONGEST_WAIT: Final = 3_600.0
_LOOKS: Final = 4
_LOOKS_AT_ABSENT: Final = 20
"""So often in the time after which a member is replaced the leases of members are looked at, and where
one of them is silent or out of sync."""


LiveOf = Callable[[Collection[NodeId]], Awaitable[set[NodeId]]]
"""Finds those of some nodes whose lease is held."""


@dataclass(frozen=True, slots=True)
class OwnerContext:
    """What all owned streams of a process share that have other nodes."""

    mine: NodeId
    records: ReplicaRecords
    senders: Senders
    files: FileCalls
    hops: SharedHops
    clocks: Clocks
    bounds: WaitBounds
    choose: Choose | None = None
    """None: nobody is taken in but those that a claim has chosen."""
    live_of: LiveOf | None = None
    """None: nobody is replaced by itself."""
    figures: ReplicaFigures = field(default_factory=ReplicaFigures)


class OtherNodes:
    """The other nodes of one stream, under one claim."""

    def __init__(
        self, context: OwnerContext, record: StreamRecord, claim: Claim, local: SegmentLog
    ) -> None:
        """`record` is that of the claim. Made before anything is written; nothing is sent until the
        first wait."""
        self._context = context
        self._claim = claim
        self._owned = Owned(claim.stream_id, claim.epoch)
        told = Told(local.committed_next, record.published_next, record.version)
        self._own = OwnLog(context.files, context.hops, local, claim.epoch, told)
        self._local = local
        self._holders = Holders.of(record, context.mine)
        self._membership = Membership(record, context.choose)
        self._said: dict[NodeId, Said] = {}
        self._diverged: set[NodeId] = set()
        self._evicting: set[NodeId] = set()
        """Nodes whose eviction was asked for since the record was written last."""
        self._written = self._own.end
        self._begun_at = self._sent_at = context.clocks.elapsed()
        self._held = False
        self.waiting_since: int | None = None
        """Since when a round waits for other nodes, by the monotonic clock in ms; None: none does."""
        self._ended_at: int | None = None
        self._heard = Pulse()
        self._changing = asyncio.Lock()
        """Held around each EXEC, so that one that comes later was read later."""
        self._task: asyncio.Task[None] | None = None
        self._doubted_members = False
        """Whether a change of the members had no reply: the record may name others."""
        self._looked_at: int | None = None
        """When the leases of members were looked at last."""

    # What an appender asks.

    @property
    def in_sync_others(self) -> tuple[NodeId, ...]:
        """The nodes in sync beside this one, without those of which it is in doubt."""
        holders = self._holders
        out = {self._context.mine, *holders.doubted}
        return tuple(node for node in holders.in_sync if node not in out)

    def require_enough(self) -> None:
        """Refuse an append that nobody could confirm.

        Raises:
            Unavailable: too few nodes are in sync, or a round is held; outcome none.
        """
        if self._task is None:
            # Nobody was asked yet to follow a stream that was opened to be read, however long ago.
            return
        now = self._context.clocks.elapsed()
        if self._held or refuses(self._holders, self._begun_at, now, self._context.bounds):
            raise _too_few()

    @guard("enough nodes in sync before a round is written")
    async def enough(self) -> None:
        """Return when a round may be written, which for a while after a claim is waited for.

        Raises:
            Unavailable: too few nodes are in sync; outcome none.
            Fenced: somebody claimed the stream since.
        """
        # Of an empty log nothing was waited for, so nobody follows it yet.
        self._begin()
        while True:
            heard = self._heard.next()
            if self._holders.are_enough:
                return
            self._require_claim()
            if self._ended_at is not None:
                raise _too_few()
            self.require_enough()
            await wait_for(heard, self._context.bounds.wait_ms / 1000)

    def send(self, written: Unsynced, /) -> None:
        """Send a round to all members; in the event loop, before the log counts it."""
        piece = self._own.written(written)
        self._written, self._sent_at = piece.end, self._context.clocks.elapsed()
        for node in self._others():
            sender = self._context.senders.of(node)
            if sender is not None:
                sender.offer(self._owned.stream_id, piece)

    @property
    def failing(self) -> tuple[NodeId, ...]:
        """Nodes that said last that they cannot store what they are sent."""
        return tuple(node for node, one in self._said.items() if one.failed)

    async def all_have(self, end: tuple[int, int], late: Callable[[], None], /) -> None:
        """Return when every node in sync has the log up to a segment and a position in it.

        Those that are silent are evicted meanwhile, as far as enough are left. `late` is called once
        if that takes longer than callers are to wait.

        Raises:
            Fenced: somebody claimed the stream since.
            LogBroken: nobody waits any more, and the log is to be opened anew; outcome unknown.
        """
        began_at = self._context.clocks.monotonic()
        self._begin()
        self._tell()
        waited = Waited(self._own.place(end), self._sent_at)
        self.waiting_since = waited.since
        try:
            while True:
                heard = self._heard.next()
                self._require_claim()
                now = self._context.clocks.elapsed()
                step = self._next_step(waited, now)
                if step.do is Do.SHOW:
                    break
                self._require_patience(waited, now)
                if not self._held and is_late(waited, now, self._context.bounds):
                    self._held = True
                    late()
                if step.do is Do.WAIT:
                    await wait_for(heard, self._pause(step, waited, now))
                elif not await (self._settle() if step.do is Do.SETTLE else self._change(step)):
                    await wait_for(heard, _AGAIN_SECONDS)
        finally:
            self._held, self.waiting_since = False, None
        waits = self._context.figures.round_waits
        waits.observe(self._context.clocks.monotonic() - began_at)
        # All that may claim the stream have it: so it is committed, and they may be told.
        self._own.told = self._own.told._replace(committed_next=self._local.synced_next)
        self._tell()

    def configure(self, config: StreamConfig) -> None:
        """Go by another number of nodes from now on."""
        self._membership.configure(config)
        self._holders = replace(self._holders, least=config.replication.least_in_sync)
        self._heard.fire()

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

    def replace(self, node: NodeId) -> None:
        """Have another node take the place of one."""
        self._begin()
        self._membership.replace(node)
        self._heard.fire()

    def note_published(self, next_offset: int, version: int) -> None:
        """Note what object storage holds: other nodes need no more than what comes after it."""
        if version > self._own.told.version:
            self._own.told = Told(self._own.told.committed_next, next_offset, version)
            self._tell()

    def end(self) -> None:
        """At a stop: a round that is held is given up, and another one after the time in which a
        silent node is let go."""
        self._ended_at = self._context.clocks.elapsed()
        self._heard.fire()

    async def close(self) -> None:
        """Send nothing more, once nothing more is written."""
        self._context.senders.leave(self._owned.stream_id, self)
        self._context.figures.watched.discard(self)
        if self._task is not None:
            await end_tasks(self._task)

    def seen(self) -> Seen:
        """What is seen of the stream now, for metrics."""
        ends = {node: one.end for node, one in self._said.items()}
        wanted = self._membership.wanted
        return seen_of(self._local, self._holders, wanted, ends, is_held=self._held)

    # What other nodes say.

    def hear(self, node: NodeId, event: Event) -> None:
        """Take news of a node."""
        match event.news:
            case News.HAS:
                self._has(node, NOWHERE if event.end is None else event.end)
            case News.FENCED:
                self._fence()
            case News.DIVERGED if node in self._holders.counted:
                # It may be the only one that has what was acknowledged: nobody is let go before an
                # operator, or a transfer, has made it the owner.
                self._diverged.add(node)
                log.error("a replica knows more than its owner", stream_id=self._owned.stream_id)
            case News.DIVERGED:
                # It was in sync by an older record, and is asked again; not at once, since it may take
                # a while until it reads another one.
                self._follow(node, _DIVERGED_SECONDS)
            case News.FAILED:
                # Nobody waits for it any longer than for one that is silent for too long.
                self._said[node] = replace(self._said.get(node, Said()), failed=True)
            case News.UNKNOWN if node in self._said:
                self._said[node] = unheard(self._said[node])
        self._heard.fire()

    def _has(self, node: NodeId, end: Place) -> None:
        one, now = self._said.get(node, Said()), self._context.clocks.elapsed()
        self._said[node] = heard_from(one, end, self._written, now)

    # Inside.

    def _others(self) -> list[NodeId]:
        return [node for node in self._holders.members if node != self._context.mine]

    def _begin(self) -> None:
        """Have the other nodes follow, the first time."""
        if self._task is not None:
            return
        self._begun_at = self._context.clocks.elapsed()
        self._context.senders.listen(self._owned.stream_id, self)
        self._context.figures.watched.add(self)
        for node in self._others():
            self._follow(node)
        self._task = asyncio.create_task(endless("ingest-replica-joins", self._join), name="joins")

    def _follow(self, node: NodeId, pause: float = 0.0) -> None:
        sender, end = self._context.senders.of(node), self._own.end
        if sender is not None:
            log_end = None if end == NOWHERE else end
            sender.follow(self._owned.stream_id, self._own, log_end, self._own.told, pause)

    def _tell(self) -> None:
        for node in self._others():
            sender = self._context.senders.of(node)
            if sender is not None:
                sender.tell(self._owned.stream_id, self._own.told)

    def _next_step(self, waited: Waited, now: int) -> Step:
        step = next_step(self._holders, self._said, waited, now, self._context.bounds)
        if self._diverged and step.do in (Do.EVICT, Do.ADMIT, Do.SETTLE):
            return Step(Do.WAIT)
        return step

    def _require_claim(self) -> None:
        if self._claim.fenced:
            raise Fenced("the stream is owned by a newer epoch")

    def _require_patience(self, waited: Waited, now: int) -> None:
        ended_at = self._ended_at
        if ended_at is None:
            return
        if self._held or now >= max(ended_at, waited.since) + self._context.bounds.wait_ms:
            raise LogBroken("the node stops, and not all replicas have the round")

    def _pause(self, step: Step, waited: Waited, now: int) -> float:
        """Seconds after which it is decided anew, though nobody said anything."""
        times = [] if step.again_at is None else [step.again_at]
        if not self._held:
            times.append(waited.since + self._context.bounds.commit_ms)
        if self._ended_at is not None:
            times.append(max(self._ended_at, waited.since) + self._context.bounds.wait_ms)
        return max(min(times) - now, 1) / 1000 if times else _LONGEST_WAIT

    async def _join(self) -> float | None:
        """Count a member in that has everything, or wait until somebody has said something."""
        heard = self._heard.next()
        node = self._joiner()
        try:
            if node is not None and await self._change(Step(Do.ADMIT, node)):
                return 0
            if await self._mend_members():
                return 0
        except Fenced:
            return None
        # By time alone a member joins that was evicted before.
        out = set(self._holders.members) - set(self._holders.in_sync) | self._holders.doubted
        is_near = any(self._has_all(one) for one in out)
        idle = LOOK_SECONDS
        if self._membership.is_right(self._holders) and not self._doubted_members:
            idle = _LONGEST_WAIT if self._context.live_of is None else self._look_seconds
        await wait_for(heard, _AGAIN_SECONDS if is_near else idle)
        return 0

    async def _mend_members(self) -> bool:
        """Take a node in, or let one go, if there are to be more, or fewer. False: there is nothing to
        do, or it is to be tried again later.

        Raises:
            Fenced: somebody claimed the stream since.
        """
        if self._diverged:
            return False
        if self._doubted_members:
            return await self._settle()
        await self._look_at_leases()
        if self._membership.is_right(self._holders):
            return False
        try:
            wanted = await self._membership.next(self._holders)
            if wanted is None or isinstance(wanted, Step):
                return wanted is not None and await self._change(wanted)
            async with self._changing:
                before = self._holders.members
                record = await self._context.records.set_members(self._owned, wanted)
                self._take_up(record)
        except Fenced:
            self._fence()
            raise
        except (Refused, StoreError) as error:
            log.warning("the nodes of a stream stay as they are", error=str(error))
            self._doubted_members = not isinstance(error, Refused)
            return False
        self._take_up_members(before)
        return True

    async def _set(
        self, node: NodeId, change: Callable[[Owned, NodeId], Awaitable[StreamRecord]]
    ) -> None:
        """Change members and configuration by one EXEC."""
        self._begin()
        async with self._changing:
            before = self._holders
            # Counted as long as nobody knows, as in every change.
            if node in before.counted:
                self._holders = replace(before, doubted=before.doubted | {node})
            try:
                record = await change(self._owned, node)
            except Fenced:
                self._fence()
                raise
            except Refused:
                self._holders = replace(self._holders, doubted=before.doubted)
                raise
            except StoreError:
                self._doubted_members = True
                self._heard.fire()
                raise
            self._take_up(record)
            self._membership.configure(record.config)
        self._take_up_members(before.members)

    @property
    def _look_seconds(self) -> float:
        """How long after one look at the leases of members they are looked at again: sooner where one of
        them is out of sync, or says nothing."""
        are_well = all(
            node in self._holders.in_sync and self._said.get(node, Said()).end is not None
            for node in self._others()
        )
        looks = _LOOKS if are_well else _LOOKS_AT_ABSENT
        return self._context.bounds.replace_ms / looks / 1000

    async def _look_at_leases(self) -> None:
        """Find out which members have no lease, now and then."""
        others, live_of = self._others(), self._context.live_of
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
        self._membership.looked([one for one in others if one not in live], now, replace_ms)

    def _take_up_members(self, before: Collection[NodeId]) -> None:
        now = self._holders.members
        if set(now) == set(before):
            return
        log.info("nodes of a stream", nodes=now, before=before, stream_id=self._owned.stream_id)
        for node in set(now) - set(before):
            # It may have been a member before, and have thrown its log away since.
            self._said.pop(node, None)
            self._follow(node)
        self._membership.forget(set(before) - set(now))
        for node in set(before) - set(now):
            self._said.pop(node, None)
            sender = self._context.senders.of(node)
            if sender is not None:
                sender.leave(self._owned.stream_id)
        self._heard.fire()

    def _joiner(self) -> NodeId | None:
        """Name a member that may be counted in, or one of which nobody knows whether it was."""
        if self._diverged or self._claim.fenced:
            return None
        for node in sorted(self._holders.doubted):
            if self._has_all(node):
                return node
        now, bounds = self._context.clocks.elapsed(), self._context.bounds
        return joiner(self._holders, self._said, self._written, now, bounds)

    def _has_all(self, node: NodeId) -> bool:
        end = self._said.get(node, Said()).end
        return end is not None and end >= self._written

    def _is_known(self, do: Do, node: NodeId) -> bool:
        """Whether the record says already, beyond doubt, what an EXEC is to write."""
        if node in self._holders.doubted:
            return False
        return (node in self._holders.in_sync) is (do is Do.ADMIT)

    async def _change(self, step: Step) -> bool:
        """Do an EXEC, unless it is not wanted any more. False: it is to be asked for again later.

        Raises:
            Fenced: somebody claimed the stream since.
        """
        node, records = step.node, self._context.records
        assert node is not None
        async with self._changing:
            before = self._holders
            if step.do is Do.ADMIT and not self._has_all(node):
                return False
            if self._is_known(step.do, node):
                return True
            # Counted as long as nobody knows: it may be in sync before the reply is here.
            self._holders = replace(before, doubted=before.doubted | {node})
            try:
                if step.do is Do.EVICT:
                    self._evicting.add(node)
                    record = await evicted(records, self._owned, node)
                else:
                    record = await records.admit(self._owned, node)
            except Fenced:
                self._fence()
                raise
            except (Refused, StoreError) as error:
                self._not_changed(step, before, error)
                return False
            self._take_up(record)
        self._context.figures.note(step.do)
        log.info("a replica", does=step.do, node=node, stream_id=self._owned.stream_id)
        self._heard.fire()
        return True

    async def _settle(self) -> bool:
        """Find out who is in sync, where nobody knows. False: it is to be asked for again later.

        Raises:
            Fenced: somebody claimed the stream since.
        """
        async with self._changing:
            before = self._holders
            try:
                record = await self._context.records.settle(self._owned)
            except Fenced:
                self._fence()
                raise
            except (Refused, StoreError) as error:
                self._not_changed(Step(Do.SETTLE), before, error)
                return False
            self._take_up(record)
            self._doubted_members = False
            self._membership.configure(record.config)
        self._take_up_members(before.members)
        self._heard.fire()
        return True

    def _not_changed(self, step: Step, before: Holders, error: Refused | StoreError) -> None:
        log.warning("a replica could not be changed", does=step.do, error=str(error))
        if isinstance(error, Refused):
            # Nothing was written, so what was in doubt before still is. A PATCH may have come meanwhile.
            self._holders = replace(self._holders, doubted=before.doubted)
            if error.refusal is Refusal.NOT_HOME:
                self._fence()

    def _take_up(self, record: StreamRecord) -> None:
        """Go by a record that this owner has written just now, and nobody since."""
        self._holders = Holders.of(record, self._context.mine)
        now = self._context.clocks.elapsed()
        for node in self._evicting - set(record.in_sync):
            # Also one whose eviction had no reply.
            self._said[node] = let_go(self._said.get(node, Said()), self._written, now)
        self._evicting.clear()

    def _fence(self) -> None:
        """Nothing is shown any more; whoever waits for other nodes hears of it."""
        self._claim.note_fence()
        self._heard.fire()


@guard("an eviction before a round goes on")
async def evicted(records: ReplicaRecords, owned: Owned, node: NodeId) -> StreamRecord:
    """The record as it is when a node is no more in sync, and cannot become the owner."""
    return await records.evict(owned, node)


def _too_few() -> Unavailable:
    return Unavailable(
        "too few nodes have everything that the stream holds",
        code=Code.NOT_ENOUGH_REPLICAS,
        outcome=Outcome.NONE,
        retry_after_seconds=1,
    )
