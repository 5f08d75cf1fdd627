"""Write and sync the rounds of all streams of a process, many of them with one hop into a thread.

core/round_shares.py decides which rounds are a share, and whether its files are synced one by one or
by one sync of the whole file system. Where that one fails each file is synced by itself, which says
whose data was lost: the system keeps errors for each file. None of the share is believed before.

A stream has one round here at a time, since its appender waits for it: that bounds what waits, and
no file is ever in two shares. The bytes of rounds are those of appends that are under way, which
are bounded before they come here. Each round has an outcome of its own: the error of one file is
nothing to the others of its share. Results of a share come back in one turn of the loop.
It has the threads of all file calls: where a disk is slow, the more files are synced at once the better.

What is on disk after a crash:
- while rounds wait here: nothing of them.
- while a share is written: of each of its rounds nothing, or what `SegmentLog.write` says.
- while a share is synced: some of its rounds are durable and the others are not, in any order; none
  was answered, and recovery decides on each file by itself.
- after that: all of them, unanswered.

After its syncs each share looks at the data directory: where that was removed, or its mount taken away, what
is synced is found by nobody (docs/decisions/0215-a-round-looks-at-its-directory.md).

Who is cancelled leaves its round behind: one that waits is dropped, one that is being written is
finished in its thread, and nobody hears of it. Its files stay open, as the appender leaves them.

On the record's path: after local/appender.py, which waits here, before segments.py.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from bottomless.errors import StoreError
from bottomless.guards import guard
from bottomless_server.ingest.log.core.batcher import Round, SealedChunk
from bottomless_server.ingest.log.core.round_shares import RoundShares, Share, holds_for_all
from bottomless_server.ingest.log.segments import LogBroken, SegmentLog, Unsynced, Written
from bottomless_server.ingest.log.whole_syncs import WholeSyncs
from bottomless_server.runtime.base.on_loop import loop_time
from bottomless_server.runtime.base.without_frames import without_frames

log = structlog.get_logger(__name__)


class DirectoryLost(LogBroken):
    """A round was synced into a file that nobody finds any more, with all else that lies on this node."""

    def __init__(self) -> None:
        super().__init__("the data directory of this node is gone")


@dataclass(slots=True, eq=False)
class _Job:
    log: SegmentLog
    sealed: Round
    epoch: int
    elapsed: int
    state: Callable[[], SealedChunk | None]
    send: Callable[[Unsynced], None] | None
    answer: asyncio.Future[Written]


class _Ended(NamedTuple):
    """What became of a share."""

    outcomes: Sequence[Written | BaseException]
    """The result of each of its rounds, in their order."""
    failed: bool = False
    """Whether its sync of everything was refused."""


class RoundWriter:
    """Takes rounds in the event loop, and has them written and synced in threads of `executor`."""

    def __init__(
        self,
        executor: Executor,
        thread_count: int,
        whole: WholeSyncs,
        is_lost: Callable[[], bool] = lambda: False,
        note_lost: Callable[[], object] = lambda: None,
    ) -> None:
        """`is_lost`, called in threads, tells whether the data directory is gone; `note_lost` is called in
        the event loop where it is, before anybody hears what became of the rounds."""
        self._executor = executor
        self._whole = whole
        self._is_lost = is_lost
        self._note_lost = note_lost
        self._shares = RoundShares(thread_count)
        self._waiting: deque[_Job] = deque()
        self._will_deal = False
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Find out how the disk may be synced, before the first round.

        Raises:
            CannotStart: what the settings ask for is not safe there.
        """
        self._shares.may_sync_all = self._whole.look()

    def close(self) -> None:
        """Give handles back, once every stream is closed and no thread runs any more."""
        self._whole.close()

    async def write(
        self,
        local: SegmentLog,
        sealed: Round,
        epoch: int,
        elapsed: int,
        state: Callable[[], SealedChunk | None],
        send: Callable[[Unsynced], None] | None = None,
    ) -> Written:
        """Return when a round is durable; the arguments after `local` are those of its `write`.

        `send` is called in the event loop once the round is written, while it is being synced and
        before this returns: of a stream with replicas other nodes sync the same bytes meanwhile.
        Not of a round that could not be written: it is cut, and its place is written anew under the
        same epoch, of which nobody could tell two contents apart.

        Raises:
            WriteRefused: nothing was stored: `storage-full` or `storage-failed`.
            LogBroken: the sync failed, a failed write could not be undone, or the directory is gone.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Written] = loop.create_future()
        self._waiting.append(_Job(local, sealed, epoch, elapsed, state, send, answer))
        if not self._will_deal and not self._shares.is_full:
            # At the end of this turn, so that rounds of the same turn are dealt out together.
            self._will_deal = True
            loop.call_soon(self._deal)
        try:
            return await answer
        finally:
            # An error refers to this frame, and the answer to the error.
            del answer

    def _deal(self) -> None:
        self._will_deal = False
        if self._shares.is_full or not self._waiting:
            return
        now = loop_time()
        sizes = [job.sealed.size for job in self._waiting]
        for share in self._shares.deal(sizes, now):
            self._begin(share, [self._waiting.popleft() for _ in range(share.count)])
        if self._waiting and self._timer is None:
            at = self._shares.deal_again_at(now)
            if at is not None:
                self._timer = asyncio.get_running_loop().call_at(at, self._deal_late)

    def _deal_late(self) -> None:
        """Let what waits go beside a share that takes longer than usual."""
        self._timer = None
        self._deal()

    def _begin(self, share: Share, jobs: list[_Job]) -> None:
        loop = asyncio.get_running_loop()
        whole = self._whole if share.syncs_all else None
        try:
            running = loop.run_in_executor(self._executor, _write_share, jobs, whole, self._is_lost)
        except Exception as error:  # noqa: BLE001 no thread takes it, so nothing is written
            self._settle(share, jobs, _Ended([error] * len(jobs)))
            # No end of a share will have the next ones begun.
            loop.call_soon(self._deal)
            return
        running.add_done_callback(lambda done: self._hear(share, jobs, done))

    def _hear(self, share: Share, jobs: list[_Job], done: "asyncio.Future[_Ended]") -> None:
        """Give everybody its result, in one turn of the loop, and begin what waits."""
        if done.cancelled():
            ended = _Ended([asyncio.CancelledError()] * len(jobs))
        elif (error := done.exception()) is not None:
            # Nobody knows how far it came: not even what is synced is believed.
            ended = _Ended([error] * len(jobs), share.syncs_all)
        else:
            ended = done.result()
        self._settle(share, jobs, ended)
        self._deal()

    def _settle(self, share: Share, jobs: list[_Job], ended: _Ended) -> None:
        if any(isinstance(one, DirectoryLost) for one in ended.outcomes):
            self._note_lost()
        self._shares.end(share, loop_time(), failed=ended.failed)
        for job, outcome in zip(jobs, ended.outcomes, strict=True):
            if job.answer.done():
                continue
            if isinstance(outcome, StoreError):
                job.answer.set_exception(without_frames(outcome))
            elif isinstance(outcome, BaseException):
                job.answer.set_exception(outcome)
            else:
                job.answer.set_result(outcome)


def _write_share(
    jobs: Sequence[_Job], whole: WholeSyncs | None, is_lost: Callable[[], bool]
) -> _Ended:
    """Write the rounds of a share and sync them, all files at once by `whole` unless it is None, where
    the directory is there then; in a worker thread.
    """
    ended = _write_and_sync(jobs, whole)
    found = are_found(ended.outcomes, is_lost)
    return ended._replace(outcomes=found)


@guard("the directory, looked at after the sync")
def are_found(
    outcomes: Sequence[Written | BaseException], is_lost: Callable[[], bool]
) -> Sequence[Written | BaseException]:
    """The results of rounds, of which none is durable if the directory is gone by now."""
    if not any(isinstance(one, Written) for one in outcomes) or not is_lost():
        return outcomes
    return [DirectoryLost() if isinstance(one, Written) else one for one in outcomes]


def _write_and_sync(jobs: Sequence[_Job], whole: WholeSyncs | None) -> _Ended:
    if whole is None:
        return _Ended([_synced(job, one) for job, one in _written(jobs)])
    with whole.handle() as handle:
        written = _written(jobs)
        nothing = not any(isinstance(one, Unsynced) for _, one in written)
        durable = nothing or holds_for_all(handle.sync())
    outcomes = [_synced(job, one, durable=durable) for job, one in written]
    return _Ended(outcomes, failed=not durable)


@guard("sending after the write")
def _written(jobs: Sequence[_Job]) -> list[tuple[_Job, Unsynced | Exception]]:
    """Write rounds, and only then let others have them: one that could not be written is cut, and its
    place is written anew. All of a share are sent in one turn of the loop, so that they go together."""
    written = [(job, _write(job)) for job in jobs]
    sent = [(job, one) for job, one in written if job.send and isinstance(one, Unsynced)]
    if sent:
        sent[0][0].answer.get_loop().call_soon_threadsafe(_send, sent)
    return written


def _write(job: _Job) -> Unsynced | Exception:
    if job.answer.cancelled():
        return RuntimeError("nobody waits for this round any more")
    try:
        return job.log.write(job.sealed, job.epoch, job.elapsed, job.state)
    except Exception as error:  # noqa: BLE001 it is that stream's, whatever it is
        return error


def _send(sent: Sequence[tuple[_Job, Unsynced]]) -> None:
    for job, written in sent:
        assert job.send is not None
        try:
            job.send(written)
        except Exception:
            # That stream's nodes ask for what they lack; the others have theirs sent.
            log.exception("a round was not sent")


def _synced(
    job: _Job, written: Unsynced | Exception, *, durable: bool = False
) -> Written | Exception:
    """What was written, synced by itself unless it is durable already."""
    if isinstance(written, Exception):
        return written
    try:
        return job.log.note_synced(written) if durable else job.log.sync(written)
    except Exception as error:  # noqa: BLE001 it is that stream's, whatever it is
        return error
