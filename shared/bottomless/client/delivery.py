"""Delivery: the outcome of a record that was handed to a producer.

Records are stored by the bundle, so a record's delivery is its bundle and its place in it: there is
one future per bundle, however many records wait for it.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, TypeAlias

from bottomless.client.appends import Appended
from bottomless.client.encoding import FRAMES, Compression, EncodedBody
from bottomless.client.super_appends import SuperAppended
from bottomless.model.rows import Rows

Stored: TypeAlias = Appended | SuperAppended
"""Where the records of a bundle are: in a stream, or in the partitions of a super stream."""


class Ack(NamedTuple):
    """The acknowledgement of a stored record: it is durable, and visible to every reader."""

    offset: int | None
    """Offset of the record. None for a repeat whose original the server has forgotten."""
    timestamp: int | None
    """When the server stored it, in ms since 1970; None where the offset is."""
    duplicate: bool
    """Whether an earlier attempt stored it, whose answer was lost."""
    partition: int | None = None
    """The partition of a super stream that has it; None in any other stream."""


class Acks(NamedTuple):
    """The acknowledgement of records that were stored together, at offsets without a gap."""

    first_offset: int | None
    record_count: int
    timestamp: int | None
    duplicate: bool
    partition: int | None = None
    """The partition of a super stream that has them; None in any other stream."""


class Bundle:
    """The records of one append: rows that grow, or a body that is encoded already."""

    __slots__ = (
        "body",
        "encoding",
        "given",
        "media_type",
        "record_count",
        "rows",
        "settled",
        "size",
    )

    def __init__(self, given: EncodedBody | None = None) -> None:
        self.rows = Rows([], [])
        self.body = None if given is None else given.body
        self.media_type = FRAMES if given is None else given.media_type
        self.encoding = None if given is None else given.encoding
        self.record_count = 0 if given is None else given.record_count
        self.size = 0 if given is None else len(given.body)
        """Bytes of its records."""
        self.given = given is not None
        """Whether it was encoded before it was put in."""
        self.settled: Future[Stored] = Future()
        # Running: nobody who waits for it can cancel it.
        self.settled.set_running_or_notify_cancel()

    def encoded(self, compression: Compression | None) -> bytes:
        """Encode the body on the first call, which frees the rows.

        Later calls return the same bytes.
        """
        if self.body is None:
            from bottomless.client.tables import frames_body  # noqa: PLC0415

            self.body = frames_body(self.rows, compression)
            self.rows = Rows([], [])
        return self.body

    def let_go(self) -> None:
        """Free the records: a program that keeps a delivery does not keep what was delivered."""
        self.body, self.rows = None, Rows([], [])


class _Place:
    """A record's place in a bundle."""

    __slots__ = ("_bundle", "_index")

    def __init__(self, bundle: Bundle, index: int) -> None:
        self._bundle = bundle
        self._index = index

    def done(self) -> bool:
        """Whether it is known what became of it."""
        return self._bundle.settled.done()

    def _ack(self) -> Ack:
        (acks,) = _acks_of(Span(self._bundle, self._index, 1))
        return Ack(acks.first_offset, acks.timestamp, acks.duplicate, acks.partition)


class Delivery(_Place):
    """The delivery of one record; any thread may wait for it."""

    __slots__ = ()

    def result(self, timeout_seconds: float | None = None) -> Ack:
        """Wait until the record is stored.

        Raises:
            StoreError: it is not stored, or that is not known: the error's `outcome` says which.
            TimeoutError: it is still on its way.
        """
        self._bundle.settled.result(timeout_seconds)
        return self._ack()

    def exception(self, timeout_seconds: float | None = None) -> BaseException | None:
        """Wait, and return the reason why the record is not stored; None if it is stored.

        Raises:
            TimeoutError: it is still on its way.
        """
        return self._bundle.settled.exception(timeout_seconds)

    def add_done_callback(self, call: Callable[["Delivery"], None]) -> None:
        """Have `call` called once the outcome is known.

        On the client's thread, so it must be quick.
        """
        self._bundle.settled.add_done_callback(lambda _: call(self))


class AsyncDelivery(_Place):
    """The delivery of one record; `await` it for the `Ack`.

    Cancelling the wait does not stop the record.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Ack]:
        if not self._bundle.settled.done():
            yield from asyncio.wrap_future(self._bundle.settled).__await__()
        return self._ack()

    def result(self) -> Ack:
        """Return the outcome without waiting.

        Raises:
            asyncio.InvalidStateError: it is not known yet.
            StoreError: the record is not stored, or that is not known.
        """
        if not self.done():
            raise asyncio.InvalidStateError("the record is on its way")
        return self._ack()


class Span(NamedTuple):
    """Records that are neighbours in one bundle."""

    bundle: Bundle
    first: int
    """Place of the first of them in the bundle, from 0."""
    record_count: int


class Spans:
    """Joins records that are neighbours into spans."""

    def __init__(self) -> None:
        self._done: list[Span] = []
        self._bundle: Bundle | None = None
        self._first = 0
        self._next = 0

    def add(self, bundle: Bundle, index: int, record_count: int = 1) -> None:
        """Note `record_count` adjacent records from `index` on, in the order of the calls."""
        if bundle is not self._bundle or index != self._next:
            self._end()
            self._bundle, self._first = bundle, index
        self._next = index + record_count

    def all(self) -> list[Span]:
        """End, and return what was noted as spans, in order."""
        self._end()
        return self._done

    def _end(self) -> None:
        if self._bundle is not None:
            self._done.append(Span(self._bundle, self._first, self._next - self._first))
            self._bundle = None


class _Places:
    """Where many records are that were handed over at once."""

    __slots__ = ("_spans",)

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans

    def done(self) -> bool:
        """Whether it is known of all of them what became of them."""
        return all(span.bundle.settled.done() for span in self._spans)

    def _acks(self) -> list[Acks]:
        return [acks for span in self._spans for acks in _acks_of(span)]


class Deliveries(_Places):
    """The deliveries of many records; any thread may wait for them."""

    __slots__ = ()

    def result(self, timeout_seconds: float | None = None) -> list[Acks]:
        """Wait until all are stored; returns where, in their order; in a super stream, by partitions.

        Raises:
            StoreError: one is not stored, or that is not known. Those before it may be stored.
            TimeoutError: some are still on their way.
        """
        wait({span.bundle.settled for span in self._spans}, timeout_seconds)
        for span in self._spans:
            span.bundle.settled.result(0)
        return self._acks()


class AsyncDeliveries(_Places):
    """The deliveries of many records; `await` it for a list of `Acks`."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, list[Acks]]:
        for span in self._spans:
            if not span.bundle.settled.done():
                yield from asyncio.wrap_future(span.bundle.settled).__await__()
        return self._acks()


def _acks_of(span: Span) -> list[Acks]:
    stored = span.bundle.settled.result()
    if isinstance(stored, SuperAppended):
        return [
            Acks(
                _after(part.first_offset, start),
                end - start,
                part.timestamp,
                part.duplicates > 0,
                part.partition,
            )
            for part, start, end in stored.parts_within(span.first, span.first + span.record_count)
        ]
    first = _after(stored.first_offset, span.first)
    return [Acks(first, span.record_count, stored.timestamp, stored.duplicates > 0)]


def _after(offset: int | None, count: int) -> int | None:
    return None if offset is None else offset + count
