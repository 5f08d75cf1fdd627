"""`AsyncWorker`: messages of a queue, each of which is this program's until its work is done.

    received ──► in hand ── block left ──► acknowledged
       │          │  └── left by an exception ──► given back
       │          └── at half of its visibility ──► extended, and so on
       └── delivered to somebody else meanwhile ──► lost: `stale` is heard, and told

A message that is in hand is extended beside the work, by the monotonic clock, also before it is given
to the program. A process that stood still for longer than the visibility may have been overtaken: the
server says so when it is next asked, and nothing of that message is acknowledged by this one.
"""

import asyncio
import time
from collections import deque
from types import TracebackType
from typing import Final, Self

from bottomless.client.message import Message
from bottomless.client.receiving import ReceiveCalls
from bottomless.client.retry import jittered
from bottomless.client.working import Loss, Working
from bottomless.errors import StoreError
from bottomless.guards import guard

_RECEIVE_LIMIT_MAX: Final = 100
_CLOSE_SECONDS: Final = 2.0
"""How long giving back is tried at the end: what is not given back comes again anyway."""


class AsyncHeldMessage(Message):
    """A message in the hand of a worker, for `async with`.

    Leaving the block acknowledges it; an exception gives it back, and goes on. Either can be done
    earlier by `ack` or `nack`, and then leaving the block does nothing.
    """

    __slots__ = ("_worker", "acknowledging", "lost", "settled", "until")

    def __init__(self, message: Message, worker: "AsyncWorker", until: float) -> None:
        super().__init__(message)
        self._worker = worker
        self.until = until
        """Time of the monotonic clock until which it is nobody else's for certain."""
        self.lost: Loss | None = None
        """`stale`: somebody else got it meanwhile; `gone`: it left the queue. None while it is ours."""
        self.settled = False
        """Whether it was acknowledged or given back."""
        self.acknowledging = False
        """Whether the server may have heard an acknowledgement of it."""

    async def ack(self) -> bool:
        """Acknowledge the message; tells whether it was still this worker's.

        Raises:
            StoreError: the server's answer says why; it may be tried again.
        """
        return await self._worker.ack(self)

    async def nack(self, *, delay_ms: int | None = None, dead_letter: bool = False) -> bool:
        """Give the message back; tells whether it was still this worker's.

        It is ready again after `delay_ms`, by default that of the worker; with `dead_letter` it
        becomes a dead letter at once.

        Raises:
            StoreError: the server's answer says why; it comes again when its visibility is over.
        """
        return await self._worker.nack(self, delay_ms, dead_letter)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._worker.leave(self, error)


@guard("a message is ours from the moment it was asked for")
def held_until(asked_at: float, answered_at: float, seconds: float) -> float:
    """Until when a message is nobody else's for certain that was received, all by the monotonic clock.

    Nobody knows when the server has taken it: perhaps at once, and this process has stood still since.
    """
    del answered_at
    return asked_at + seconds


