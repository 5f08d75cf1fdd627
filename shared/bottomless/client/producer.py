"""`AsyncProducer`: records one by one or in bulk, in order and once, as fast as batches go."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex
from types import TracebackType
from typing import Any, Self

from bottomless.client.address import check_reference, check_stream
from bottomless.client.appends import AppendCalls
from bottomless.client.delivery import (
    AsyncDeliveries,
    AsyncDelivery,
    Bundle,
    Span,
    Spans,
)
from bottomless.client.outbox import Identity, Outbox
from bottomless.client.producer_settings import Sending
from bottomless.client.rows import Row, Text, Values, json_row_of, row_of, rows_of
from bottomless.client.wire import number_in, understood
from bottomless.errors import InvalidRequest, Outcome, Overloaded


@dataclass(frozen=True, slots=True)
class Wanted:
    """The stream and the id that a producer is asked to have."""

    stream: str
    producer_id: str | None = None
    """A producer with the id that it had before a restart continues; without an id it is a new
    one."""
    epoch: int | None = None
    next_sequence: int | None = None

    def __post_init__(self) -> None:
        check_stream(self.stream)
        if self.producer_id is not None:
            check_reference(self.producer_id)
        together = (self.epoch is None) == (self.next_sequence is None)
        if not together or (self.epoch is not None and self.producer_id is None):
            raise InvalidRequest("epoch and next_sequence go together, with a producer_id")


async def identify(client: AppendCalls, wanted: Wanted) -> Identity:
    """Find out the identity of a producer; unless it is given whole, its epoch is raised.

    Raising the epoch fences older instances of the producer.

    Raises:
        StoreError: the server refuses; the stream does not exist, for example.
    """
    given = wanted.producer_id
    name = f"py-{token_hex(8)}" if given is None else given
    if wanted.epoch is not None and wanted.next_sequence is not None:
        return Identity(wanted.stream, name, wanted.epoch, wanted.next_sequence)
    known = await client.raise_producer_epoch(wanted.stream, name)
    with understood(Outcome.UNKNOWN):
        last = known["last_seq"]
        sequence = 0 if last is None else number_in(known, "last_seq") + 1
        return Identity(wanted.stream, name, number_in(known, "epoch"), sequence)


class AsyncProducer:
    """Appends to one stream; made by `AsyncClient.producer`, used with `async with`.

    Any number of tasks may send; records are stored in the order of the calls. A task that is
    cancelled while it waits for room has handed over nothing; cancelling a task that waits for a
    delivery does not recall the record.

    Leaving the block normally flushes. Leaving it by an exception sends nothing more: what was in
    flight may be stored or not, the rest is not.
    """

    def __init__(self, client: AppendCalls, wanted: Wanted, sending: Sending) -> None:
        self._client = client
        self._wanted = wanted
        self._sending = sending
        self._identity: Identity | None = None
        self._outbox: Outbox | None = None
        self._let_others_run = False

    async def start(self) -> None:
        """Find out the producer's identity; `async with` does it.

        Raises:
            StoreError: the server refuses; there is no such stream, for example.
        """
        assert self._outbox is None, "a producer starts once"
        self._identity = await identify(self._client, self._wanted)
        self._outbox = Outbox(self._client, self._identity, self._sending)

    @property
    def block_seconds(self) -> float:
        """How long handing over a record may wait for room."""
        return self._sending.block_seconds

    @property
    def outbox(self) -> Outbox:
        """The sending side of this producer.

        Raises:
            RuntimeError: the producer has not been started.
        """
        if self._outbox is None:
            raise RuntimeError("use a producer inside of `async with`, or after `start`")
        return self._outbox

    @property
    def identity(self) -> Identity:
        """The identity of this producer.

        Its `next_sequence` counts the records that the stream had of it before.

        Raises:
            RuntimeError: the producer has not been started.
        """
        if self._identity is None:
            raise RuntimeError("use a producer inside of `async with`, or after `start`")
        return self._identity

    async def send(
        self,
        value: Text,
        *,
        key: Text | None = None,
        headers: Mapping[str, Text] | None = None,
        event_time: int | datetime | None = None,
        filter_value: str | None = None,
    ) -> AsyncDelivery:
        """Hand over a record; waits for room. Await the delivery that is returned for its `Ack`.

        `event_time` is a datetime, or ms since 1970.

        Raises:
            InvalidRequest: no server would accept it.
            Overloaded: there was no room in time; it was not handed over.
            StoreError: the producer has ended, for this reason.
        """
        return AsyncDelivery(
            *await self._put(row_of(value, key, headers, event_time, filter_value))
        )

    async def send_json(
        self,
        value: Any,
        *,
        key: Text | None = None,
        headers: Mapping[str, Text] | None = None,
        event_time: int | datetime | None = None,
        filter_value: str | None = None,
    ) -> AsyncDelivery:
        """Hand over a record whose value is the JSON text of `value`; otherwise like `send`."""
        row = json_row_of(value, key, headers, event_time, filter_value)
        return AsyncDelivery(*await self._put(row))

    async def send_many(self, values: Iterable[Text]) -> AsyncDeliveries:
        """Hand over many values, in their order.

        If cancelled, it has handed over the first of them.
        """
        spans = Spans()
        for some in rows_of(values):
            if isinstance(some, Row):
                spans.add(*await self._put(some))
            else:
                await self._put_values(some, spans)
        return AsyncDeliveries(spans.all())

    async def send_table(self, table: Any) -> AsyncDeliveries:
        """Hand over the rows of a table of any size: Arrow's, or one that Arrow can read.

        Its columns are those of a record: `value`, and optionally `key`, `headers`, `event_time`,
        `filter_value` and `content`.
        """
        spans = []
        for body in self.outbox.bodies_of(table):
            bundle = self.outbox.buffer.add_encoded(body)
            deadline = self._deadline()
            while bundle is None:
                await self._wait_for_room(deadline)
                bundle = self.outbox.buffer.add_encoded(body)
            spans.append(Span(bundle, 0, body.record_count))
        return AsyncDeliveries(spans)

    send_arrow = send_table

    async def flush(self) -> None:
        """Send everything now, and wait until all that was handed over is stored.

        Raises:
            StoreError: something is not stored, or that is not known; the producer has ended.
        """
        await self.outbox.flush()

    async def close(self) -> None:
        """Flush, and end."""
        try:
            await self.flush()
        finally:
            await self.abort()

    async def abort(self) -> None:
        """End at once: nothing more is sent, and what is in flight is cut off."""
        if self._outbox is not None:
            await self._outbox.stop()

    async def __aenter__(self) -> Self:
        if self._outbox is None:
            await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await (self.close() if error is None else self.abort())

    async def _put(self, row: Row) -> tuple[Bundle, int]:
        if self._let_others_run:
            # Before the record is handed over: a cancelled call has handed nothing over.
            self._let_others_run = False
            await asyncio.sleep(0)
        place = self.outbox.buffer.add(*row)
        if place is None:
            deadline = self._deadline()
            while place is None:
                await self._wait_for_room(deadline)
                place = self.outbox.buffer.add(*row)
        # A loop over `send` that never waits would keep what is full from being sent.
        self._let_others_run = place[1] == 0
        return place

    async def _put_values(self, some: Values, spans: Spans) -> None:
        deadline = self._deadline()
        while some.values:
            if self._let_others_run:
                self._let_others_run = False
                await asyncio.sleep(0)
            place = self.outbox.buffer.add_values(*some)
            if place is None:
                await self._wait_for_room(deadline)
                continue
            spans.add(*place)
            self._let_others_run = place[1] == 0
            some = some.without_first(place[2])
            deadline = self._deadline()

    def _deadline(self) -> float:
        return time.monotonic() + self._sending.block_seconds

    async def _wait_for_room(self, deadline: float) -> None:
        # Of the whole wait: what becomes free meanwhile may be taken by others.
        if not await self.outbox.wait_for_room(deadline - time.monotonic()):
            raise no_room()


def no_room() -> Overloaded:
    """Make the error for a buffer that stayed full. It is not raised here."""
    return Overloaded("the producer's buffer stayed full: the server takes less than is sent")
