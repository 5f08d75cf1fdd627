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

from bottomless.errors import Fenced, Outcome, StoreError, Unavailable
from bottomless.model.stream import StreamRecord
from bottomless_server.ingest.core.batcher import Round, count_next, seal_round
from bottomless_server.ingest.core.clock import CommitClock, commit_timestamp
from bottomless_server.ingest.core.intake import Append
from bottomless_server.ingest.core.ownership import not_owner
from bottomless_server.ingest.owner import Claim, Clocks
from bottomless_server.ingest.pulse import Pulse
from bottomless_server.ingest.segments import LogBroken, SegmentLog
from bottomless_server.ingest.upkeep import DiskUse, Upkeep, UpkeepBounds

log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class Appended(NamedTuple):
    """An append that is durable and visible."""

    first_offset: int
    next_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all appenders of a process share."""

    executor: Executor
    clocks: Clocks
    commit_clock: CommitClock
    disk: DiskUse
    chunk_size_max: int
    upkeep: UpkeepBounds


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
        self.stopped: StoreError | None = None
        self.advanced = Pulse()
        """Fires when records become visible, and when the stream stops."""
        self._around = around
        self._changed = changed
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        published = (record.published_next, record.version)
        self._upkeep = Upkeep(
            around.executor, around.clocks, around.disk, around.upkeep, claim, local, published
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Note durably what was claimed, then take appends.

        Raises:
            OSError: the disk does not take the checkpoint.
        """
        await self._upkeep.save_checkpoint()
        self._upkeep.count_disk()
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

    @property
    def published_next(self) -> int:
        return self._upkeep.published_next

    @property
    def version(self) -> int:
        """Of the manifest, as far as this node heard."""
        return self._upkeep.version

    def note_published(self, next_offset: int, version: int) -> None:
        """What object storage holds, as of the last successful EXEC."""
        if self._upkeep.note_published(next_offset, version):
            self._wake.set()

    def tick(self) -> None:
        """Look after files, if there is something to look after; called now and then."""
        if self._upkeep.is_due():
            self._wake.set()

    async def close(self, why: StoreError, *, leave: bool) -> None:
        """Finish what waits, note what is durable, and stop; with `leave`, leave it clean."""
        if self.stopped is None:
            self.stopped = why
        self._wake.set()
        if self._task is not None:
            await self._task
            self._task = None
            self._upkeep.count_disk(closed=True)
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
                    if self._upkeep.is_due():
                        await self._upkeep.look()
                await self._upkeep.look(last=self.stopped is not None)
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
        count = count_next(appends, self._around.chunk_size_max)
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
        self._upkeep.count_disk()
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
            chunk_size_max=self._around.chunk_size_max,
        )

    def _stop(self, error: StoreError) -> None:
        log.error("the stream stops", stream_id=self.stream_id, error=str(error))
        if self.stopped is None:
            self.stopped = not_owner() if isinstance(error, Fenced) else _broken(Outcome.NONE)
        refused = not_owner() if isinstance(error, Fenced) else _broken(Outcome.NONE)
        _refuse(list(self._waiting), refused)
        self._waiting.clear()

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
