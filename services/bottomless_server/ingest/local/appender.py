"""The one task that owns a stream's tail: it seals what waits, writes, syncs and answers.

New appends wait while a round is being synced and share the next one, so that one sync serves all
of them; log/rounds.py writes and syncs the rounds of many streams together.

The order of one round, which `tests/unit/ingest/test_append_order.py` records:
offsets reserved in coordination → bytes written → synced → visible → answered. Synced and visible are
two steps, `extend` and `commit` of the log: what is known of producers moves with the second. With
replicas, bytes that are written are sent while they are synced, and a round
is visible when all nodes have it that are in sync; what a log held when it was opened, the same.
After a crash before the sync recovery cuts the round, and nobody had an answer. After a crash that
comes later the round is there, answered or not.

A round ends in the term of the lease in which it was chosen, or is refused: what was true of the
stream then, such as the layouts of which it takes parts, may be otherwise after a lapse.

On the record's path: after log/core/batcher.py, before feed.py, from where the uploader takes it.
In between log/rounds.py and log/segments.py make it durable.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import structlog

from bottomless.errors import Fenced, Outcome, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.config import StreamConfig
from bottomless.model.limits import PARTITION_COUNT_MAX
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.core.restated import restated
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.local.appender_context import AppenderContext, log_broken
from bottomless_server.ingest.local.freeing import SegmentFreeing
from bottomless_server.ingest.local.replicas import (
    CommittedNote,
    Refuse,
    Replicas,
    until_all_have,
)
from bottomless_server.ingest.local.waiting import Chosen, WaitingAppends
from bottomless_server.ingest.local.waiting_changes import (
    ChosenChanges,
    StateChange,
    WaitingChanges,
)
from bottomless_server.ingest.log.core.batcher import Round, SealedChunk, seal_round, seal_state
from bottomless_server.ingest.log.segments import LogBroken, SegmentLog
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.intake import Append
from bottomless_server.node.core.clock import commit_timestamp
from bottomless_server.node.core.in_sync import holds_all
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.owner import Claim
from bottomless_server.node.pulse import Pulse
from bottomless_server.runtime.base.on_loop import in_thread

log = structlog.get_logger(__name__)


NO_LAYOUT: Final = PARTITION_COUNT_MAX + 1
"""Newer than any layout: where it is not known which parts may be taken."""


class ConfigMark(NamedTuple):
    """A mark of configurations as coordination shows it."""

    value: bytes | None


class LocalAppender:
    """Takes appends to one stream that this node owns; `stopped` says why it takes none any more."""

    def __init__(
        self,
        context: AppenderContext,
        claim: Claim,
        local: SegmentLog,
        record: StreamRecord,
        tracking: Tracking,
        changed: Callable[["LocalAppender"], None],
        replicas: Replicas | None = None,
    ) -> None:
        """`replicas`: the other nodes that hold the stream; None if it lies here alone."""
        self.tracking = tracking
        """What is known of producers, from committed chunks alone."""
        self.stream_id = claim.stream_id
        self.tenant = record.tenant
        self.claim = claim
        self.log = local
        self.config = record.config
        self.config_looked_at: ConfigMark | None = None
        """The mark under which the configuration was compared with that of the record; None: not
        since the stream was opened, which may have been long after its record was read."""
        self.partition_of = record.partition_of
        """The super stream that it is a partition of; None of any other stream."""
        self.layout = 0
        """The oldest layout of its super stream of which it takes parts."""
        self.layout_term: int | None = None
        """The term of the lease in which the super record was read; None: it was not yet."""
        self.stopped: StoreError | None = None
        self.failed = False
        """Whether it stopped by its log, so that what is on its disk is not to be believed to the end."""
        self.advanced = Pulse()
        """Fires when records become visible, and when the stream stops."""
        self.used_at = context.clocks.elapsed()
        """When something was written last, or else the stream was opened."""
        self.has_written = False
        """Whether a round was written since."""
        self.awaits_found = replicas is not None and record.dirty
        """Whether it is not known yet what the stream holds: others that hold it may have more, of a disk
        here that came back older, or empty."""
        self._context = context
        self._changed = changed
        self._replicas = replicas
        self._waiting = WaitingAppends(context.chunk_size_max)
        self._changing = WaitingChanges()
        self._wake = asyncio.Event()
        published = (record.published_next, record.version)
        self._freeing = SegmentFreeing(
            context.hops,
            context.clocks,
            context.disk,
            context.freeing,
            claim if replicas is None else CommittedNote(claim, local),
            local,
            published,
        )
        self._resting = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Note durably what was claimed, then take appends.

        Raises:
            OSError: the disk does not take the checkpoint.
        """
        await self._freeing.save_checkpoint()
        self._freeing.count_disk()
        self._task = asyncio.create_task(self._run(), name=f"appender-{self.stream_id}")

    async def append(self, append: Append) -> Appended:
        """Return when the records are durable and visible.

        Cancelling this does not undo the append: its outcome is then unknown to the caller.

        Raises:
            StoreError: with the outcome that is known.
        """
        return await self.put(append)

    def put(self, append: Append) -> asyncio.Future[Appended]:
        """Put an append in line: its future tells what `append` would return or raise.

        Raises:
            StoreError: it is refused now, and is not in line; outcome none.
        """
        self.require_open()
        answer = self._waiting.add(append)
        self._wake.set()
        return answer

    def require_open(self) -> None:
        """Refuse what nobody could confirm. If this returns no round is held that waits for other
        nodes, so all that was put before and answered is stored, or never will be.

        Raises:
            StoreError: it takes nothing any more, or other nodes are waited for; outcome none.
        """
        if self.stopped is not None:
            raise restated(self.stopped)
        if self._replicas is not None:
            self._replicas.require_enough()

    async def change(self, change: StateChange) -> None:
        """Return when a change of what is known of producers is durable. Those that wait together
        share a chunk and its sync.

        After a crash before its sync recovery cuts it; after a later crash it holds, answered or not.

        Raises:
            StoreError: what the change raises, and what an append may meet.
        """
        self.require_open()
        answer = self._changing.add(change)
        self._wake.set()
        try:
            await answer
        finally:
            # An error refers to this frame, and the answer to the error.
            del answer

    @guard("the layout, read anew in each term of a lease")
    def knows_layout(self) -> bool:
        """Whether the layout of its super stream was read since nobody could be told another one:
        whoever lets it grow goes on without an owner whose lease is over."""
        return self.layout_term == self.claim.term

    @property
    def replicas(self) -> Replicas | None:
        """The other nodes that hold the stream; None if it lies here alone."""
        return self._replicas

    @property
    def has_replicas(self) -> bool:
        """Whether other nodes hold the stream too."""
        return self._replicas is not None

    @property
    def in_sync_others(self) -> tuple[NodeId, ...]:
        """The other nodes that have all that is shown of the stream."""
        return () if self._replicas is None else self._replicas.in_sync_others

    @property
    def waiting_since(self) -> int | None:
        """Since when a round waits for other nodes, by the monotonic clock in ms; None: none does."""
        return None if self._replicas is None else self._replicas.waiting_since

    @property
    def heeds_config(self) -> bool:
        """Whether another configuration changes anything now: something is to be uploaded, or other nodes
        are waited for, of which fewer may be asked for."""
        awaits = self._replicas is not None and self._replicas.awaits_nodes
        return awaits or self.log.committed_next > self.published_next

    @property
    def ahead(self) -> Collection[NodeId]:
        """Nodes in sync that have more than this one: one of them is to own the stream."""
        return () if self._replicas is None else self._replicas.ahead

    @property
    def failing(self) -> tuple[NodeId, ...]:
        """Other nodes that said last that they cannot store what they are sent."""
        return () if self._replicas is None else self._replicas.failing

    @property
    def stalled(self) -> tuple[NodeId, ...]:
        """Other nodes that live, lack something, and of which nothing more was heard for long."""
        return () if self._replicas is None else self._replicas.stalled

    def oldest_layout(self) -> int:
        """The oldest layout of which parts are taken now; newer than any where that is not known."""
        return self.layout if self.knows_layout() else NO_LAYOUT

    async def fence_layouts(self, layout: int) -> None:
        """Return when no part of an older layout than this can become durable any more.

        It is kept in memory alone: whoever claims the stream next, or holds it in the next term of
        its lease, reads the super record before it takes a part.

        Raises:
            StoreError: nobody can say so here; outcome none.
        """
        self.layout = max(self.layout, layout)
        # What was chosen before is durable, or refused, when the next change is looked at.
        await self.change(lambda *_: ())

    @property
    def published_next(self) -> int:
        return self._freeing.published_next

    @property
    def version(self) -> int:
        """The version of the manifest that this node last heard of."""
        return self._freeing.version

    def configure(self, config: StreamConfig) -> bool:
        """Go on with another configuration; False if the stream has to be claimed anew for it, since
        it lies here alone, and other nodes are to have it too."""
        if self._replicas is None and config.replication.replicas > 1:
            return False
        self.config = config
        if self._replicas is not None:
            self._replicas.configure(config)
        return True

    def note_published(self, next_offset: int, version: int) -> None:
        """What object storage holds, as of the last successful EXEC."""
        if self._replicas is not None:
            self._replicas.note_published(next_offset, version)
        if self._freeing.note_published(next_offset, version):
            self._wake.set()

    def tick(self) -> None:
        """Have files looked after if something is due; called now and then."""
        if self._freeing.is_due():
            self._wake.set()

    def rest(self) -> None:
        """Give the file handles back when nothing is under way; the next round takes new ones."""
        self._resting = True
        self._wake.set()

    @property
    def closed(self) -> bool:
        """Whether it touches no file any more."""
        return self.stopped is not None and (self._task is None or self._task.done())

    async def close(self, why: StoreError, *, leave: bool) -> None:
        """Finish what waits, note what is durable, and stop; with `leave`, leave it clean, unless a
        commit of staged batches is open whose rest only this node has."""
        if self.stopped is None:
            self.stopped = why
        self._wake.set()
        if self._replicas is not None:
            self._replicas.end()
        if self._task is not None:
            # Who closes may be broken off, and another goes on with it: the round ends all the same.
            await asyncio.shield(self._task)
            self._task = None
            self._freeing.count_disk(closed=True)
            if leave and self.is_whole() and not self.is_bound():
                with suppress(StoreError):
                    await self.claim.leave(self.log.synced_next, self._known_producers())
        self.advanced.fire()

    def is_whole(self) -> bool:
        """Whether the stream is known to end where this log does."""
        waits = self.failed or self.awaits_found
        return holds_all(waits=waits, committed=self.log.committed_end, synced=self.log.synced_end)

    @guard("the look at open commits before a stream is left")
    def is_bound(self) -> bool:
        """Whether the rest of a commit lies on this disk: another owner could never finish it."""
        return self._context.has_begun(self.stream_id, self.tracking)

    def _known_producers(self) -> bytes | None:
        """What the next owner has to know, as a chunk says it; None if nothing is known."""
        if not self.tracking:
            return None
        sealed = seal_state(
            self.tracking.snapshot(),
            first_offset=self.log.synced_next,
            timestamp=self.log.last_timestamp,
            epoch=self.claim.epoch,
        )
        return b"".join(sealed.buffers)

    async def _run(self) -> None:
        try:
            if self._replicas is not None:
                await self._show_found(self._replicas)
            while self.stopped is None or self._waiting or self._changing:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting or self._changing:
                    if self._replicas is not None and not await self._has_enough(self._replicas):
                        break
                    # In turn, so that neither waits for as long as there are others of the kind.
                    if self._changing:
                        await self._change_round()
                    if self._waiting:
                        await self._round()
                    if self._freeing.is_due():
                        await self._freeing.look()
                await self._freeing.look(last=self.stopped is not None)
                if self._resting and not self._waiting and not self._changing:
                    # Together with the others that rest now.
                    await self._context.hops.call(self.log.close)
                self._resting = False
        except StoreError as error:
            self._stop(error)
        except Exception:
            log.exception("the appender met a bug", stream_id=self.stream_id)
            self._stop(StoreError("an unexpected error", outcome=Outcome.NONE))
        if self._replicas is not None:
            if self.stopped is not None:
                # Also of a log that stops in a round that is held: another owner may open it next.
                await self._freeing.look(last=True)
            await self._replicas.close()
        # Not after a cancel, when a stop is cut: a thread may still be writing, and
        # once the file is closed its number may be another file's.
        await in_thread(self._context.executor, self.log.close)
        self.advanced.fire()

    async def _show_found(self, replicas: Replicas) -> None:
        """Show what lay here when the stream was claimed, once all have it that may claim it next."""
        end = self.log.chunks_end()
        if end is None and self.awaits_found:
            # Nothing lies here of a stream that may hold something: whoever has it says so.
            end = self.log.synced_place()
        if end is not None:
            # Nobody waits for an answer about it: who had none yet asks again.
            await until_all_have(replicas, end, lambda _: None, self._refuse_waiting)
        self.awaits_found = False
        self.log.commit_found()
        self._changed(self)
        self.advanced.fire()

    async def _has_enough(self, replicas: Replicas) -> bool:
        """Whether a round may be written; if not, those that wait were told that nothing is stored."""
        try:
            await replicas.enough()
        except Unavailable as error:
            self._refuse_waiting(error)
            return False
        return True

    async def _round(self) -> None:
        """Do one round. What fails only this round is answered here; what stops the stream is raised."""
        term = self.claim.term
        try:
            self.claim.require()
            timestamp = self._timestamp()
        except StoreError as error:
            self._waiting.refuse_all(error)
            return
        self.tracking.begin()
        taken = self._waiting.choose(
            self.tracking,
            self.log.committed_next,
            self.oldest_layout(),
        )
        if not taken:
            self.tracking.end()
            return

        def refuse(error: StoreError) -> None:
            for one in taken:
                self._waiting.settle(one.waiting, error)

        try:
            await self._attempt(self._append_chosen(taken, timestamp, term, refuse), refuse)
        finally:
            self.tracking.end()

    async def _change_round(self) -> None:
        """Write the changes of what is known of producers that wait, in a chunk of their own."""
        term = self.claim.term
        try:
            self.claim.require()
            timestamp = self._timestamp()
        except StoreError as error:
            self._changing.refuse_all(error)
            return
        self.tracking.begin()
        try:
            chosen = self._changing.choose(self.tracking, timestamp)
            if chosen.changes:
                await self._attempt(self._write_changes(chosen, timestamp, term), chosen.settle)
        finally:
            self.tracking.end()

    async def _attempt(
        self, work: Coroutine[Any, Any, None], refuse: Callable[[StoreError], None]
    ) -> None:
        """Do work that answers some callers, or refuse them with what is known of the outcome."""
        try:
            await work
        except (LogBroken, Fenced) as error:
            outcome = error.outcome or Outcome.NONE
            refuse(not_owner() if isinstance(error, Fenced) else log_broken(outcome))
            raise
        except StoreError as error:
            refuse(error)
        except BaseException:
            refuse(StoreError("an unexpected error", outcome=Outcome.UNKNOWN))
            raise

    async def _append_chosen(
        self, taken: Sequence[Chosen], timestamp: int, term: int, refuse: Refuse
    ) -> None:
        last_offset = self.log.synced_next + sum(one.append.record_count for one in taken)
        await self.claim.reserve(last_offset)
        self._require_same(term, Outcome.NONE)
        sealed = seal_round(
            [one.append for one in taken],
            next_offset=self.log.synced_next,
            timestamp=timestamp,
            epoch=self.claim.epoch,
            chunk_size_max=self._context.chunk_size_max,
        )
        await self._write(sealed, refuse)
        self._changed(self)
        self.advanced.fire()
        # Durable, but perhaps no longer ours to confirm. Readers are asked for the same claim.
        self._require_same(term, Outcome.UNKNOWN)
        for one, (first, count) in zip(taken, sealed.placements, strict=True):
            answer = Appended(first, first + count, timestamp, count, one.duplicates)
            self._waiting.settle(one.waiting, answer)

    async def _write_changes(self, chosen: ChosenChanges, timestamp: int, term: int) -> None:
        # Takes no offset, but makes the stream dirty: nobody else may own it without this.
        await self.claim.reserve(self.log.synced_next)
        self._require_same(term, Outcome.NONE)
        chunk = seal_state(
            chosen.entries,
            first_offset=self.log.synced_next,
            timestamp=timestamp,
            epoch=self.claim.epoch,
        )
        sealed = Round([chunk], [], timestamp, self.log.synced_next)
        await self._write(sealed, chosen.settle)
        self._require_same(term, Outcome.UNKNOWN)
        chosen.settle()

    @guard("the term of the lease in which a round was chosen")
    def _require_same(self, term: int, outcome: Outcome) -> None:
        """Refuse to write or confirm a round after a lapse of the lease, though the claim is good
        again: whoever waited for the end of the lease goes by it that nothing of before is stored.

        Raises:
            Unavailable: `not-owner`.
        """
        self.claim.require(outcome)
        if self.claim.term != term:
            raise not_owner(outcome=outcome)

    async def _write(self, sealed: Round, refuse: Refuse) -> None:
        """Write and sync, and only then let it count for readers and for repeats; with replicas, when
        all in sync have it."""
        elapsed, replicas = self._context.clocks.elapsed(), self._replicas
        send = None if replicas is None else replicas.send

        def state() -> SealedChunk | None:
            # Nothing changes it while this round is written: `Tracking.begin` is what sees to it.
            return _state_before(self.tracking, sealed)

        written = await self._context.rounds.write(
            self.log, sealed, self.claim.epoch, elapsed, state, send
        )
        self.log.extend(written)
        if replicas is not None:
            end = self.log.synced_place()
            await until_all_have(replicas, end, refuse, self._refuse_waiting)
        self.log.commit(written)
        self.used_at, self.has_written = elapsed, True
        self._freeing.count_disk()
        for chunk in sealed.chunks:
            self.tracking.take_tracked(chunk.tracked)
            self.tracking.take_chunk(
                chunk.first_offset,
                chunk.timestamp,
                chunk.entries,
                more_follows=chunk.more_follows,
            )

    def _timestamp(self) -> int:
        wall = self._context.read_clock()
        return commit_timestamp(self.log.last_timestamp, wall)

    def _stop(self, error: StoreError) -> None:
        self.failed = isinstance(error, LogBroken)
        log.error("the stream stops", stream_id=self.stream_id, error=str(error))
        if self.stopped is None:
            self.stopped = not_owner() if isinstance(error, Fenced) else log_broken(Outcome.NONE)
        refused = not_owner() if isinstance(error, Fenced) else log_broken(Outcome.NONE)
        self._refuse_waiting(refused)

    def _refuse_waiting(self, error: StoreError) -> None:
        self._waiting.refuse_all(error)
        self._changing.refuse_all(error)


def _state_before(tracking: Tracking, sealed: Round) -> SealedChunk | None:
    """What was known before a round, as the chunk that stands before it; None if nothing was."""
    if not tracking:
        return None
    first = sealed.chunks[0]
    return seal_state(
        tracking.snapshot(),
        first_offset=first.first_offset,
        timestamp=first.timestamp,
        epoch=first.epoch,
        more_follows=True,
    )
