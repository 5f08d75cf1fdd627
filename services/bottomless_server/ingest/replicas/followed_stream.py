"""One stream whose log follows that of another node: one task opens it, takes, syncs and answers.

What the owner sends is judged by `node/core/following.py`, and written and synced as the rounds of
own streams are, many files with one hop into a thread. Only what is synced is answered, and only that
counts as held: the owner acknowledges by these answers.

What is on disk after a crash:
- while a log is opened: log_opener.py says it, step by step.
- after chunks are written, before their sync: some of them, or parts; recovery cuts what is torn.
  Nothing was answered.
- after the sync: the chunks; whether they were answered makes no difference, since the owner asks
  for the place at which the log ends before it sends more.
- after a sync that failed: nothing was answered, and nothing is taken before the next opening,
  which believes nothing from that place on.
- when a segment is freed: a log that begins later; all before it is published.
- while local logs have reached their bound: what was there. Nothing is taken, and the owner hears so.

The bounds that an owner tells are kept in the checkpoint, which is saved now and then: a crash may
lose some of them. Nothing of it is needed for what was answered.

On the record's path: beside it. What is written here was read of the log of the owner.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from bottomless.errors import Outcome, Overloaded, StoreError
from bottomless.guards import guard
from bottomless.model.chunk import ChunkFlags, ChunkHeader
from bottomless.model.limits import TIMESTAMP_MIN
from bottomless.model.names import StreamId
from bottomless_server.ingest.local.freeing import SegmentFreeing
from bottomless_server.ingest.log.core.batcher import Round
from bottomless_server.ingest.log.rounds import RoundWriter
from bottomless_server.ingest.log.segments import LogBroken, WriteRefused, Written
from bottomless_server.ingest.replicas.context import Arrived, FollowingContext
from bottomless_server.ingest.replicas.followed_log import FollowedLog, round_of
from bottomless_server.ingest.replicas.log_opener import LogOpener, Refused
from bottomless_server.ingest.replicas.opening import plan_of
from bottomless_server.node.core import following
from bottomless_server.node.core.following import Held, Opened, OpenRefusal, Sent
from bottomless_server.protocol.replica import NOWHERE, Answer, Item, Opening, Place, Taken
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.runtime.base.on_loop import in_thread

log = structlog.get_logger(__name__)

T = TypeVar("T")

JOB_COUNT_MAX: Final = 64
"""Openings and bodies that wait for one stream: each node has four bodies on their way."""


class _Opening(NamedTuple):
    opening: Opening
    answer: "asyncio.Future[OpenRefusal | Place | None]"


class _Question(NamedTuple):
    answer: "asyncio.Future[Held]"


class _Arrival(NamedTuple):
    items: Sequence[Arrived]
    answer: asyncio.Future[list[Answer]]


class FollowedStream:
    """Takes what the owner of a stream sends; its task is the only one that touches its files."""

    def __init__(
        self, context: FollowingContext, stream_id: StreamId, used_at: int | None = None
    ) -> None:
        self.stream_id = stream_id
        self.used_at = context.clocks.elapsed() if used_at is None else used_at
        """When something came last, by the monotonic clock, in ms."""
        self._context = context
        self._opener = LogOpener(context, stream_id)
        self._jobs: deque[_Opening | _Arrival | _Question] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._look = self._rest = False
        self._log: FollowedLog | None = None
        self._freeing: SegmentFreeing | None = None
        self._held = Held()
        self._opened: int | None = None
        """The epoch under which it is open in this life of the process."""
        self._published_at_opening = 0
        self._cut_at: tuple[int, int] | None = None

    @property
    def epoch(self) -> int:
        """The highest epoch that was opened here, for checkpoints."""
        return self._held.epoch

    @property
    def reserved_next(self) -> int:
        """What a follower's checkpoint has in this place: up to where it was told that is committed."""
        return self._held.committed_next

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or is under way."""
        return self._task is None or self._task.done()

    @property
    def is_open(self) -> bool:
        """Whether it has file handles."""
        return self._log is not None and self._log.is_open

    def readable(self, epoch: int) -> FollowedLog | None:
        """The log, if it is open under this epoch, below `readable_next`; None if it is not."""
        return self._log if following.may_be_read(self._opened, epoch) else None

    @property
    def readable_next(self) -> int:
        """Up to where readers may be told what the log holds."""
        return following.readable_next(self._held)

    @property
    def published(self) -> tuple[int, int]:
        """What its owner has told of object storage: the published end, and the version of the record."""
        freeing = self._freeing
        return (0, 0) if freeing is None else (freeing.published_next, freeing.version)

    async def open(self, opening: Opening) -> OpenRefusal | Place | None:
        """Open the log for an owner; returns the place at which it ends then, None of an empty one.

        Raises:
            Unavailable: `storage-failed`: the disk does not work, or the log is damaged and may not
                be put aside as long as this node counts as one that has everything.
            Overloaded: too much waits here.
            StoreError: what the record says cannot be told.
        """
        return await self._put(lambda answer: _Opening(opening, answer))

    async def take(self, items: Sequence[Arrived]) -> list[Answer]:
        """Take chunks, and note bounds; returns when what is answered as taken is synced.

        Raises:
            Overloaded: too much waits here.
        """
        return await self._put(lambda answer: _Arrival(items, answer))

    async def find(self) -> Held:
        """What the log holds, synced; of one that is not open, as the next opening will find it.

        Raises:
            Unavailable: `storage-failed`: it cannot be read, or is damaged.
            Overloaded: too much waits here.
        """
        if self._log is not None:
            return self._held
        return await self._put(_Question, heard=False)

    def tick(self) -> None:
        """Have files looked after if something is due; called now and then."""
        if self._freeing is not None and self._freeing.is_due():
            self._look = True
            self._begin()

    def rest(self) -> None:
        """Give the file handles back when nothing is under way; the next chunks take new ones."""
        self._rest = True
        self._begin()

    async def close(self) -> None:
        """Finish what waits, note what is durable, and give the files up; nothing is taken after this."""
        self._closed = True
        self._begin()
        assert self._task is not None
        # Who closes may be broken off: what is under way ends all the same.
        await asyncio.shield(self._task)

    async def _put(
        self,
        make: Callable[["asyncio.Future[T]"], _Opening | _Arrival | _Question],
        *,
        heard: bool = True,
    ) -> T:
        if self._closed or len(self._jobs) >= JOB_COUNT_MAX:
            raise Overloaded("too much waits for one replica", retry_after_seconds=1)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append(make(answer))
        if heard:
            self.used_at = self._context.clocks.elapsed()
        self._begin()
        try:
            return await answer
        finally:
            # An error refers to this frame, and the answer to the error.
            del answer

    def _begin(self) -> None:
        if self.is_idle:
            self._task = asyncio.create_task(self._run(), name=f"replica-{self.stream_id}")

    async def _run(self) -> None:
        while self._jobs or self._look or self._rest or (self._closed and self._log is not None):
            try:
                await self._do_next()
            except Exception:
                log.exception("a replica met a bug", stream_id=self.stream_id)
                await self._give_up()

    async def _do_next(self) -> None:
        if self._jobs:
            job = self._jobs.popleft()
            if isinstance(job, _Opening):
                await _settle(job.answer, self._open(job.opening))
            elif isinstance(job, _Question):
                await _settle(job.answer, self._found())
            else:
                await self._take(job)
        elif self._look:
            self._look = False
            await self._look_after_files()
        elif self._rest:
            self._rest = False
            if self._log is not None:
                await self._context.hops.call(self._log.close)
        else:
            await self._look_after_files()
            await self._give_up()

    async def _look_after_files(self) -> None:
        if self._freeing is None or self._log is None:
            return
        await self._freeing.look(last=self._closed)
        if self._log.segments:
            first = self._log.segments[0].first_offset
            kept = tuple(one for one in self._held.segments if one.first_offset >= first)
            self._held = replace(self._held, segments=kept)

    async def _found(self) -> Held:
        if self._log is None:
            here = self._context.here
            if here.owned_epoch(self.stream_id) is None:
                return await self._opener.look(self._held, self._cut_at)
        return self._held

    # Opening.

    async def _open(self, opening: Opening) -> OpenRefusal | Place | None:
        here, stream_id = self._context.here, self.stream_id
        owned = here.owned_epoch(stream_id)
        known = self._held.epoch if owned is None else max(owned + 1, self._held.epoch)
        if following.is_fenced(replace(self._held, epoch=known), opening.epoch):
            return OpenRefusal.FENCED
        # Not at a question, nor for an owner of the past: what is damaged here would be nobody's to give away.
        here.note_followed(stream_id)
        if owned is not None:
            self._cut_at = await here.stop(stream_id) or self._cut_at
        # Where nothing was taken yet, a write that was refused may have left the beginning of a log.
        if self._log is not None and self._log.segments and self._opened == opening.epoch:
            decided = following.open_log(self._held, opening, in_sync=True)
            if isinstance(decided, Opened) and plan_of(self._held, decided).is_nothing:
                self._published_at_opening = opening.published_next
                return decided.end
        return await self._open_anew(opening)

    async def _open_anew(self, opening: Opening) -> OpenRefusal | Place | None:
        told = self._held.committed_next
        await self._give_up()
        found = await self._opener.open(opening, told, self._cut_at)
        # Whatever was not to be believed is gone by now.
        self._cut_at = None
        if isinstance(found, Refused):
            self._held = found.held
            return found.refusal
        self._log, self._held, self._opened = found.local, found.held, opening.epoch
        self._published_at_opening = opening.published_next
        self._freeing = SegmentFreeing(
            self._context.hops,
            self._context.clocks,
            self._context.disk,
            self._context.freeing,
            self,
            self._log,
            (opening.published_next, opening.version),
        )
        self._freeing.count_disk()
        return found.end

    async def _give_up(self) -> None:
        """Close the log: nothing is taken before the next opening."""
        local, self._log, self._opened = self._log, None, None
        # Its bytes count on: they are here, whether it is open or not.
        self._freeing = None
        if local is not None:
            try:
                await in_thread(self._context.executor, local.close)
            except OSError as error:
                # What was answered is synced; a handle that is lost holds nothing back.
                log.warning("a replica did not close", stream_id=self.stream_id, error=str(error))

    # Taking.

    async def _take(self, first: _Arrival) -> None:
        jobs = [first]
        while self._jobs and isinstance(self._jobs[0], _Arrival):
            job = self._jobs.popleft()
            assert isinstance(job, _Arrival)
            jobs.append(job)
        answers: list[Answer] = []
        for run in _runs([one for job in jobs for one in job.items]):
            try:
                answers += await self._take_run(run)
            except Exception:
                log.exception("a replica met a bug", stream_id=self.stream_id)
                await self._give_up()
                answers += [Answer(Taken.STORAGE, self._end) for _ in run]
        for job in jobs:
            _answer(job.answer, answers[: len(job.items)])
            del answers[: len(job.items)]
        if self._freeing is not None and self._freeing.is_due():
            await self._look_after_files()

    async def _take_run(self, run: Sequence[Arrived]) -> list[Answer]:
        """Take items of which only the first may begin a segment, with one sync."""
        held, chunks, verdicts = self._held, list[tuple[ChunkHeader, memoryview]](), list[Taken]()
        begins, timestamp = False, self._last_timestamp
        for one in run:
            verdict = self._judge(held, one, timestamp)
            if verdict is None:
                begins |= one.item.begins
                chunks += one.chunks
                held = _added(held, one)
                timestamp = chunks[-1][0].timestamp
            verdicts.append(verdict or Taken.OK)
        if Taken.STORAGE in verdicts:
            log.warning("a replica is not written: local logs are full", stream_id=self.stream_id)
        if chunks and not await self._store(round_of(chunks), begins=begins):
            kept = (Taken.FENCED, Taken.NOT_OPEN, Taken.GAP)
            return [Answer(v if v in kept else Taken.STORAGE, self._end) for v in verdicts]
        self._held = held
        for one, verdict in zip(run, verdicts, strict=True):
            if verdict is Taken.OK:
                self._note_bounds(one.item)
            elif verdict is Taken.STORAGE:
                # Or nothing would ever be freed here.
                self._note_published(one.item)
        return [Answer(verdict, self._end) for verdict in verdicts]

    def _judge(self, held: Held, one: Arrived, timestamp: int) -> Taken | None:
        item = one.item
        sent = Sent(item.epoch, item.place, item.begins, item.before)
        taken = following.judge(held, self._opened, sent, self._published_at_opening)
        if not one.chunks:
            return taken if taken in (Taken.FENCED, Taken.NOT_OPEN) else Taken.OK
        if taken is None and not _follows(held, one, timestamp):
            log.error("an owner sent what does not follow", stream_id=self.stream_id)
            return Taken.GAP
        return Taken.STORAGE if taken is None and self._context.disk.is_full() else taken

    async def _store(self, sealed: Round, *, begins: bool) -> bool:
        """Whether chunks are durable here, and a part of the log."""
        local = self._log
        assert local is not None
        if not local.segments:
            local.begin_at(sealed.chunks[0].first_offset)
        local.begins_next = begins
        try:
            written = await made_durable(
                self._context.rounds, local, sealed, self._context.clocks.elapsed()
            )
        except WriteRefused as error:
            log.warning("a replica was not written", stream_id=self.stream_id, error=str(error))
            return False
        except LogBroken as error:
            log.error("a replica is broken", stream_id=self.stream_id, error=str(error))  # noqa: TRY400
            self._cut_at = local.synced_place()
            await self._give_up()
            return False
        local.extend(written)
        await reach("ingest.replica.after-sync")
        assert self._freeing is not None
        self._freeing.count_disk()
        return True

    def _note_bounds(self, item: Item) -> None:
        self._held = following.told(self._held, item.committed_next)
        self._note_published(item)

    def _note_published(self, item: Item) -> None:
        if self._freeing is not None:
            self._freeing.note_published(item.published_next, item.manifest_version)

    @property
    def _last_timestamp(self) -> int:
        has_any = self._log is not None and self._log.segments
        return self._log.last_timestamp if self._log is not None and has_any else TIMESTAMP_MIN

    @property
    def _end(self) -> Place:
        return self._held.segments[-1].end if self._held.segments else NOWHERE


@guard("the sync of a follower")
async def made_durable(
    rounds: RoundWriter, local: FollowedLog, sealed: Round, elapsed: int
) -> Written:
    """Return when chunks are durable in a follower's log.

    Raises:
        WriteRefused, LogBroken: as of an own stream.
    """
    return await rounds.write(local, sealed, sealed.chunks[0].epoch, elapsed, lambda: None)


def _follows(held: Held, one: Arrived, timestamp: int) -> bool:
    """Whether recovery would find these chunks after those that are held, all of them."""
    last = held.segments[-1].runs[-1] if held.segments else None
    offset = one.item.place.segment_first if last is None else last.next_offset
    epoch = 0 if last is None else last.epoch
    for header, _ in one.chunks:
        if header.first_offset != offset or header.epoch < epoch or header.timestamp < timestamp:
            return False
        offset, epoch = offset + header.record_count, header.epoch
        timestamp = header.timestamp
    return ChunkFlags.MORE_FOLLOWS not in one.chunks[-1][0].flags


def _added(held: Held, one: Arrived) -> Held:
    place = one.item.place
    for header, _ in one.chunks:
        next_offset = header.first_offset + header.record_count
        held = following.added(held, header.epoch, place, header.total_size, next_offset)
        place = Place(place.segment_first, place.position + header.total_size)
    return held


def _runs(items: Sequence[Arrived]) -> Iterator[list[Arrived]]:
    """Items in their order, parted before each that begins a segment."""
    run: list[Arrived] = []
    for one in items:
        if one.item.begins and run:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


async def _settle(answer: "asyncio.Future[T]", work: Coroutine[Any, Any, T]) -> None:
    try:
        result = await work
    except StoreError as error:
        if not answer.done():
            answer.set_exception(error)
    except Exception:
        log.exception("a replica met a bug")
        if not answer.done():
            answer.set_exception(StoreError("an unexpected error", outcome=Outcome.UNKNOWN))
    else:
        _answer(answer, result)


def _answer(answer: "asyncio.Future[T]", result: T) -> None:
    if not answer.done():
        answer.set_result(result)
