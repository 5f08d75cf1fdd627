"""The nodes that hold a stream beside its owner: what an appender asks of them, and what they answer.

It is what an appender asks at the steps of a round (`local/replicas.py`); `node/core/replica_waits.py`
decides, and here it is done. counted.py writes into the record who is in sync, joins.py sees to those
who come and go, and answers.py keeps what each node has said.

In the order of a round, with what a crash of this node leaves after each step:

1. enough nodes are in sync            nothing of the round
2. it is written, and then sent        chunks that nobody had an answer for, here and on others
3. synced here, and by all in sync     the same; whoever of them becomes the owner has it
4. a silent node is evicted, by EXEC   the record names those that have it, or one more that lacks
                                       it: as in 2, since nothing was shown before the EXEC returned.
                                       One that said meanwhile that it has more is taken back by another
                                       EXEC; after a crash between the two it is as if it had been silent
5. shown and answered                  all that the record names have it
"""

from collections.abc import Callable, Collection
from typing import Final

import structlog

from bottomless.errors import Code, Fenced, Outcome, Unavailable
from bottomless.guards import guard
from bottomless.model.config import StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.ingest.log.segments import LogBroken, SegmentLog, Unsynced
from bottomless_server.ingest.replicas.answers import Answers
from bottomless_server.ingest.replicas.counted import Counted
from bottomless_server.ingest.replicas.figures import Seen, seen_of
from bottomless_server.ingest.replicas.joins import AGAIN_SECONDS, LONGEST_WAIT, Joins
from bottomless_server.ingest.replicas.own_log import OwnLog
from bottomless_server.ingest.replicas.owner_context import OwnerContext
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.core.replica_waits import Do, Step, Waited, is_late, next_step, refuses
from bottomless_server.node.core.sends import Event, News, Told
from bottomless_server.node.owner import Claim
from bottomless_server.node.pulse import wait_for
from bottomless_server.protocol.replica import NOWHERE

log = structlog.get_logger(__name__)

_DIVERGED_SECONDS: Final = 1.0


