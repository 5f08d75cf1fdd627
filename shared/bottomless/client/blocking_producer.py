"""`Producer`: what `AsyncProducer` does, for threads.

Handing over a record touches nothing but the buffer, so a loop over `send` runs at the speed of its
own thread; the client's thread does the sending.
"""

import os
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakSet

from bottomless.client.accumulator import RECORD_OVERHEAD
from bottomless.client.delivery import Bundle, Deliveries, Delivery, Span, Spans
from bottomless.client.loop_thread import LoopThread
from bottomless.client.outbox import Identity
from bottomless.client.producer import AsyncProducer, no_room
from bottomless.client.rows import (
    Row,
    Text,
    Values,
    json_row_of,
    row_of,
    rows_of,
)
from bottomless.model.limits import RECORD_VALUE_SIZE_MAX

_OPEN: Final = WeakSet["Producer"]()


class Producer:
    """Appends to one stream; made by `Client.producer`, used with `with`.

    Any number of threads may send; records are stored in the order of the calls. Leaving the block
    normally flushes. Leaving it by an exception sends nothing more: what was in flight may be
    stored or not, the rest is not.
    """

    def __init__(self, inner: AsyncProducer, thread: LoopThread, client: object) -> None:
        self._inner = inner
        self._outbox = inner.outbox
        self._buffer = inner.outbox.buffer
        self._add_plain = self._buffer.add_plain
        self._block_seconds = inner.block_seconds
        self._thread = thread
        self._client = client
        """Kept: a client that nobody has any more is closed."""
        _OPEN.add(self)

    @property
    def identity(self) -> Identity:
        """The identity of this producer.

        Its `next_sequence` counts the records that the stream had of it before.

        Raises:
            RuntimeError: the producer has not been started.
        """
        return self._inner.identity

    def send(
        self,
        value: Text,
        *,
        key: Text | None = None,
        headers: Mapping[str, Text] | None = None,
        event_time: int | datetime | None = None,
        filter_value: str | None = None,
    ) -> Delivery:
        """Hand over a record; blocks while there is no room. Returns its delivery.

        `event_time` is a datetime, or ms since 1970.

        Raises:
            InvalidRequest: no server would accept it.
            Overloaded: there was no room in time; it was not handed over.
            StoreError: the producer has ended, for this reason.
        """
        alone = key is None and headers is None and event_time is None and filter_value is None
        if alone and type(value) is bytes and len(value) <= RECORD_VALUE_SIZE_MAX:
            # Most records; without a row in between they take half of the time.
            place = self._add_plain(value)
            if place is not None:
                return Delivery(*place)
        return Delivery(*self._put(row_of(value, key, headers, event_time, filter_value)))

    def send_json(
        self,
        value: Any,
        *,
        key: Text | None = None,
        headers: Mapping[str, Text] | None = None,
        event_time: int | datetime | None = None,
        filter_value: str | None = None,
    ) -> Delivery:
        """Hand over a record whose value is the JSON text of `value`; otherwise like `send`."""
        return Delivery(*self._put(json_row_of(value, key, headers, event_time, filter_value)))

    def send_many(self, values: Iterable[Text]) -> Deliveries:
        """Hand over many values, in their order."""
        spans = Spans()
        for some in rows_of(values):
            if isinstance(some, Row):
                spans.add(*self._put(some))
            else:
                self._put_values(some, spans)
        return Deliveries(spans.all())

    def send_table(self, table: Any) -> Deliveries:
        """Hand over the rows of a table of any size: Arrow's, or one that Arrow can read.

        Its columns are those of a record: `value`, and optionally `key`, `headers`, `event_time`,
        `filter_value` and `content`.
        """
        spans = []
        for body in self._outbox.bodies_of(table):
            bundle = self._buffer.add_encoded(body)
            deadline = self._deadline()
            while bundle is None:
                self._wait_for_room(len(body.body), deadline)
                bundle = self._buffer.add_encoded(body)
            spans.append(Span(bundle, 0, body.record_count))
        return Deliveries(spans)

    send_arrow = send_table

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Send everything now, and wait until all that was handed over is stored.

        Raises:
            StoreError: something is not stored, or that is not known; the producer has ended.
            TimeoutError: some of it is still on its way.
        """
        self._thread.run(self._inner.flush(), timeout_seconds)

    def close(self) -> None:
        """Flush, and end."""
        self._thread.run(self._inner.close())

    def abort(self) -> None:
        """End at once: nothing more is sent, and what is in flight is cut off."""
        self._thread.run(self._inner.abort())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _put(self, row: Row) -> tuple[Bundle, int]:
        place = self._buffer.add(*row)
        if place is None:
            deadline = self._deadline()
            while place is None:
                self._wait_for_room(row.size + RECORD_OVERHEAD, deadline)
                place = self._buffer.add(*row)
        return place

    def _put_values(self, some: Values, spans: Spans) -> None:
        deadline = self._deadline()
        while some.values:
            place = self._buffer.add_values(*some)
            if place is None:
                self._wait_for_room(some.ends[0] + RECORD_OVERHEAD, deadline)
                continue
            spans.add(*place)
            some = some.without_first(place[2])
            deadline = self._deadline()

    def _deadline(self) -> float:
        return time.monotonic() + self._block_seconds

    def _wait_for_room(self, size: int, deadline: float) -> None:
        # Its own thread is what makes room; waiting there would never end.
        self._thread.require()
        # Of the whole wait: what becomes free meanwhile may be taken by others.
        if not self._buffer.wait_for_room(size, deadline - time.monotonic()):
            raise no_room()


def _cut_off() -> None:
    for producer in list(_OPEN):
        producer._buffer.cut_off()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    # The child has the buffers, but nobody who sends what is put in; asking in each `send`
    # which process this is would be the slowest part of it.
    os.register_at_fork(after_in_child=_cut_off)
