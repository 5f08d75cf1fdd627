"""One task owns one stream's manifest; everybody else sends it work and waits.

What changes a manifest is serial because one task does all of it, so no lock is needed.
Work waits in a bounded mailbox. If work meets a fault that is not the caller's, the
committer is dropped and the next work opens a new one from what is stored. That is what
happens after a crash too, so no half-known state is ever carried on.

`mutator.py` says which work there is; nothing else gives work to a task.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import structlog

from bottomless.errors import (
    Code,
    Fenced,
    InvalidRequest,
    Outcome,
    Overloaded,
    StoreError,
    Unavailable,
    WrongOffset,
)
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.leaderless.pruning import prune_published
from bottomless_server.manifest.mutators.freeing import free
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.outcomes import FragmentOutcome
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless

log = structlog.get_logger(__name__)

T = TypeVar("T")
Work = Callable[[Committer], Awaitable[T]]

MAILBOX_COUNT_MAX: Final = 256
"""Requests of one stream that may wait; more are told to come again."""
_TELL_RETRY_SECONDS: Final = (0.2, 1.0, 5.0)
"""The waits between attempts to tell an owner what is published, or to prune a tail. One that hears
nothing keeps data longer than it must, until the next publish."""
_KEEP: Final = (InvalidRequest, Fenced, Overloaded, Unavailable, WrongOffset)
"""Errors after which the committer's state is as sound as before."""


