"""The one task that owns a stream's tail: seal what waits, write, sync, answer.

New appends queue up while a round is being synced and share the next one, so that one
sync serves all who wait; syncs of many streams run beside each other in threads.

The order of one round, which `tests/unit/ingest/test_append_order.py` records:
offsets reserved in coordination → bytes written → synced → visible → answered.
After a crash before the sync recovery cuts the round, and nobody had an answer; after it
the round is there, answered or not.

On the record's path: after core/batcher.py, before feed.py, from where the uploader takes it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import structlog

from bottomless.errors import Code, Fenced, Outcome, Overloaded, StoreError, Unavailable
from bottomless.model.segment import Checkpoint
from bottomless.model.stream import StreamRecord
from bottomless_server.ingest.core.batcher import Round, count_next, seal_round
from bottomless_server.ingest.core.clock import CommitClock, commit_timestamp
from bottomless_server.ingest.core.intake import Append
from bottomless_server.ingest.core.ownership import not_owner
from bottomless_server.ingest.owner import Claim, Clocks
from bottomless_server.ingest.pulse import Pulse
from bottomless_server.ingest.segments import LogBroken, Segment, SegmentLog

log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class Appended(NamedTuple):
    """An append that is durable and visible."""

    first_offset: int
    next_offset: int
    timestamp: int


class AppendBounds(NamedTuple):
    chunk_size_max: int
    local_keep_ms: int
    local_bytes_keep: int
    checkpoint_bytes: int
    checkpoint_ms: int


@dataclass(slots=True)
class DiskUse:
    """Bytes of local logs in the whole process."""

    bytes_max: int
    held: int = 0

    def require_room(self) -> None:
        """Raises:
        Overloaded: `disk-bound`.
        """
        if self.held > self.bytes_max:
            raise Overloaded(
                "local logs wait for their upload",
                code=Code.DISK_BOUND,
                retry_after_seconds=2,
                facts={"limit_bytes": self.bytes_max},
            )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all appenders of a process share."""

    executor: Executor
    clocks: Clocks
    commit_clock: CommitClock
    disk: DiskUse
    bounds: AppendBounds


@dataclass(slots=True, eq=False)
class _Waiting:
    append: Append
    answer: asyncio.Future[Appended]