class OtherNodes:
    """The other nodes of one stream, under one claim."""

    def __init__(
        self, context: OwnerContext, record: StreamRecord, claim: Claim, local: SegmentLog
    ) -> None:
        """`record` is that of the claim. Made before anything is written; nothing is sent until the
        first wait."""
        self._context = context
        self._claim = claim
        self._stream_id = claim.stream_id
        told = Told(local.committed_next, record.published_next, record.version)
        self._own = own = OwnLog(context.files, context.hops, local, claim.epoch, told)
        self._local = local
        self._answers = answers = Answers(own.end)
        self._counted = counted = Counted(context, record, claim, answers)
        self._joins = Joins(context, record, claim, counted, answers, own)
        self._begun_at = self._sent_at = context.clocks.elapsed()
        self._in_sync_at_claim = frozenset(record.in_sync)
        self._held = False
        self.waiting_since: int | None = None
        """Since when a round waits for other nodes, by the monotonic clock in ms; None: none does."""
        self._ended_at: int | None = None
        self._is_closed = False

    # What an appender asks.

    @property
    def in_sync_others(self) -> tuple[NodeId, ...]:
        """The nodes in sync beside this one, without those of which it is in doubt."""
        holders = self._counted.holders
        out = {self._context.mine, *holders.doubted}
        return tuple(node for node in holders.in_sync if node not in out)

    @property
    def ahead(self) -> Collection[NodeId]:
        """Nodes in sync that have more than this one: one of them is to own the stream."""
        return self._answers.diverged.intersection(self.in_sync_others)

    @property
    def awaits_nodes(self) -> bool:
        """Whether nothing is shown or taken before other nodes have something, as the floor is now."""
        return self.waiting_since is not None or not self._counted.holders.are_enough

    def require_enough(self) -> None:
        """Refuse an append that nobody could confirm.

        Raises:
            Unavailable: too few nodes are in sync, or a round is held; outcome none.
        """
        if not self._joins.are_begun:
            # Nobody was asked yet to follow a stream that was opened to be read, however long ago.
            return
        now = self._context.clocks.elapsed()
        if self._held or refuses(self._counted.holders, self._begun_at, now, self._context.bounds):
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
            heard = self._answers.pulse.next()
            if self._counted.holders.are_enough:
                return
            self._require_claim()
            if self._ended_at is not None:
                raise _too_few()
            self.require_enough()
            await wait_for(heard, self._context.bounds.wait_ms / 1000)

    def send(self, written: Unsynced, /) -> None:
        """Send a round to all members; in the event loop, before the log counts it."""
        piece = self._own.written(written)
        self._answers.written, self._sent_at = piece.end, self._context.clocks.elapsed()
        for node in self._counted.others:
            sender = self._context.senders.of(node)
            if sender is not None:
                sender.offer(self._stream_id, piece)

    @property
    def failing(self) -> tuple[NodeId, ...]:
        """Nodes that said last that they cannot store what they are sent."""
        return self._answers.failing

    @property
    def stalled(self) -> tuple[NodeId, ...]:
        """Members that live and do not catch up."""
        return self._joins.stalled

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
                heard = self._answers.pulse.next()
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
                elif not await self._do(step):
                    await wait_for(heard, AGAIN_SECONDS)
        finally:
            self._held, self.waiting_since = False, None
        waits = self._context.figures.round_waits
        waits.observe(self._context.clocks.monotonic() - began_at)
        # All that may claim the stream have it: so it is committed, and they may be told.
        self._own.is_shown = True
        self._own.told = self._own.told._replace(committed_next=self._local.synced_next)
        self._tell()

    def configure(self, config: StreamConfig) -> None:
        """Go by another number of nodes from now on."""
        self._joins.configure(config)

    async def add(self, node: NodeId) -> None:
        """Take a node in, on the word of an operator.

        Raises:
            Fenced, Refused, StoreError
        """
        self._begin()
        await self._joins.add(node)

    async def remove(self, node: NodeId) -> None:
        """Let a node go, on the word of an operator.

        Raises:
            Fenced, Refused, StoreError
        """
        self._begin()
        await self._joins.remove(node)

    def replace(self, node: NodeId) -> None:
        """Have another node take the place of one."""
        self._begin()
        self._joins.replace(node)

    def note_published(self, next_offset: int, version: int) -> None:
        """Note what object storage holds: other nodes need no more than what comes after it."""
        if version > self._own.told.version:
            self._own.told = Told(self._own.told.committed_next, next_offset, version)
            self._tell()

    def end(self) -> None:
        """At a stop: a round that is held is given up, or that waits for a node that has more; and
        another one after the time in which a silent node is let go."""
        self._ended_at = self._context.clocks.elapsed()
        self._answers.pulse.fire()

    async def close(self) -> None:
        """Send nothing more, once nothing more is written."""
        self._is_closed = True
        self._context.senders.leave(self._stream_id, self)
        self._context.figures.watched.discard(self)
        await self._joins.close()

    def seen(self) -> Seen:
        """What is seen of the stream now, for metrics."""
        ends = {node: one.end for node, one in self._answers.said.items()}
        holders, wanted = self._counted.holders, self._joins.wanted
        return seen_of(self._local, holders, wanted, ends, is_held=self._held)

    # What other nodes say.

    def hear(self, node: NodeId, event: Event) -> None:
        """Take news of a node."""
        answers = self._answers
        match event.news:
            case News.HAS:
                end = NOWHERE if event.end is None else event.end
                answers.note_end(node, end, self._context.clocks.elapsed())
            case News.FENCED:
                self._counted.fence()
            case News.DIVERGED if self._had_all(node):
                # It may be the only one that has what was acknowledged: nobody is let go before an
                # operator, or a transfer, has made it the owner.
                answers.diverged.add(node)
                log.error("a replica knows more than its owner", stream_id=self._stream_id)
            case News.DIVERGED:
                # It was in sync by an older record, and is asked again; not at once, since it may take
                # a while until it reads another one.
                self._joins.follow(node, _DIVERGED_SECONDS)
            case News.FAILED:
                # Nobody waits for it any longer than for one that is silent for too long.
                answers.note_failed(node)
            case News.UNKNOWN:
                answers.note_unknown(node)
        answers.pulse.fire()

    # Inside.

    def _begin(self) -> None:
        """Have the other nodes follow, the first time."""
        if self._is_closed:
            # An operator asks for a change of what was opened anew meanwhile: it would never end.
            raise not_owner()
        if self._joins.are_begun:
            return
        self._begun_at = self._context.clocks.elapsed()
        self._context.senders.listen(self._stream_id, self)
        self._context.figures.watched.add(self)
        self._joins.begin()

    def _tell(self) -> None:
        for node in self._counted.others:
            sender = self._context.senders.of(node)
            if sender is not None:
                sender.tell(self._stream_id, self._own.told)

    def _had_all(self, node: NodeId) -> bool:
        """Whether a node has all that was ever shown: it may be in sync, or was at the claim, and nothing
        was shown since."""
        if node in self._counted.holders.counted:
            return True
        return not self._own.is_shown and node in self._in_sync_at_claim

    def _next_step(self, waited: Waited, now: int) -> Step:
        holders, answers = self._counted.holders, self._answers
        return next_step(holders, answers.said, waited, now, self._context.bounds, answers.diverged)

    async def _do(self, step: Step) -> bool:
        """Do an EXEC. False: it is to be asked for again later."""
        if step.do is Do.SETTLE:
            return await self._joins.settle()
        return await self._counted.change(step)

    def _require_claim(self) -> None:
        if self._claim.fenced:
            raise Fenced("the stream is owned by a newer epoch")

    def _require_patience(self, waited: Waited, now: int) -> None:
        ended_at = self._ended_at
        if ended_at is None:
            return
        # A node that has more is sent nothing, so it would be waited for in vain.
        in_vain = self._held or bool(self.ahead)
        if in_vain or now >= max(ended_at, waited.since) + self._context.bounds.wait_ms:
            raise LogBroken("the node stops, and not all replicas have the round")

    def _pause(self, step: Step, waited: Waited, now: int) -> float:
        """Seconds after which it is decided anew, though nobody said anything."""
        times = [] if step.again_at is None else [step.again_at]
        if not self._held:
            times.append(waited.since + self._context.bounds.commit_ms)
        if self._ended_at is not None:
            times.append(max(self._ended_at, waited.since) + self._context.bounds.wait_ms)
        return max(min(times) - now, 1) / 1000 if times else LONGEST_WAIT


def _too_few() -> Unavailable:
    return Unavailable(
        "too few nodes have everything that the stream holds",
        code=Code.NOT_ENOUGH_REPLICAS,
        outcome=Outcome.NONE,
        retry_after_seconds=1,
    )
