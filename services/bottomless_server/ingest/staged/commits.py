"""Commits of staged batches: what many have staged becomes one append, once.

A commit names batches in order, under a producer's number (`Txn-Number`). They are pinned
before anything is sealed, read, and appended like any request: one group of chunks that is
visible with its last one, its number in the chunk's trailer. So whether a commit happened is
known from the log alone, and a repeat is answered from it, with whatever batches it comes.

What is larger than one append may be becomes parts. The last one has the number, those before
it have names of their own (producers/commit_parts.py): so a number that the log knows is that of a
whole commit, at every owner of the stream. Which batches belong to which part is written to a
plan first, since a repeat may come with other batches, of the same records in other pieces:
once a part is in the log only the batches of its plan are the rest.

What is there after a crash at each step, and what the same number then does:

    batches staged         nothing is appended; the batches expire. Appends what it names.
    plan written           the same; the plan is not begun, and a new one takes its place.
    producer noted         the same; the producer is listed, and has no number yet.
    some parts appended    those are in the log, and the commit is open; the plan's batches do not
                           expire. Appends the rest by the plan, and drops what it names itself.
    the last one appended  a repeat, here and at the next owner. Drops what is left.

While it is open no later number of its producer is let in, and the stream does not leave this
node: the rest lies on this disk and nowhere else. Nobody has to ask for that rest. `finish`
appends it, now and then and at a drain, so that the stream may go; what cannot be finished, by
a disk that does not work, keeps the stream here, and the drain says so (local/handover.py).

Of a stream with replicas batches and plan are in the object store (object_batches.py), so an open
commit keeps it nowhere: whoever owns it next finishes the commit. Where the number of replicas is
changed in between, a commit is finished where it was begun, and a new one is kept as the stream is then.

Of a plan it is known how many of its parts are in the log, by their numbers. Whether those are
the plan's is known by their checksums, so they are compared before it is followed: an earlier
build, or a node that was set back to one, let streams leave while a commit was open, and the next
owner stored something else under the same numbers. Such a plan is dropped.

Where the rest is lost (it was too old, or its plan is damaged) the number is refused, and is
never a repeat. To forget the producer ends that, and stores all of it anew.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

import structlog

from bottomless.errors import Code, Corrupt, NotFound, Outcome, StoreError, Unavailable, WrongOffset
from bottomless.guards import guard
from bottomless.model.chunk import AppendMode
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.producers.commit_parts import (
    identity_of,
    open_commit,
    parts_before,
    progress,
)
from bottomless_server.ingest.producers.commit_plan import (
    CommitPlan,
    StagedBatch,
    parts_of,
    rest_not_found,
)
from bottomless_server.ingest.producers.producer_changes import note
from bottomless_server.ingest.producers.producers import Appended, known_of, unfinished
from bottomless_server.ingest.records.conditions import Conditions, FromProducer, commit_of
from bottomless_server.ingest.records.intake import Append
from bottomless_server.ingest.staged.batches import StagedBatches
from bottomless_server.ingest.staged.commit_appends import CommitAppends, HoldRoom
from bottomless_server.ingest.staged.kept import KeptBatches
from bottomless_server.ingest.staged.object_batches import SharedBatches
from bottomless_server.ingest.turns import Turns
from bottomless_server.node.lease import Clocks
from bottomless_server.runtime.base.fault_points import reach

log = structlog.get_logger(__name__)


class StagedCommits:
    """Commits of staged batches, of each producer one at a time: the next is decided after the first."""

    def __init__(
        self,
        batches: StagedBatches,
        clocks: Clocks,
        group_size_max: int,
        room: HoldRoom,
        shared: SharedBatches | None = None,
    ) -> None:
        """`batches` are those on this disk, `shared` those in the object store, if there is one."""
        self._batches = batches
        self._shared = shared
        self._clocks = clocks
        self._group_size_max = group_size_max
        self._appends = CommitAppends(room)
        self._turns = Turns()

    async def commit(
        self, appender: LocalAppender, conditions: Conditions, staged_ids: Sequence[str]
    ) -> Appended:
        """Append staged batches, or answer what an earlier request with this number got.

        Raises:
            StoreError: with the outcome that is known; the same request again is right.
        """
        asked = commit_of(conditions)

        async def decided() -> Appended:
            with _disk_works():
                return await self._decided(appender, asked, conditions, staged_ids)

        return await self._turns.take(appender.stream_id, asked.producer_id, decided)

    @guard("the end of what is begun before a fence is answered")
    async def settle(self, appender: LocalAppender, producer_id: str) -> None:
        """Return when no commit of a producer is open; called after its epoch was raised, since from
        then on none can be begun under an older one.

        The next writer asks for the last number of the producer and goes on after it. A commit that
        is still open would become whole later, under a number that this writer takes for free.

        Raises:
            StoreError: one is open and cannot be finished now, or its rest is lost; the epoch is
                raised, so the outcome is unknown.
        """
        try:
            if self._is_open(appender, producer_id):
                await self._turns.take(
                    appender.stream_id,
                    producer_id,
                    lambda: self._settle_alone(appender, producer_id),
                    bounded=False,
                )
        except StoreError as error:
            error.outcome = Outcome.UNKNOWN
            raise

    def _is_open(self, appender: LocalAppender, producer_id: str) -> bool:
        if open_commit(appender.tracking, producer_id) is not None:
            return True
        plan = self._batches.plan(appender.stream_id, producer_id)
        return plan is not None and progress(plan, appender.tracking).start > 0

    async def _kept(
        self, appender: LocalAppender, producer_id: str, staged_ids: Sequence[str] = ()
    ) -> KeptBatches:
        """Where a commit of a producer was begun; where none is, where a new one is kept.

        Raises:
            StoreError: that cannot be known now; the outcome of a commit is unknown.
        """
        stream_id, disk = appender.stream_id, self._batches
        if self._shared is None or self._has_begun_here(appender, producer_id):
            return disk
        if appender.has_replicas or open_commit(appender.tracking, producer_id) is not None:
            return await self._shared.get(appender)
        # Of a stream that lies here alone nothing waits for the object store, unless it has to.
        return disk if disk.has_all(stream_id, staged_ids) else self._shared.of(appender)

    def _has_begun_here(self, appender: LocalAppender, producer_id: str) -> bool:
        try:
            plan = self._batches.plan(appender.stream_id, producer_id)
        except Corrupt:
            return True
        return plan is not None and progress(plan, appender.tracking).start > 0

    async def _settle_alone(self, appender: LocalAppender, producer_id: str) -> None:
        with _disk_works():
            await self._finish_alone(appender, producer_id)
        begun = open_commit(appender.tracking, producer_id)
        if begun is not None:
            raise rest_not_found(begun.part_count)

    async def stop(self) -> None:
        """Return when no commit is under way."""
        await self._turns.stop()

    async def finish(self, appenders: Iterable[LocalAppender]) -> None:
        """Append what is missing of commits that are open, as far as that can be done now.

        The clients that asked for them need not come back: for them the outcome was unknown, and it
        is then that the records are stored.
        """
        for appender in list(appenders):
            for plan in [
                *self._batches.plans(appender.stream_id),
                *await self._shared_plans(appender),
            ]:
                # The numbers that a plan of version 1 still takes may be its writer's next ones.
                if plan.epoch is not None and progress(plan, appender.tracking).start:
                    await self._finish_quietly(appender, plan.producer_id)

    async def _shared_plans(self, appender: LocalAppender) -> list[CommitPlan]:
        here = [
            plan
            for plan in self._batches.plans(appender.stream_id)
            if progress(plan, appender.tracking).start
        ]
        if self._shared is None or len(appender.tracking.open_commits) <= len(here):
            return []
        try:
            return (await self._shared.get(appender)).plans
        except StoreError as error:
            stream_id = appender.stream_id
            log.warning("plans of commits are not found", stream_id=stream_id, error=str(error))
            return []

    async def _finish_quietly(self, appender: LocalAppender, producer_id: str) -> None:
        told = {"stream_id": appender.stream_id, "producer_id": producer_id}

        async def finish() -> None:
            with _disk_works():
                await self._finish_alone(appender, producer_id)

        try:
            await self._turns.take(appender.stream_id, producer_id, finish, bounded=False)
        except StoreError as error:
            log.warning("a commit is not finished", error=str(error), **told)
        else:
            log.info("a commit that was cut off is finished", **told)

    async def _finish_alone(self, appender: LocalAppender, producer_id: str) -> None:
        kept = await self._kept(appender, producer_id)
        plan = await self._plan(kept, appender, producer_id)
        if plan is not None and progress(plan, appender.tracking).start:
            known = appender.tracking.producers.get(producer_id)
            epoch = max(plan.epoch or 0, 0 if known is None else known.epoch)
            asked = FromProducer(producer_id, epoch, AppendMode.TRANSACTION, plan.number)
            await self._finish_plan(kept, appender, asked, plan)

    async def _decided(
        self,
        appender: LocalAppender,
        asked: FromProducer,
        conditions: Conditions,
        staged_ids: Sequence[str],
    ) -> Appended:
        stream_id = appender.stream_id
        kept = await self._kept(appender, asked.producer_id, staged_ids)
        plan = await self._plan(kept, appender, asked.producer_id)
        if plan is not None and progress(plan, appender.tracking).start:
            if plan.number == asked.number:
                answer = await self._finish_plan(kept, appender, asked, plan)
                await kept.drop(stream_id, staged_ids)
                return answer
            if plan.epoch is None:
                # Its parts have numbers of the producer, which say nothing of what is whole.
                raise unfinished(plan.number, asked.number)
        repeated = await self._repeated(kept, appender, asked, conditions, staged_ids)
        if repeated is not None:
            over = plan if plan is not None and plan.number == asked.number else None
            ids = staged_ids if over is None else [*over.staged_ids, *staged_ids]
            await kept.drop(stream_id, ids, over)
            return repeated
        async with kept.pinned(stream_id, asked.producer_id, staged_ids) as batches:
            parts = parts_of(batches, self._group_size_max)
            if len(parts) == 1:
                answer = await self._appends.append(kept, appender, conditions, parts[0])
                # An earlier plan of this producer goes too, if it was never begun.
                if plan is not None and progress(plan, appender.tracking).start:
                    plan = None
            else:
                plan = _plan_of(asked, parts, self._clocks.wall())
                _require_none_held(appender)
                await kept.save_plan(stream_id, plan)
                await reach("ingest.commit.after-plan")
                await _note_producer(appender, asked)
                expected = conditions.expected_offset
                answer = await self._append_plan(kept, appender, asked, plan, batches, expected)
            await reach("ingest.commit.after-append")
        await kept.drop(stream_id, staged_ids, plan)
        return answer

    async def _repeated(
        self,
        kept: KeptBatches,
        appender: LocalAppender,
        asked: FromProducer,
        conditions: Conditions,
        staged_ids: Sequence[str],
    ) -> Appended | None:
        """What the original of a repeat was answered, None if this is none. Where not all of its
        parts are remembered its first offset is not, and the duplicates are what this one names.

        Raises:
            StoreError: the producer may not append this; or another owns the stream.
        """
        appender.claim.require()
        tracking = appender.tracking
        begun = open_commit(tracking, asked.producer_id)
        if begun is not None and begun.number == asked.number:
            # And the plan is not here, or what it names is not.
            raise rest_not_found(begun.part_count)
        known = tracking.producers.get(asked.producer_id)
        appends = () if known is None else known.appends
        last = next((one for one in appends if one.sequence == asked.number), None)
        verdict = known_of(
            tracking,
            Append(0, 0, 0, conditions=conditions),
            appender.log.committed_next,
        )
        if not isinstance(verdict, Appended):
            return None
        before = None if last is None else parts_before(tracking, asked.producer_id, last)
        if last is None or before is None:
            named = await kept.record_count(appender.stream_id, staged_ids)
            end = appender.log.committed_next
            return Appended(None, end, None, 0, named, replayed=True)
        stored = (*before, last)
        return verdict._replace(
            first_offset=stored[0].first_offset, duplicates=sum(one.record_count for one in stored)
        )

    async def _plan(
        self, kept: KeptBatches, appender: LocalAppender, producer_id: str
    ) -> CommitPlan | None:
        """The plan of a producer, if what is stored under its numbers is what it says.

        Raises:
            StoreError: that cannot be known now; parts of a commit are stored, so of the commit
                the outcome is unknown.
        """
        stream_id = appender.stream_id
        try:
            plan = kept.plan(stream_id, producer_id)
            if plan is None or await self._appends.is_followed(kept, appender, plan):
                return plan
        except StoreError as error:
            error.outcome = Outcome.UNKNOWN
            raise
        if appender.awaits_found:
            # What is stored here may be cut yet, and the rest of the commit is in this plan alone then.
            return None
        log.warning(
            "the plan of a commit is dropped: another owner stored something else",
            stream_id=stream_id,
            producer_id=producer_id,
        )
        await kept.drop(stream_id, plan.staged_ids, plan)
        return None

    async def _finish_plan(
        self, kept: KeptBatches, appender: LocalAppender, asked: FromProducer, plan: CommitPlan
    ) -> Appended:
        """Store what is left of a commit that was cut off, as its plan says.

        Raises:
            StoreError: also `staged-not-found`, where the batches of the plan were too old.
        """
        stream_id = appender.stream_id
        async with AsyncExitStack() as held:
            try:
                pinned = kept.pinned(stream_id, asked.producer_id, plan.staged_ids)
                batches = await held.enter_async_context(pinned)
            except NotFound:
                raise rest_not_found(progress(plan, appender.tracking).start) from None
            except StoreError as error:
                error.outcome = Outcome.UNKNOWN
                raise
            answer = await self._append_plan(kept, appender, asked, plan, batches)
        await kept.drop(stream_id, plan.staged_ids, plan)
        return answer

    async def _append_plan(
        self,
        kept: KeptBatches,
        appender: LocalAppender,
        asked: FromProducer,
        plan: CommitPlan,
        batches: Sequence[StagedBatch],
        expected_offset: int | None = None,
    ) -> Appended:
        """Append the parts of a plan that are not in the log yet."""
        start, before = progress(plan, appender.tracking)
        by_id = {batch.staged_id: batch for batch in batches}
        answers: list[Appended] = []
        for number in range(start, len(plan.parts)):
            identity = identity_of(plan, number, asked)
            numbered = Conditions(identity, None if number else expected_offset)
            part = [by_id[staged_id] for staged_id in plan.parts[number]]
            try:
                answer = await self._appends.append(kept, appender, numbered, part)
                if answer.replayed:
                    return _stored_meanwhile(number, answer, batches)
            except StoreError as error:
                if number:
                    # Of the whole commit something is stored, whatever became of this part.
                    error.outcome = Outcome.UNKNOWN
                raise
            answers.append(answer)
            await reach("ingest.commit.after-part")
        first = before[0].first_offset if len(before) == start > 0 else None
        return Appended(
            first if start else answers[0].first_offset,
            answers[-1].next_offset,
            answers[-1].timestamp,
            sum(answer.record_count for answer in answers),
            sum(one.record_count for one in before),
        )


@contextmanager
def _disk_works() -> Iterator[None]:
    """Say what a disk of staged batches that fails means for a commit."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            "the disk of staged batches does not work",
            code=Code.STORAGE_FAILED,
            outcome=Outcome.UNKNOWN,
            retry_after_seconds=1,
        ) from error


