"""Commits of staged batches: what many have staged becomes one append, once.

A commit names batches in order, under a producer's number (`Txn-Number`). They are pinned
before anything is sealed, read, and appended like any request: one group of chunks that is
visible with its last one, its number in the chunk's trailer. So whether a commit happened is
known from the log alone, and a repeat is answered from it, with whatever batches it comes.

What is larger than one append may be becomes parts with consecutive numbers. Which batches
belong to which part is then written to a plan first, since a repeat may come with other
batches, of the same records in other pieces: once a part is in the log only the batches of its
plan are the rest.

What is there after a crash at each step, and what the same number then does:

    batches staged                  nothing is appended; the batches expire. Appends what it names.
    plan written                    the same; the plan is not begun, and a new one takes its place.
    some parts appended             those are in the log; the plan's batches do not expire. Appends
                                    the rest by the plan, and drops what it names itself.
    all appended, nothing dropped   a repeat: the plan is over. Drops what is left.

Until it is finished or too old, a plan that is begun lets no other number of its producer in.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Final

from bottomless.errors import Code, Outcome, StoreError, Unavailable, WrongOffset
from bottomless.formats.checks import crc32c
from bottomless.formats.rows import Frame
from bottomless.model.chunk import AppendMode
from bottomless.model.names import StreamId
from bottomless_server.ingest.appender import Appender
from bottomless_server.ingest.core.intake import Append
from bottomless_server.ingest.core.producers import Appended, decide
from bottomless_server.ingest.core.promises import SEQUENCE_MAX, FromProducer, Promise, bad_header
from bottomless_server.ingest.core.staged import Plan, StagedBatch, parts_of
from bottomless_server.ingest.core.tracking import Tracking
from bottomless_server.ingest.owner import Clocks
from bottomless_server.ingest.staged import StagedBatches
from bottomless_server.runtime.fault_points import reach

Room = Callable[[StreamId, int], AbstractAsyncContextManager[None]]
"""Holds room for so many bytes of a stream while an append of them is under way."""

_TURN_COUNT_MAX: Final = 1_000
"""Commits at once in the whole process; each holds what one request names."""


class StagedCommits:
    """Of one producer one at a time: the next is decided when the first is."""

    def __init__(
        self, batches: StagedBatches, clocks: Clocks, group_size_max: int, room: Room
    ) -> None:
        self._batches = batches
        self._clocks = clocks
        self._group_size_max = group_size_max
        self._room = room
        self._turns: dict[tuple[StreamId, str], _Turn] = {}
        self._running: set[asyncio.Task[Appended]] = set()

    async def commit(
        self, appender: Appender, promise: Promise, staged_ids: Sequence[str]
    ) -> Appended:
        """Append staged batches, or answer what an earlier request with this number got.

        Raises:
            StoreError: with the outcome that is known; the same request again is right.
        """
        asked = promise.identity
        if not isinstance(asked, FromProducer) or asked.mode is not AppendMode.TRANSACTION:
            raise bad_header("txn-number", "it goes with staged batches, and is missing")
        if len(self._running) >= _TURN_COUNT_MAX:
            raise Unavailable("too many commits", code=Code.OVERLOADED, retry_after_seconds=1)
        # Goes on when the client leaves: its parts must not mix with those of a repeat.
        work = asyncio.create_task(self._in_turn(appender, asked, promise, staged_ids))
        self._running.add(work)
        work.add_done_callback(self._ended)
        return await asyncio.shield(work)

    async def stop(self) -> None:
        """Return when no commit is under way."""
        await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, work: asyncio.Task[Appended]) -> None:
        self._running.discard(work)
        if not work.cancelled():
            # Looked at here, since nobody may be waiting for it any more.
            work.exception()

    async def _in_turn(
        self, appender: Appender, asked: FromProducer, promise: Promise, staged_ids: Sequence[str]
    ) -> Appended:
        key = (appender.stream_id, asked.producer_id)
        turn = self._turns.setdefault(key, _Turn())
        turn.count += 1
        try:
            async with turn.lock:
                return await self._decided(appender, asked, promise, staged_ids)
        except OSError as error:
            raise Unavailable(
                "the disk of staged batches does not work",
                code=Code.STORAGE_FAILED,
                outcome=Outcome.UNKNOWN,
                retry_after_seconds=1,
            ) from error
        finally:
            turn.count -= 1
            if not turn.count:
                del self._turns[key]

    async def _decided(
        self, appender: Appender, asked: FromProducer, promise: Promise, staged_ids: Sequence[str]
    ) -> Appended:
        stream_id, tracking = appender.stream_id, appender.tracking
        plan = self._batches.plan(stream_id, asked.producer_id)
        if plan is not None and parts_left(plan, tracking):
            if plan.number != asked.number:
                raise WrongOffset(
                    "an earlier commit of this producer is not finished",
                    code=Code.PRODUCER_SEQUENCE_GAP,
                    retryable=True,
                    facts={"expected_seq": plan.number, "received_seq": asked.number},
                )
            with self._batches.pinned(stream_id, asked.producer_id, plan.staged_ids) as batches:
                answer = await self._append_plan(appender, asked, promise, plan, batches)
            await self._batches.drop(stream_id, [*plan.staged_ids, *staged_ids], plan)
            return answer
        repeated = self._repeated(appender, asked, promise)
        if repeated is not None:
            over = plan if plan is not None and plan.number == asked.number else None
            ids = staged_ids if over is None else [*over.staged_ids, *staged_ids]
            await self._batches.drop(stream_id, ids, over)
            return repeated
        with self._batches.pinned(stream_id, asked.producer_id, staged_ids) as batches:
            parts = parts_of(batches, self._group_size_max)
            if len(parts) == 1:
                answer = await self._append(appender, promise, parts[0])
                plan = None
            else:
                plan = _plan_of(asked, parts, self._clocks.wall())
                await self._batches.save_plan(stream_id, plan)
                await reach("ingest.commit.after-plan")
                answer = await self._append_plan(appender, asked, promise, plan, batches)
            await reach("ingest.commit.after-append")
        await self._batches.drop(stream_id, staged_ids, plan)
        return answer

    def _repeated(
        self, appender: Appender, asked: FromProducer, promise: Promise
    ) -> Appended | None:
        """What the original of a repeat was answered, None if this is none.

        Raises:
            StoreError: the producer may not append this; or another owns the stream.
        """
        appender.claim.require()
        known = appender.tracking.producers.get(asked.producer_id)
        appends = () if known is None else known.appends
        count = next((one.record_count for one in appends if one.sequence == asked.number), 0)
        verdict = decide(
            appender.tracking,
            Append(count, 0, 0, promise=promise),
            appender.log.next_offset,
            self._clocks.wall(),
        )
        return verdict if isinstance(verdict, Appended) else None

    async def _append_plan(
        self,
        appender: Appender,
        asked: FromProducer,
        promise: Promise,
        plan: Plan,
        batches: Sequence[StagedBatch],
    ) -> Appended:
        """Append the parts of a plan that are not in the log yet."""
        left = parts_left(plan, appender.tracking)
        start = len(plan.parts) - left if left else 0
        known = appender.tracking.producers.get(asked.producer_id)
        before = [
            one
            for one in (() if known is None else known.appends)
            if plan.number <= one.sequence < plan.number + start
        ]
        by_id = {batch.staged_id: batch for batch in batches}
        answers: list[Appended] = []
        for number in range(start, len(plan.parts)):
            identity = replace(asked, number=plan.number + number)
            numbered = Promise(identity, None if number else promise.expected_offset)
            part = [by_id[staged_id] for staged_id in plan.parts[number]]
            try:
                answer = await self._append(appender, numbered, part)
                if number and answer.replayed:
                    raise WrongOffset(
                        "another commit has taken the number of a part",
                        code=Code.PRODUCER_SEQUENCE_OVERLAP,
                    )
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

    async def _append(
        self, appender: Appender, promise: Promise, part: Sequence[StagedBatch]
    ) -> Appended:
        """One append, in memory as a whole only while it is under way."""
        async with self._room(appender.stream_id, sum(batch.size for batch in part)):
            frames = await self._batches.read(appender.stream_id, part)
            return await appender.append(_append_of(frames, promise))


def _append_of(frames: tuple[Frame, ...], promise: Promise) -> Append:
    crc = 0
    for frame in frames:
        crc = crc32c(crc.to_bytes(4, "little") + crc32c(frame.data).to_bytes(4, "little"))
    return Append(
        record_count=sum(frame.record_count for frame in frames),
        size=sum(len(frame.data) for frame in frames),
        body_crc=crc,
        frames=frames,
        promise=promise,
    )


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0
    """Commits that have it or wait for it."""


def parts_left(plan: Plan, tracking: Tracking) -> int:
    """How many parts of a plan are missing in the log; none where it has not begun, or is over."""
    known = tracking.producers.get(plan.producer_id)
    if known is None or known.mode is not AppendMode.TRANSACTION or known.last_sequence is None:
        return 0
    if not plan.number <= known.last_sequence < plan.last_number:
        return 0
    return plan.last_number - known.last_sequence


def _plan_of(asked: FromProducer, parts: Sequence[Sequence[StagedBatch]], now: int) -> Plan:
    """Raises:
    InvalidRequest: `bad-header`: there are not as many numbers behind this one.
    """
    if asked.number + len(parts) - 1 > SEQUENCE_MAX:
        raise bad_header("txn-number", f"the number of the last part is at most {SEQUENCE_MAX}")
    ids = tuple(tuple(batch.staged_id for batch in part) for part in parts)
    return Plan(asked.producer_id, asked.number, now, ids)