class Appender:
    """Owned by the table of streams; `stopped` says why it takes nothing any more."""

    def __init__(
        self,
        around: Surroundings,
        claim: Claim,
        local: SegmentLog,
        record: StreamRecord,
        changed: Callable[["Appender"], None],
    ) -> None:
        self.stream_id = claim.stream_id
        self.claim = claim
        self.log = local
        self.config = record.config
        self.published_next = record.published_next
        self.version = record.version
        self.stopped: StoreError | None = None
        self.advanced = Pulse()
        """Fires when records become visible, and when the stream stops."""
        self._around = around
        self._changed = changed
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._disk_counted = 0
        self._checkpoint: Checkpoint | None = None
        self._checkpoint_wanted = True
        self._checkpoint_log_end = local.log_end
        self._checkpoint_at = around.clocks.elapsed()
        self._removing: deque[Segment] = deque()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Note durably what was claimed, then take appends.

        Raises:
            OSError: the disk does not take the checkpoint.
        """
        await self._save_checkpoint()
        self._count_disk()
        self._task = asyncio.create_task(self._run(), name=f"appender-{self.stream_id}")

    async def append(self, append: Append) -> Appended:
        """Return when the records are durable and visible.

        Cancelling this does not undo the append: its outcome is then unknown to the caller.

        Raises:
            StoreError: with the outcome that is known.
        """
        if self.stopped is not None:
            raise restated(self.stopped)
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(append, answer))
        self._wake.set()
        return await answer

    def note_published(self, next_offset: int, version: int) -> None:
        """What object storage holds, as of the last successful EXEC; it never goes back."""
        if next_offset > self.published_next or version > self.version:
            self.published_next = max(self.published_next, next_offset)
            self.version = max(self.version, version)
            self._checkpoint_wanted = True
            self._mark_published()
            self._wake.set()

    def tick(self) -> None:
        """Look after files, if there is something to look after; called now and then."""
        if self._removing or self._checkpoint_due() or self._next_to_free() is not None:
            self._wake.set()

    async def close(self, why: StoreError, *, leave: bool) -> None:
        """Finish what waits, note what is durable, and stop; with `leave`, leave it clean."""
        if self.stopped is None:
            self.stopped = why
        self._wake.set()
        if self._task is not None:
            await self._task
            self._task = None
            self._disk_counted, counted = 0, self._disk_counted
            self._around.disk.held -= counted
            if leave and not isinstance(self.stopped, LogBroken):
                with suppress(StoreError):
                    await self.claim.leave(self.log.next_offset)
        self.advanced.fire()

    async def _run(self) -> None:
        try:
            while self.stopped is None or self._waiting:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await self._round()
                await self._look_after_files()
        except StoreError as error:
            self._stop(error)
        except Exception:
            log.exception("the appender met a bug", stream_id=self.stream_id)
            self._stop(StoreError("an unexpected error", outcome=Outcome.NONE))
        finally:
            await self._in_thread(self.log.close)
            self.advanced.fire()

    async def _round(self) -> None:
        """One round; what fails only this round is answered here, what stops the stream raises."""
        appends = (waiting.append for waiting in self._waiting)
        count = count_next(appends, self._around.bounds.chunk_size_max)
        taken = [self._waiting.popleft() for _ in range(count)]
        try:
            answers = await self._write([waiting.append for waiting in taken])
        except (LogBroken, Fenced) as error:
            outcome = error.outcome or Outcome.NONE
            _refuse(taken, not_owner() if isinstance(error, Fenced) else _broken(outcome))
            raise
        except StoreError as error:
            _refuse(taken, error)
            return
        except BaseException:
            _refuse(taken, StoreError("an unexpected error", outcome=Outcome.UNKNOWN))
            raise
        for waiting, answer in zip(taken, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)

    async def _write(self, appends: list[Append]) -> list[Appended]:
        last_offset = self.log.next_offset + sum(append.record_count for append in appends)
        self.claim.require()
        await self.claim.reserve(last_offset)
        sealed = self._seal(appends)
        elapsed = self._around.clocks.elapsed()
        written = await self._in_thread(self.log.write, sealed, self.claim.epoch, elapsed)
        self.log.commit(written)
        self._count_disk()
        self._changed(self)
        self.advanced.fire()
        # Durable, but perhaps no longer ours to confirm. Who reads it asks the same.
        self.claim.require(Outcome.UNKNOWN)
        return [
            Appended(first, first + count, sealed.timestamp) for first, count in sealed.placements
        ]

    def _seal(self, appends: list[Append]) -> Round:
        clocks = self._around.clocks
        wall = self._around.commit_clock.read(clocks.wall(), clocks.elapsed())
        return seal_round(
            appends,
            next_offset=self.log.next_offset,
            timestamp=commit_timestamp(self.log.last_timestamp, wall),
            epoch=self.claim.epoch,
            chunk_size_max=self._around.bounds.chunk_size_max,
        )

    def _stop(self, error: StoreError) -> None:
        log.error("the stream stops", stream_id=self.stream_id, error=str(error))
        if self.stopped is None:
            self.stopped = not_owner() if isinstance(error, Fenced) else _broken(Outcome.NONE)
        refused = not_owner() if isinstance(error, Fenced) else _broken(Outcome.NONE)
        _refuse(list(self._waiting), refused)
        self._waiting.clear()

    async def _look_after_files(self) -> None:
        try:
            if self._checkpoint_due() or self.stopped is not None:
                await self._save_checkpoint()
            await self._free()
        except OSError as error:
            # Neither is needed now: recovery walks further, or the disk stays fuller.
            log.warning("local files were not tidied", stream_id=self.stream_id, error=str(error))
            self._checkpoint_at = self._around.clocks.elapsed()

    def _checkpoint_due(self) -> bool:
        if self._checkpoint_wanted:
            return True
        grown = self.log.log_end - self._checkpoint_log_end
        age = self._around.clocks.elapsed() - self._checkpoint_at
        bounds = self._around.bounds
        return grown >= bounds.checkpoint_bytes or (grown > 0 and age >= bounds.checkpoint_ms)

    async def _save_checkpoint(self) -> None:
        self._checkpoint_wanted = False
        segment_first_offset, synced_position = self.log.synced_place()
        checkpoint = Checkpoint(
            stream_id=self.stream_id,
            segment_first_offset=segment_first_offset,
            synced_position=synced_position,
            synced_next=self.log.next_offset,
            last_timestamp=self.log.last_timestamp,
            epoch=self.claim.epoch,
            version=self.version,
            published_next=self.published_next,
            reserved_next=self.claim.reserved_next,
        )
        self._checkpoint_log_end = self.log.log_end
        self._checkpoint_at = self._around.clocks.elapsed()
        await self._in_thread(self.log.save_checkpoint, checkpoint)
        self._checkpoint = checkpoint

    def _next_to_free(self) -> Segment | None:
        """The oldest segment, once all of it has been published for long enough."""
        self._mark_published()
        now = self._around.clocks.elapsed()
        bounds = self._around.bounds
        if len(self.log.segments) < 2 or self.log.size <= bounds.local_bytes_keep:
            return None
        oldest = self.log.segments[0]
        published_at = oldest.published_at
        if published_at is None or now - published_at < bounds.local_keep_ms:
            return None
        return oldest

    def _mark_published(self) -> None:
        """Start the clock of segments that are published as a whole; the active one grows on."""
        now = self._around.clocks.elapsed()
        for segment in self.log.segments[:-1]:
            if segment.next_offset > self.published_next:
                break
            if segment.published_at is None:
                segment.published_at = now

    async def _free(self) -> None:
        while (segment := self._next_to_free()) is not None:
            if (
                self._checkpoint is None
                or self._checkpoint.segment_first_offset <= segment.first_offset
            ):
                # Recovery must find the segment that the checkpoint names.
                await self._save_checkpoint()
            self.log.forget(segment)
            self._removing.append(segment)
            self._count_disk()
        while self._removing:
            # In order, so that no hole can appear in the log.
            await self._in_thread(self.log.remove, self._removing[0])
            self._removing.popleft()

    def _count_disk(self) -> None:
        size = self.log.size
        self._around.disk.held += size - self._disk_counted
        self._disk_counted = size

    async def _in_thread(self, call: Callable[..., _T], *arguments: Any) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._around.executor, call, *arguments)


def restated(error: StoreError) -> StoreError:
    """The same error, new: one that is kept and raised often would grow with every raise."""
    return type(error)(
        error.message,
        code=error.code,
        retryable=error.retryable,
        outcome=error.outcome,
        retry_after_seconds=error.retry_after_seconds,
        faults=error.faults,
        facts=error.facts,
    )


def _refuse(waiting: list[_Waiting], error: StoreError) -> None:
    for one in waiting:
        if not one.answer.done():
            one.answer.set_exception(error)


def _broken(outcome: Outcome) -> Unavailable:
    return LogBroken("the local log failed and is being recovered", outcome=outcome)