class StreamTask:
    """The task of one stream, with the mailbox of the work that waits for it."""

    def __init__(self, context: Context, stream_id: StreamId) -> None:
        self.stream_id = stream_id
        self._context = context
        self._mailbox: asyncio.Queue[tuple[Work[Any], asyncio.Future[Any]]] = asyncio.Queue(
            MAILBOX_COUNT_MAX
        )
        self._committer: Committer | None = None
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._busy = self._closed = False
        self._tasks: tuple[asyncio.Task[None], ...] = (
            asyncio.create_task(
                endless("manifest-stream", self._do_next), name=f"manifest {stream_id}"
            ),
            asyncio.create_task(
                endless("manifest-published", self._tell_owner), name=f"published {stream_id}"
            ),
        )

    @property
    def idle(self) -> bool:
        committer = self._committer
        resting = committer is None or committer.idle
        return resting and not self._busy and self._mailbox.empty()

    @property
    def record(self) -> StreamRecord | None:
        """The last record that this process knows, if it knows one."""
        return None if self._committer is None else self._committer.record

    async def run(self, work: Work[T]) -> T:
        """Run `work` in the stream's task and return what it returns.

        Raises:
            Overloaded: too much waits already.
            Unavailable: `draining`: the task was ended meanwhile; a repeat finds a new one. The outcome is
                unknown if the work had begun.
            StoreError: whatever `work` raises.
        """
        if self._closed:
            raise draining()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            self._mailbox.put_nowait((work, answer))
        except asyncio.QueueFull:
            raise Overloaded(
                "too many requests of this stream wait", retry_after_seconds=1
            ) from None
        try:
            return await answer
        finally:
            # An error refers to this frame, and the answer to the error: a circle round the whole
            # committer, which only the garbage collector would find.
            del answer

    @property
    def next_change(self) -> asyncio.Event:
        """Set at the next change: of the version, or of what became of a fragment.

        Take it before looking, or a change in between is missed.
        """
        return self._changed

    def outcomes(self, uids: Sequence[Uid]) -> dict[Uid, FragmentOutcome]:
        """Tell what became of fragments, as far as it is known."""
        committer = self._committer
        return {uid: None if committer is None else committer.outcome(uid) for uid in uids}

    async def aclose(self) -> None:
        self._closed = True
        await end_tasks(*self._tasks)
        # A task that was cancelled refers to the frames in which it was, and they to this.
        self._tasks = ()
        while not self._mailbox.empty():
            _, answer = self._mailbox.get_nowait()
            if not answer.done():
                answer.set_exception(draining())

    async def _do_next(self) -> float:
        work, answer = await self._next()
        self._busy = True
        try:
            await self._do(work, answer)
        finally:
            self._busy = False
            if answer is not None and not answer.done():
                # Ended in the middle: it may be done.
                answer.set_exception(draining(Outcome.UNKNOWN))
        return 0

    async def _next(self) -> tuple[Work[Any], asyncio.Future[Any] | None]:
        """The next work from the mailbox, or the committer's own when its time has come."""
        seconds = self._seconds_to_wake()
        try:
            # A due publish goes before waiting work, or a busy mailbox would starve it.
            if seconds is not None and seconds <= 0:
                return _wake, None
            async with asyncio.timeout(seconds):
                return await self._mailbox.get()
        except TimeoutError:
            return _wake, None

    def _seconds_to_wake(self) -> float | None:
        wake_at = None if self._committer is None else self._committer.wake_at
        return None if wake_at is None else (wake_at - self._context.elapsed()) / 1000

    async def _do(self, work: Work[Any], answer: asyncio.Future[Any] | None) -> None:
        before = self._state()
        published_next = 0 if self.record is None else self.record.published_next
        try:
            if self._committer is None:
                self._committer = await Committer.open(self._context, self.stream_id)
            await self._go_on_with_a_takeover(self._committer)
            result = await work(self._committer)
        except Exception as error:  # noqa: BLE001  every error is the caller's to hear
            self._failed(error, answer)
        else:
            if answer is not None and not answer.done():
                answer.set_result(result)
        finally:
            # As in `run`.
            del answer
        self._announce(before, published_next)

    async def _go_on_with_a_takeover(self, committer: Committer) -> None:
        try:
            await free(self._context, committer)
        except Unavailable as error:
            # Whatever is asked of the stream now need not wait for it, and its operation goes on.
            log.warning("a takeover is not finished", stream_id=self.stream_id, error=str(error))

    def _failed(self, error: Exception, answer: asyncio.Future[Any] | None) -> None:
        if not isinstance(error, _KEEP):
            self._committer = None
        if answer is None or not isinstance(error, StoreError):
            level = log.warning if isinstance(error, StoreError) else log.error
            known = isinstance(error, StoreError)
            level(
                "work on a manifest failed",
                stream_id=self.stream_id,
                error=str(error),
                exc_info=None if known else error,
            )
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def _announce(self, before: tuple[int, int], published_next: int) -> None:
        if self._state() != before:
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
        if self.record is not None and self.record.published_next > published_next:
            self._news.set()

    def _state(self) -> tuple[int, int]:
        committer = self._committer
        return (
            (-1, -1) if committer is None else (committer.record.version, committer.outcomes.count)
        )

    def tell_again(self) -> None:
        """Send the owner what is published once more, or prune the tail."""
        self._news.set()

    async def _tell_owner(self) -> float:
        await self._news.wait()
        self._news.clear()
        for seconds in (*_TELL_RETRY_SECONDS, None):
            # Read anew each time: the owner needs only the newest, and may be another.
            record = self.record
            if record is None or record.published_next == 0 or await self._is_heard(record):
                break
            if seconds is None:
                log.warning("nobody hears what is published", stream_id=self.stream_id)
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            self._news.clear()
        return 0

    async def _is_heard(self, record: StreamRecord) -> bool:
        """Whether what keeps records until they are published has let them go."""
        if record.config.leaderless:
            return await prune_published(self._context, record)
        if record.owner_url is None:
            return True
        return await self._context.owners.published(
            record.owner_url, record.stream_id, record.published_next, record.version
        )


async def _wake(committer: Committer) -> None:
    await committer.wake()


def draining(outcome: Outcome = Outcome.NONE) -> Unavailable:
    return Unavailable("the service is stopping", code=Code.DRAINING, outcome=outcome)
