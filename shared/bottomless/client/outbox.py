"""Outbox: sends what a producer was given, in order and once, with several requests in flight.

Each append has the number of its first record, and the server accepts only the next number of a
producer. So records keep their order even when requests overtake each other: an append that arrives
too early is refused as a gap, waits here for the one before it, and is sent again; one that may
have been stored without an answer is sent again unchanged, and is stored once.

What is stored is always a prefix of what was handed over: the first append that cannot be stored
ends the producer, and nothing after it is sent any more.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bottomless.client.accumulator import Accumulator
from bottomless.client.appends import AppendCalls
from bottomless.client.delivery import Bundle, Stored
from bottomless.client.encoding import EncodedBody
from bottomless.client.producer_settings import BATCH_BYTES_DEFAULT, Sending
from bottomless.client.retry import Backoff, may_repeat
from bottomless.errors import Code, Outcome, StoreError, Unavailable

_TOO_EARLY: Final = frozenset({Code.PRODUCER_SEQUENCE_GAP, Code.PRODUCER_UNKNOWN})
"""How an append is refused that overtook the one before it; the second, where that is the
first of its producer."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The stream and id of a producer, its epoch, and the number of its next record."""

    stream: str
    producer_id: str
    epoch: int
    next_sequence: int


class _Turn:
    """An append's place in the order: its number, and where it is for the one after it."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.on_its_way = asyncio.Event()
        """Sent, and not refused as too early since."""
        self.over = asyncio.Event()
        """Settled, one way or the other."""

    def end(self) -> None:
        self.on_its_way.set()
        self.over.set()


class Outbox:
    """The sending side of one producer, on the client's loop."""

    def __init__(self, client: AppendCalls, identity: Identity, sending: Sending) -> None:
        self._client = client
        self._identity = identity
        self._sending = sending
        self._sequence = identity.next_sequence
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._settled = asyncio.Event()
        self.buffer = Accumulator(sending.batching, time.monotonic, self._wake)
        self.failure: StoreError | None = None
        """Why nothing is sent any more."""
        self._requests: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._run(), name="bottomless-producer")
        # However it ends, also with its loop: nobody may wait for ever.
        self._task.add_done_callback(lambda _: self._give_up())

    def bodies_of(self, table: Any) -> Iterator[EncodedBody]:
        """Encode a table as the bodies of the appends that send it.

        Raises:
            InvalidRequest: it is no table, or has a column that no record has.
        """
        from bottomless.client.tables import arrow_bodies, as_table  # noqa: PLC0415

        bounds = self._sending.batching
        size = max(bounds.batch_bytes, BATCH_BYTES_DEFAULT)
        return arrow_bodies(as_table(table), size=size, compression=self._sending.compression)

    async def wait_for_room(self, timeout_seconds: float) -> bool:
        """Wait until something was settled; returns False if nothing was in time."""
        self._settled.clear()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._settled.wait()
        except TimeoutError:
            return False
        return True

    async def flush(self) -> None:
        """Send everything now, and wait until all that was handed over is settled.

        Raises:
            StoreError: some of it is not stored, or that is not known.
        """
        for bundle in self.buffer.seal():
            if not bundle.settled.done():
                waiting = asyncio.wrap_future(bundle.settled)
                # Its error is told below; a future that nobody asks complains in the log.
                waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.wait({waiting})
        if self.failure is not None:
            raise told_again(self.failure, self.failure.outcome)

    async def stop(self) -> None:
        """Send nothing more.

        Requests in flight are cut off: whether they are stored is not known.
        """
        for task in (self._task, *self._requests):
            task.cancel()
        await asyncio.gather(self._task, *self._requests, return_exceptions=True)

    def _give_up(self) -> None:
        unsent = set(self.buffer.stop(lambda: RuntimeError("the producer is closed")))
        for bundle in self.buffer.seal():
            outcome = Outcome.NONE if bundle in unsent else Outcome.UNKNOWN
            self._settle(bundle, Unavailable("closed first", retryable=False, outcome=outcome))

    def _wake(self) -> None:
        # From any thread, and also when the loop is gone: then nobody needs to know.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._work.set)

    async def _run(self) -> None:
        # A window, not a number of slots: while one append is tried again, those after it
        # must not push it out of what the server remembers.
        window: deque[_Turn] = deque()
        before: _Turn | None = None
        while True:
            if len(window) == self._sending.in_flight:
                await window.popleft().over.wait()
            bundle = await self._next()
            turn = _Turn(self._sequence)
            request = asyncio.create_task(self._deliver(bundle, turn, before))
            self._sequence += bundle.record_count
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)
            window.append(turn)
            before = turn

    async def _next(self) -> Bundle:
        while True:
            self._work.clear()
            bundle = self.buffer.take()
            if bundle is not None:
                return bundle
            due = self.buffer.due_seconds()
            try:
                async with asyncio.timeout(due):
                    await self._work.wait()
            except TimeoutError:
                continue

    async def _deliver(self, bundle: Bundle, turn: "_Turn", before: "_Turn | None") -> None:
        """Settle one bundle, whatever happens but being cancelled."""
        try:
            self._settle(bundle, await self._stored(bundle, turn, before))
        except StoreError as error:
            self._fail(bundle, error)
        except Exception as bug:  # noqa: BLE001  # whoever waits for the records hears of it
            unexpected = StoreError("an unexpected error", outcome=Outcome.UNKNOWN)
            unexpected.__cause__ = bug
            self._fail(bundle, unexpected)
        finally:
            turn.end()

    async def _stored(self, bundle: Bundle, turn: "_Turn", before: "_Turn | None") -> Stored:
        """Append until it is stored.

        Raises:
            StoreError: it is not, with what is known of all attempts together.
        """
        body = await self._body_of(bundle)
        if before is not None:
            # What was refused as too early is still to come; after it this would be too early too.
            await before.on_its_way.wait()
        if self.failure is not None:
            raise told_again(self.failure)
        backoff = Backoff(self._sending.delivery_seconds)
        doubtful = False
        while True:
            turn.on_its_way.set()
            first_in_line = before is None or before.over.is_set()
            try:
                return await self.append(bundle, body, turn.sequence)
            except StoreError as error:
                doubtful = doubtful or error.outcome is not Outcome.NONE
                pause: float | None = None
                if error.code in _TOO_EARLY and not first_in_line:
                    assert before is not None
                    turn.on_its_way.clear()
                    await before.over.wait()
                    pause = 0.0
                elif may_repeat(error, repeatable=True):
                    pause = backoff.after(error)
                if pause is None or self.failure is not None:
                    if doubtful and error.outcome is Outcome.NONE:
                        error.outcome = Outcome.UNKNOWN
                    raise
            await asyncio.sleep(pause)

    async def append(self, bundle: Bundle, body: bytes, sequence: int) -> Stored:
        """Send a bundle once, whose first record has this number.

        Raises:
            StoreError: it is not stored, or that is not known.
        """
        return await self._client.append_numbered(
            self._identity.stream,
            body,
            bundle.media_type,
            producer=self._identity.producer_id,
            epoch=self._identity.epoch,
            sequence=sequence,
            encoding=bundle.encoding,
            retry_seconds=0,
        )

    async def _body_of(self, bundle: Bundle) -> bytes:
        compression = self._sending.compression
        if compression is None or bundle.body is not None:
            return bundle.encoded(compression)
        return await asyncio.to_thread(bundle.encoded, compression)

    def _settle(self, bundle: Bundle, outcome: Stored | StoreError) -> None:
        self.buffer.settle(bundle, outcome)
        self._settled.set()

    def _fail(self, bundle: Bundle, error: StoreError) -> None:
        """Settle with an error, the first of which ends the producer."""
        if self.failure is None:
            self.failure = error
            for unsent in self.buffer.stop(lambda: told_again(error)):
                self._settle(unsent, told_again(error))
        elif error.code in _TOO_EARLY:
            # Refused for want of the one that failed; if that is stored in the end, so may
            # be an earlier attempt of this one.
            doubts = {self.failure.outcome, error.outcome} != {Outcome.NONE}
            refused = Unavailable(
                "an append before this one failed",
                retryable=False,
                outcome=Outcome.UNKNOWN if doubts else Outcome.NONE,
            )
            refused.__cause__, error = self.failure, refused
        self._settle(bundle, error)


def told_again(failure: StoreError, outcome: Outcome | None = Outcome.NONE) -> StoreError:
    """Make the error that later calls raise after a failure has ended the producer.

    By default it says that nothing was stored, which is so for records that come later.
    """
    error = type(failure)(
        f"the producer ended: {failure.message}",
        code=failure.code,
        retryable=False,
        outcome=outcome,
        faults=failure.faults,
        facts=failure.facts,
    )
    error.__cause__ = failure
    return error
