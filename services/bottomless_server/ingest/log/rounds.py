"""Write and sync the rounds of all streams of a process, many of them with one hop into a thread.

A stream has one round here at a time, since its appender waits for it: that bounds what waits, and
no file is ever in two shares. The bytes of rounds are those of appends that are under way, which
are bounded before they come here. Each round has an outcome of its own: the error of one file is
nothing to the others of its share. Results of a share come back in one turn of the loop.

What is on disk after a crash:
- while rounds wait here: nothing of them.
- while a share is written: of each of its rounds nothing, or what `SegmentLog.write` says.
- while a share is synced: some of its rounds are durable and the others are not, in any order; none
  was answered, and recovery decides on each file by itself.
- after that: all of them, unanswered.

Who is cancelled leaves its round behind: one that waits is dropped, one that is being written is
finished in its thread, and nobody hears of it. Its files stay open, as the appender leaves them.

On the record's path: after local/appender.py, which waits here, before segments.py.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from bottomless_server.ingest.log.core.batcher import Round, SealedChunk
from bottomless_server.ingest.log.core.round_shares import RoundShares
from bottomless_server.ingest.log.segments import SegmentLog, Unsynced, Written


@dataclass(slots=True, eq=False)
class _Job:
    log: SegmentLog
    sealed: Round
    epoch: int
    elapsed: int
    state: Callable[[], SealedChunk | None]
    answer: asyncio.Future[Written]

    def write(self) -> Unsynced:
        return self.log.write(self.sealed, self.epoch, self.elapsed, self.state)


class RoundWriter:
    """Takes rounds in the event loop, and has them written and synced in threads of `executor`."""

    def __init__(self, executor: Executor, thread_count: int) -> None:
        self._executor = executor
        self._shares = RoundShares(thread_count)
        self._waiting: deque[_Job] = deque()
        self._will_deal = False

    async def write(
        self,
        log: SegmentLog,
        sealed: Round,
        epoch: int,
        elapsed: int,
        state: Callable[[], SealedChunk | None],
    ) -> Written:
        """Return when a round is durable; the arguments after `log` are those of its `write`.

        Raises:
            WriteRefused: nothing was stored: `storage-full` or `storage-failed`.
            LogBroken: the sync failed, or a failed write could not be undone.
        """
        loop = asyncio.get_running_loop()
        job = _Job(log, sealed, epoch, elapsed, state, loop.create_future())
        self._waiting.append(job)
        if not self._will_deal and not self._shares.is_full:
            # At the end of this turn, so that rounds of the same turn are dealt out together.
            self._will_deal = True
            loop.call_soon(self._deal)
        return await job.answer

    def _deal(self) -> None:
        self._will_deal = False
        if self._shares.is_full or not self._waiting:
            return
        sizes = [job.sealed.size for job in self._waiting]
        for count in self._shares.deal(sizes):
            self._begin([self._waiting.popleft() for _ in range(count)])

    def _begin(self, jobs: list[_Job]) -> None:
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._executor, _write_share, jobs)
        except Exception as error:  # noqa: BLE001 no thread takes it, so nothing is written
            self._settle(jobs, [error] * len(jobs))
            return
        running.add_done_callback(lambda done: self._hear(jobs, done))

    def _hear(self, jobs: list[_Job], done: "asyncio.Future[list[Written | Exception]]") -> None:
        """Give everybody its result, in one turn of the loop, and begin what waits."""
        if done.cancelled():
            outcomes: Sequence[Written | BaseException] = [asyncio.CancelledError()] * len(jobs)
        elif (error := done.exception()) is not None:
            # Nobody knows how far it came: not even what is synced is believed.
            outcomes = [error] * len(jobs)
        else:
            outcomes = done.result()
        self._settle(jobs, outcomes)
        self._deal()

    def _settle(self, jobs: list[_Job], outcomes: Sequence[Written | BaseException]) -> None:
        self._shares.end()
        for job, outcome in zip(jobs, outcomes, strict=True):
            if job.answer.done():
                continue
            if isinstance(outcome, BaseException):
                job.answer.set_exception(outcome)
            else:
                job.answer.set_result(outcome)


def _write_share(jobs: Sequence[_Job]) -> list[Written | Exception]:
    """Write the rounds of a share and sync each of them; in a worker thread."""
    return [_synced(job, written) for job, written in [(job, _written(job)) for job in jobs]]


def _written(job: _Job) -> Unsynced | Exception:
    if job.answer.cancelled():
        return RuntimeError("nobody waits for this round any more")
    try:
        return job.write()
    except Exception as error:  # noqa: BLE001 it is that stream's, whatever it is
        return error


def _synced(job: _Job, written: Unsynced | Exception) -> Written | Exception:
    if isinstance(written, Exception):
        return written
    try:
        return job.log.sync(written)
    except Exception as error:  # noqa: BLE001 it is that stream's, whatever it is
        return error