def _stored_meanwhile(number: int, answer: Appended, batches: Sequence[StagedBatch]) -> Appended:
    """The answer of a commit that was stored in one piece while its first part waited for room.

    Raises:
        WrongOffset: parts of it are stored as well.
    """
    if number:
        raise WrongOffset(
            "another commit has taken the number of a part", code=Code.PRODUCER_SEQUENCE_OVERLAP
        )
    return answer._replace(duplicates=sum(batch.record_count for batch in batches))


@guard("no held round before a plan is made anew")
def _require_none_held(appender: LocalAppender) -> None:
    """Refuse to make a plan while a part of an earlier one may still become visible.

    Raises:
        StoreError: a round waits for other nodes, so the outcome is unknown.
    """
    try:
        appender.require_open()
    except StoreError as error:
        error.outcome = Outcome.UNKNOWN
        raise


async def _note_producer(appender: LocalAppender, asked: FromProducer) -> None:
    """Let the producer be known before its first part is, so that an import that starts again, and
    looks for what was begun under its name, finds it."""
    await appender.change(
        lambda tracking, now, places: note(tracking, asked.producer_id, asked.epoch, now, places)
    )


def _plan_of(asked: FromProducer, parts: Sequence[Sequence[StagedBatch]], now: int) -> CommitPlan:
    ids = tuple(tuple(batch.staged_id for batch in part) for part in parts)
    return CommitPlan(asked.producer_id, asked.number, now, ids, asked.epoch)