@guard("a message whose time was over is not acknowledged by its absence")
def is_late(until: float, now: float) -> bool:
    """Whether a message may have been somebody else's when its acknowledgement was sent, by the monotonic
    clock: one that is gone then was acknowledged by that one, or became a dead letter.
    """
    return until <= now


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class AsyncWorker:
    """Takes messages of one queue; made by `AsyncClient.worker`, for `async with` and `async for`.

    Each message is for an `async with` of its own. Several tasks may ask for messages. Up to `limit`
    are in hand at once, and the next one comes when one of them was acknowledged or given back.
    Leaving the block gives back what is still in hand.
    """

    def __init__(self, client: ReceiveCalls, working: Working) -> None:
        self._client = client
        self._working = working
        self._held: dict[str, AsyncHeldMessage] = {}
        """In hand, by their receipts."""
        self._waiting: deque[AsyncHeldMessage] = deque()
        """In hand, and not given to the program yet."""
        self._receiving = asyncio.Lock()
        self._extending = asyncio.Lock()
        self._taken = asyncio.Event()
        """Something came into the hand."""
        self._room = asyncio.Event()
        """Something left it."""
        self._upkeep: asyncio.Task[None] | None = None
        self._failures = 0
        self._last: AsyncHeldMessage | None = None
        self._given = 0
        self._closed = False

    @property
    def in_hand(self) -> int:
        """How many messages are in hand, those that were not given to the program yet among them."""
        return len(self._held)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncHeldMessage:
        """The next message; waits for one.

        Raises:
            NotFound: `queue-not-found`.
            RuntimeError: the worker is closed.
        """
        message = await self.fetch(self._given)
        assert message is not None
        return message

    async def poll(self, timeout_seconds: float) -> AsyncHeldMessage | None:
        """Wait for the next message; None if there is none in `timeout_seconds`."""
        return await self.fetch(self._given, timeout_seconds)

    async def fetch(
        self, received: int, timeout_seconds: float | None = None
    ) -> AsyncHeldMessage | None:
        """Wait for the message after the first `received` ones.

        If more were given than that, the caller has never received the last one, and it is given
        again. It raises what the iteration would raise.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        async with self._receiving:
            if received != self._given and self._last is not None:
                if self._last.receipt in self._held:
                    # Whether it is still ours is looked at once more.
                    self._waiting.appendleft(self._last)
                self._given = received
            while True:
                self._require()
                given = await self._take(deadline)
                if given is not None:
                    self._last = given
                    self._given += 1
                    return given
                left = _left(deadline)
                if not self._waiting:
                    await self._receive(left)
                if left == 0 and (not self._waiting or self._waiting[0].until <= time.monotonic()):
                    return None

    async def ack(self, message: AsyncHeldMessage) -> bool:
        """Acknowledge a message in hand; tells whether it was still this worker's."""
        if message.settled or message.lost:
            return False
        late = is_late(message.until, time.monotonic()) and not message.acknowledging
        # It is extended on until the answer is there: it could be long in coming.
        message.acknowledging = True
        answer = await self._client.ack(self._working.queue, message.receipt)
        self._drop(message)
        if answer.stale or (answer.gone and late):
            self._lose(message, "stale" if answer.stale else "gone")
            return False
        # One that is gone was acknowledged by an attempt whose answer was lost.
        message.settled = True
        return True

    async def nack(
        self, message: AsyncHeldMessage, delay_ms: int | None = None, dead_letter: bool = False
    ) -> bool:
        """Give back a message in hand; tells whether it was still this worker's."""
        if message.settled or message.lost:
            return False
        self._drop(message)
        message.settled = True
        await self._end_extending()
        if message.lost:
            return False
        answer = await self._client.nack(
            self._working.queue,
            message.receipt,
            delay_ms=self._working.nack_delay_ms if delay_ms is None else delay_ms,
            dead_letter=dead_letter,
        )
        if answer.stale:
            self._lose(message, "stale")
        return not answer.stale

    @guard("no extension after a message was given back")
    async def _end_extending(self) -> None:
        """Return when no extension is under way that may name a message that left the hand: one that came
        to the server after it was given back would take it out of the queue again.
        """
        async with self._extending:
            pass

    async def leave(self, message: AsyncHeldMessage, error: BaseException | None) -> None:
        """End the work on a message, well or by an error."""
        try:
            if error is None:
                await self.ack(message)
                return
            try:
                await self.nack(message)
            except StoreError as failed:
                # What the program raised says more, and the message comes again by itself.
                self._working.on_outage(failed)
        finally:
            # Whatever became of it: nobody would settle it any more.
            self._drop(message)

    async def close(self) -> None:
        """Give back what is still in hand, and take nothing more."""
        self._closed = True
        self._room.set()
        async with self._extending:
            if self._upkeep is not None:
                self._upkeep.cancel()
                await asyncio.gather(self._upkeep, return_exceptions=True)
        left = list(self._held.values())
        self._held.clear()
        self._waiting.clear()
        for message in left:
            message.settled = True
        await self._give_back([message.receipt for message in left])

    async def __aenter__(self) -> Self:
        self._require()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _require(self) -> None:
        if self._closed:
            raise RuntimeError("the worker is closed: make another")
        if self._upkeep is None:
            self._upkeep = asyncio.ensure_future(self._keep())
        elif self._upkeep.done():
            # A callback raised: it ends the worker, and not silently.
            self._upkeep.result()

    async def _take(self, deadline: float | None) -> AsyncHeldMessage | None:
        """One of those that are in hand and wait; None without one, or where nobody says in time whether
        the first of them still is."""
        while self._waiting:
            first = self._waiting[0]
            if first.lost is None and first.until <= time.monotonic():
                # Stalled: whether it is still ours is asked before anybody works on it.
                try:
                    await self._extend()
                except StoreError as error:
                    if not error.retryable:
                        raise
                    left = _left(deadline)
                    if left == 0:
                        return None
                    await self._pause(error, left)
                continue
            self._waiting.popleft()
            if first.lost is None:
                return first
        return None

    async def _receive(self, left: float | None) -> None:
        """Take more in hand, if there is room, waiting for up to `left` seconds."""
        room = min(self._working.limit - len(self._held), _RECEIVE_LIMIT_MAX)
        if room <= 0:
            await self._wait_for_room(left)
            return
        longest = self._working.wait_ms
        wait_ms = longest if left is None else min(longest, int(left * 1000))
        asked_at = time.monotonic()
        try:
            messages = await self._client.receive(
                self._working.queue,
                limit=room,
                max_wait_ms=wait_ms,
                visibility_ms=self._working.visibility_ms,
                retry_seconds=0,
            )
        except StoreError as error:
            if not error.retryable:
                raise
            await self._pause(error, left)
            return
        if self._closed:
            await self._give_back([message.receipt for message in messages])
            return
        until = held_until(asked_at, time.monotonic(), self._working.seconds)
        for message in messages:
            held = AsyncHeldMessage(message, self, until)
            self._held[held.receipt] = held
            self._waiting.append(held)
        self._taken.set()
        if messages or time.monotonic() - asked_at >= wait_ms / 2000:
            self._failures = 0
        else:
            # A server that is about to stop answers at once: it is not asked without a pause.
            await self._pause(None, left)

    async def _wait_for_room(self, left: float | None) -> None:
        self._room.clear()
        try:
            async with asyncio.timeout(left):
                await self._room.wait()
        except TimeoutError:
            return

    async def _pause(self, error: StoreError | None, left: float | None) -> None:
        if error is not None:
            self._working.on_outage(error)
        asked = None if error is None else error.retry_after_seconds
        seconds = jittered(self._failures, asked)
        self._failures += 1
        await asyncio.sleep(seconds if left is None else min(seconds, left))

    async def _keep(self) -> None:
        """Extend what is in hand, each message at half of its visibility."""
        failures = 0
        while True:
            if not self._held:
                self._taken.clear()
                await self._taken.wait()
            pause = self._due() - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
                continue
            try:
                await self._extend()
                failures = 0
            except StoreError as error:
                self._working.on_outage(error)
                longest = self._working.seconds / 8 if error.retryable else self._working.seconds
                await asyncio.sleep(min(jittered(failures, error.retry_after_seconds), longest))
                failures += 1

    def _due(self) -> float:
        """When the first of those in hand has to be extended; where there is none, no later than one
        that comes now."""
        later = time.monotonic() + self._working.seconds
        until = min((one.until for one in self._held.values()), default=later)
        return until - self._working.seconds / 2

    async def _extend(self) -> None:
        """Extend what is in hand and past half of its visibility.

        Raises:
            StoreError: that was not answered; it is still in hand.
        """
        async with self._extending:
            now = time.monotonic()
            due = [
                one for one in self._held.values() if one.until - self._working.seconds / 2 <= now
            ]
            if not due:
                return
            answer = await self._client.extend(
                self._working.queue,
                [one.receipt for one in due],
                visibility_ms=self._working.visibility_ms,
                retry_seconds=0,
            )
            for message in due:
                message.until = now + self._working.seconds
                if message.receipt in answer.stale:
                    self._lose(message, "stale")
                elif message.receipt in answer.gone and not message.acknowledging:
                    # Else it was this very worker that is done with it.
                    self._lose(message, "gone")

    def _lose(self, message: AsyncHeldMessage, loss: Loss) -> None:
        self._drop(message)
        if message.lost is None:
            message.lost = loss
            self._working.on_lost(message, loss)

    def _drop(self, message: AsyncHeldMessage) -> None:
        self._held.pop(message.receipt, None)
        self._room.set()

    async def _give_back(self, receipts: list[str]) -> None:
        if not receipts:
            return
        try:
            await self._client.nack(self._working.queue, receipts, retry_seconds=_CLOSE_SECONDS)
        except StoreError as error:
            self._working.on_outage(error)
