"""The task that has rounds done, one after the other, and answers: around `round_writer.py`.

The writer has one thread, in which alone the ledger is used. While it does a round, what comes in
waits in a line, and is the next round: so one sync serves all that came meanwhile. Everybody who
waits has a way out: who waits for a round hears its end, or, while the disk does not tell what became
of it, that the node is stopping; who waits for messages hears an empty answer in time.

A receive that finds nothing waits for messages of its queue, without being in the line. It goes into
the line again when messages became ready there, the one that has waited longest first, and so many
as there are messages. Who has hung up takes nothing. What was taken for somebody who hung up
meanwhile is given back in the next round.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from bottomless.errors import Code, Outcome, Overloaded, StoreError, Unavailable
from bottomless.model.backoff import backoff
from bottomless_server.queues.core.line import Line
from bottomless_server.queues.rounds.round_writer import RoundWriter
from bottomless_server.queues.rounds.waiting import Job, Taking, Waiting
from bottomless_server.queues.rounds.work import Asked, Change, Ended, Look, Verdict, not_stored
from bottomless_server.runtime.base.endless import endless

T = TypeVar("T")
PAUSE_SECONDS_MIN: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5.0
"""Pauses between looks whether the disk tells again what became of a round."""
UPKEEP_PAUSE_SECONDS: Final = 1.0
"""Until what is due is tried again where the last try has not done it."""


class Limits(NamedTuple):
    """Bounds of what waits and of one round."""

    waiting_bytes_max: int = 128 * 2**20
    round_bytes_max: int = 8 * 2**20
    round_change_count_max: int = 5_000
    waiting_receive_count_max: int = 1_000
    """Receives that wait for messages of one queue."""
    look_count_max: int = 1_000
    """Looks that wait for the end of a round."""


class Rounds:
    """Takes changes in the event loop. `start` before anything else, `stop` at the end."""

    def __init__(
        self,
        open_writer: Callable[[], RoundWriter],
        clock: Callable[[], int],
        upkeep: Change | None = None,
        limits: Limits = Limits(),  # noqa: B008 it is immutable
        heard: Callable[[Ended, float], None] = lambda *_: None,
    ) -> None:
        """`open_writer` is called in the writer's thread. `upkeep` does what is due, a bounded part of
        it; its answer is whether more is left. `heard` is told what each round has come to, and
        how many seconds it took.
        """
        self._heard = heard
        self._open_writer = open_writer
        self._clock = clock
        self._upkeep = upkeep
        self._limits = limits
        self._line: Line[Job] = Line(
            limits.waiting_bytes_max, limits.round_bytes_max, limits.round_change_count_max
        )
        self._waiting = Waiting()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="queue-rounds")
        self._writer: RoundWriter | None = None
        self._turn = asyncio.Event()
        self._stopping = asyncio.Event()
        self._may_all_wait = True
        self._look_count = 0
        self._upkeep_timer: asyncio.TimerHandle | None = None
        self._upkeep_waits = False
        self._upkeep_again = False
        """Whether a round left something to be done while an upkeep was waiting already."""
        self._next_due: int | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the ledger, and begin.

        Raises:
            LedgerFailed: it cannot be opened.
        """
        self._writer = await self._in_thread(self._open_writer)
        self._task = asyncio.create_task(endless("queue rounds", self._step))
        self._plan_upkeep(0)

    async def stop(self) -> None:
        """Return when everything that was asked is answered and the ledger is closed.

        Raises:
            LedgerFailed: it could not be closed in order; the next start looks at everything.
        """
        self._stopping.set()
        _stop_timer(self._upkeep_timer)
        self.stop_waiting()
        self._turn.set()
        if self._task is not None:
            await self._task
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                await self._in_thread(lambda: writer.close(clean=True))
        finally:
            self._executor.shutdown(wait=False)

    @property
    def is_over(self) -> bool:
        """Whether nothing is taken any more."""
        return self._stopping.is_set() or self._writer is None

    def stop_waiting(self) -> None:
        """Answer all who wait for messages with nothing, and let nobody wait from now on."""
        self._may_all_wait = False
        for job in self._waiting.all():
            _answer(job, job.found)

    async def look(self, call: Callable[[Look], T]) -> T:
        """What the ledger says between two rounds; `call` is for the writer's thread.

        Raises:
            Overloaded: too many wait.
            Unavailable: `draining`; `storage-failed`: it does not say.
        """
        writer = self._writer
        if writer is None or self.is_over:
            raise _stopped()
        if self._look_count >= self._limits.look_count_max:
            raise Overloaded("too many look at the queues of this node", retry_after_seconds=1)
        self._look_count += 1
        try:
            return await self._in_thread(lambda: writer.look(call))
        finally:
            self._look_count -= 1

    async def do(self, change: Change) -> Any:
        """Return the answer of a change when it is durable.

        Raises:
            Overloaded: too much waits; nothing is done.
            StoreError: it is refused, with the outcome that is known.
        """
        job = Job(change, asyncio.get_running_loop().create_future())
        self._put(job)
        return await job.future

    async def take(self, change: Taking, wait_seconds: float = 0.0) -> Any:
        """Return what a change has taken when that is durable, waiting for something to take.

        Raises:
            Overloaded: too much waits, or too many wait for this queue; nothing is taken.
            StoreError: it is refused, with the outcome that is known.
        """
        if wait_seconds and self._is_full(change.queue_id):
            raise _too_many_wait()
        loop = asyncio.get_running_loop()
        job = Job(change, loop.create_future(), change, loop.time() + wait_seconds)
        self._put(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            # It may have been answered in the same turn in which its sender left.
            if job.future.done() and not job.future.cancelled() and not job.future.exception():
                self.give_back(change, job.future.result())
            raise
        finally:
            self._waiting.remove(job)
            _stop_timer(job.timer)

    def give_back(self, change: Taking, answer: Any) -> None:
        """Let others have at once what was taken and cannot be handed out any more."""
        back = change.give_back(answer)
        if back is not None:
            self.put_back(back)

    def put_back(self, back: Change) -> None:
        """Do a change of which nobody waits for the answer, however much waits already."""
        if self._task is not None and not self._task.done():
            self._line.put_anyway(_unheard(back), back.size)
            self._turn.set()

    @property
    def waiting_receives(self) -> int:
        """How many receives wait for messages, of all queues."""
        return self._waiting.total()

    def waiting_count(self, queue_id: bytes) -> int:
        """How many receives wait for messages of a queue."""
        return self._waiting.count(queue_id)

    @property
    def is_upkeep_waiting(self) -> bool:
        """Whether an upkeep waits for its round, or is in it."""
        return self._upkeep_waits

    def _put(self, job: Job) -> None:
        if self.is_over:
            raise _stopped()
        self._line.put(job, job.change.size)
        self._turn.set()

    async def _step(self) -> float | None:
        await self._turn.wait()
        jobs = self._line.take()
        if not jobs:
            self._turn.clear()
            return None if self._stopping.is_set() else 0
        try:
            await self._round(jobs)
        except BaseException:
            for job in jobs:
                if not job.future.done() and not self._waiting.has(job):
                    error = not_stored(outcome=Outcome.UNKNOWN, code=Code.INTERNAL)
                    job.future.set_exception(error)
            raise
        return 0

    async def _round(self, jobs: list[Job]) -> None:
        writer = self._writer
        assert writer is not None
        asked = [Asked(job.change, job.is_wanted) for job in jobs]
        loop = asyncio.get_running_loop()
        begun = loop.time()
        ended = await self._certain(await self._in_thread(lambda: writer.round(asked)))
        self.hear(jobs, ended)
        self._heard(ended, loop.time() - begun)
        if not writer.in_doubt and writer.log_is_long:
            await self._in_thread(writer.tidy)
        if writer.in_doubt:
            await self._certain(await self._in_thread(writer.settle))

    async def _certain(self, ended: Ended | None) -> Ended:
        """What became of a round, once it is known, or this is to stop."""
        writer = self._writer
        assert writer is not None
        failures = 0
        while ended is None:
            pause = backoff(failures, PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)
            if await self._is_stopped_within(pause):
                return await self._in_thread(writer.give_up)
            failures += 1
            ended = await self._in_thread(writer.settle)
        return ended

    async def _is_stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    def hear(self, jobs: list[Job], ended: Ended) -> None:
        """Answer what a round has come to, and wake those who wait for messages; for the task alone."""
        made_ready = Counter(ended.made_ready)
        for job, verdict in zip(jobs, ended.verdicts, strict=True):
            self._hear_one(job, verdict)
            if job.taking is not None and verdict.answer is None:
                # It took nothing of what it was woken for perhaps: the next one may.
                made_ready[job.taking.queue_id] += 1
        for queue_id, count in made_ready.items():
            for job in self._waiting.first(queue_id, count):
                self._line.put_anyway(job, job.change.size)
                self._turn.set()
        self._next_due = ended.next_due
        if ended.needs_upkeep:
            self._upkeep_again = self._upkeep_waits
            self._plan_upkeep(0)
        elif ended.next_due is not None:
            self._plan_upkeep(self._seconds_until(ended.next_due))

    def _hear_one(self, job: Job, verdict: Verdict) -> None:
        taking = job.taking
        if verdict.error is not None:
            if taking is not None and verdict.answer is not None:
                # It is done, and nobody hears of it.
                self.give_back(taking, verdict.answer)
            if not job.future.done():
                job.future.set_exception(verdict.error)
        elif taking is None:
            _answer(job, verdict.answer)
        elif job.future.done():
            if verdict.answer is not None:
                self.give_back(taking, verdict.answer)
        elif taking.is_empty(verdict.answer) and self._may_wait(job):
            if job.found is None and self._is_full(taking.queue_id):
                # There was room when it came, and others that came with it have taken that.
                job.future.set_exception(_too_many_wait())
                return
            job.found = verdict.answer
            self._waiting.add(taking.queue_id, job)
        else:
            _answer(job, verdict.answer)

    def _is_full(self, queue_id: bytes) -> bool:
        return self._waiting.count(queue_id) >= self._limits.waiting_receive_count_max

    def _may_wait(self, job: Job) -> bool:
        loop = asyncio.get_running_loop()
        if not self._may_all_wait or job.deadline <= loop.time():
            return False
        if job.timer is None:
            job.timer = loop.call_at(job.deadline, self._end_waiting, job)
        return True

    def _end_waiting(self, job: Job) -> None:
        """Answer a receive that has waited long enough, unless it is in the line: its round will."""
        if self._waiting.has(job):
            self._waiting.remove(job)
            _answer(job, job.found)

    # What is due by itself

    def _seconds_until(self, due: int) -> float:
        try:
            return max(due - self._clock(), 0) / 1000
        except StoreError:
            return UPKEEP_PAUSE_SECONDS

    def _plan_upkeep(self, seconds: float) -> None:
        """Have what is due done in a while; the earliest plan counts."""
        if self._upkeep is None or self._upkeep_waits or self._stopping.is_set():
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._upkeep_timer is not None:
            if self._upkeep_timer.when() <= at:
                return
            _stop_timer(self._upkeep_timer)
        self._upkeep_timer = loop.call_at(at, self._begin_upkeep)

    def _begin_upkeep(self) -> None:
        assert self._upkeep is not None
        self._upkeep_timer = None
        self._upkeep_waits = True
        job = _unheard(self._upkeep)
        job.future.add_done_callback(self._end_upkeep)
        self._line.put_anyway(job, self._upkeep.size)
        self._turn.set()

    def _end_upkeep(self, done: "asyncio.Future[Any]") -> None:
        self._upkeep_waits = False
        if done.cancelled() or done.exception() is not None:
            self._plan_upkeep(UPKEEP_PAUSE_SECONDS)
        elif done.result() or self._upkeep_again:
            self._upkeep_again = False
            self._plan_upkeep(0)
        elif self._next_due is not None:
            # What was due and is so still would else be tried again without a pause.
            self._plan_upkeep(max(self._seconds_until(self._next_due), UPKEEP_PAUSE_SECONDS))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


def _unheard(change: Change) -> Job:
    """A job of which nobody waits for the answer."""
    job = Job(change, asyncio.get_running_loop().create_future())
    job.future.add_done_callback(_look)
    return job


def _too_many_wait() -> Overloaded:
    return Overloaded("too many wait for messages of this queue", retry_after_seconds=1)


def _stopped() -> Unavailable:
    return Unavailable("queues are stopping", code=Code.DRAINING, retry_after_seconds=1)


def _look(done: "asyncio.Future[Any]") -> None:
    if not done.cancelled():
        done.exception()


def _answer(job: Job, answer: Any) -> None:
    if not job.future.done():
        job.future.set_result(answer)


def _stop_timer(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
