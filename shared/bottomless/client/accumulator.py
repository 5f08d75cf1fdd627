"""Accumulator: records that were handed over and not settled yet, in bundles, within a bound.

Any thread puts records in; one task on the client's loop takes bundles out. Everything here happens
under one lock and is short: no I/O, and no waiting except for room.
"""

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from bottomless.client.belonging import another_process
from bottomless.client.delivery import Bundle, Stored
from bottomless.client.encoding import EncodedBody
from bottomless.client.producer_settings import BATCH_BYTES_MAX, Batching
from bottomless.errors import StoreError
from bottomless.model.limits import ARROW_RECORD_COUNT_MAX
from bottomless.model.record import Content

RECORD_OVERHEAD: Final = 64
"""Bytes that Python needs for a record beside its value, roughly."""
RECORD_SIZE_MIN: Final = 16
"""Bytes of a record with an empty value as it is sent, roughly."""
_PLAIN: Final = int(Content.BYTES)
assert BATCH_BYTES_MAX // RECORD_SIZE_MIN < ARROW_RECORD_COUNT_MAX


class Extra(NamedTuple):
    """The parts of a record that few records have; `event_time` is in ms since 1970."""

    key: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None
    event_time: int | None = None
    filter_value: str | None = None


_NOTHING: Final = Extra()


class Accumulator:
    """Collects records in bundles until they are sent, and counts what is held.

    `wake` is called when the task that takes bundles out may have something to do. Once stopped,
    putting in raises the reason.
    """

    def __init__(
        self, batching: Batching, clock: Callable[[], float], wake: Callable[[], None]
    ) -> None:
        self._batch_bytes = batching.batch_bytes
        self._buffer_bytes = batching.buffer_bytes
        self._linger_seconds = batching.linger_seconds
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._open: Bundle | None = None
        self._opened_at = 0.0
        self._sealed: deque[Bundle] = deque()
        self._unsettled: dict[Bundle, None] = {}
        """In the order of their records."""
        self._held = 0
        self._stopped: Callable[[], Exception] | None = None
        self.held_max = 0
        """The most that was ever held."""

    def add(
        self, value: bytes, content: int, size: int, extra: Extra | None = None
    ) -> tuple[Bundle, int] | None:
        """Put in one record.

        Returns its bundle and its place in it, or None if there is no room.

        `size` is its size in bytes as it is sent.
        """
        with self._lock:
            return self._add(value, content, size, extra)

    def _add(
        self, value: bytes, content: int, size: int, extra: Extra | None
    ) -> tuple[Bundle, int] | None:
        held = size + RECORD_OVERHEAD
        if not self._has_room(held):
            return None
        bundle = self._open
        if bundle is None or bundle.size + size > self._batch_bytes:
            bundle = self._next_bundle()
        index = bundle.record_count
        rows = bundle.rows
        rows.values.append(value)
        rows.contents.append(content)
        if extra is not None:
            _add_extra(bundle, index, extra)
        elif rows.keys is not None:
            _add_extra(bundle, index, _NOTHING)
        bundle.record_count = index + 1
        bundle.size += size
        self._held += held
        return bundle, index

    def add_plain(self, value: bytes) -> tuple[Bundle, int] | None:
        """Put in one record that is bytes and nothing else; otherwise like `add`."""
        # The hot loop of every program that sends records one by one: whatever is not usual is
        # left to `add`.
        size = len(value) + RECORD_SIZE_MIN
        with self._lock:
            bundle = self._open
            if bundle is None or self._stopped is not None:
                return self._add(value, _PLAIN, size, None)
            grown = bundle.size + size
            held = self._held + size + RECORD_OVERHEAD
            rows = bundle.rows
            if grown > self._batch_bytes or held > self._buffer_bytes or rows.keys is not None:
                return self._add(value, _PLAIN, size, None)
            index = bundle.record_count
            rows.values.append(value)
            rows.contents.append(_PLAIN)
            bundle.record_count = index + 1
            bundle.size = grown
            self._held = held
            return bundle, index

    def add_values(
        self, values: Sequence[bytes], content: int, ends: Sequence[int]
    ) -> tuple[Bundle, int, int] | None:
        """Put in the first of some values, as many as fit where the next record goes.

        `ends` has, for each value, the bytes of all values up to its end. Returns the bundle, the
        place of the first value in it and how many were put in; None if there is no room for one.
        """
        with self._lock:
            first = ends[0] + RECORD_SIZE_MIN
            if not self._has_room(first + RECORD_OVERHEAD):
                return None
            bundle = self._open
            if bundle is None or bundle.size + first > self._batch_bytes:
                bundle = self._next_bundle()

            def size_of(count: int) -> int:
                return ends[count - 1] + count * RECORD_SIZE_MIN

            def held_of(count: int) -> int:
                return size_of(count) + count * RECORD_OVERHEAD

            counts = range(2, len(values) + 1)
            batch_room = self._batch_bytes - bundle.size
            buffer_room = self._buffer_bytes - self._held
            # The first goes in whatever its size is.
            count = 1 + min(
                bisect_right(counts, batch_room, key=size_of),
                bisect_right(counts, buffer_room, key=held_of),
            )
            index = bundle.record_count
            rows = bundle.rows
            rows.values += values[:count]
            rows.contents += [content] * count
            if rows.keys is not None:
                for number in range(index, index + count):
                    _add_extra(bundle, number, _NOTHING)
            bundle.record_count = index + count
            bundle.size += size_of(count)
            self._held += held_of(count)
            return bundle, index, count

    def add_encoded(self, body: EncodedBody) -> Bundle | None:
        """Put in a bundle whose body is encoded already; None if there is no room."""
        with self._lock:
            if not self._has_room(len(body.body)):
                return None
            self._seal()
            bundle = Bundle(body)
            self._held += bundle.size
            self._unsettled[bundle] = None
            self._sealed.append(bundle)
        self._wake()
        return bundle

    def wait_for_room(self, size: int, timeout_seconds: float) -> bool:
        """Block until there is room for `size` bytes; returns False if there was none in time.

        It also returns True once the accumulator is stopped: adding then raises the reason.
        """
        with self._room:
            return self._room.wait_for(
                lambda: self._stopped is not None or self._has_room(size), timeout_seconds
            )

    def seal(self) -> list[Bundle]:
        """Let nothing wait to fill up; returns all bundles that are not settled, in order."""
        with self._lock:
            self._seal()
            unsettled = list(self._unsettled)
        self._wake()
        return unsettled

    def take(self) -> Bundle | None:
        """Take out the next bundle to send: one that is full, or has waited long enough.

        None if none is.
        """
        with self._lock:
            if not self._sealed and self._open is not None and self._left() <= 0:
                self._seal()
            return self._sealed.popleft() if self._sealed else None

    def due_seconds(self) -> float | None:
        """Tell in how many seconds the open bundle is due to be sent; None if no bundle is open."""
        with self._lock:
            return None if self._open is None else max(0.0, self._left())

    def settle(self, bundle: Bundle, outcome: Stored | StoreError) -> None:
        """Record the outcome of a bundle, and free its room."""
        with self._lock:
            if bundle not in self._unsettled:
                return
            del self._unsettled[bundle]
            self.held_max = max(self.held_max, self._held)
            self._held -= _held_by(bundle)
            bundle.let_go()
            self._room.notify_all()
        # Outside of the lock: callbacks may put the next record in.
        if isinstance(outcome, StoreError):
            bundle.settled.set_exception(outcome)
        else:
            bundle.settled.set_result(outcome)

    def stop(self, why: Callable[[], Exception]) -> list[Bundle]:
        """Accept nothing more, for the reason `why`.

        Returns the bundles that were not taken out.
        """
        with self._lock:
            if self._stopped is None:
                self._stopped = why
            self._seal()
            unsent = list(self._sealed)
            self._sealed.clear()
            self._room.notify_all()
        self._wake()
        return unsent

    def cut_off(self) -> None:
        """In the child of a fork: refuse everything, and wait for no thread of the parent."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._stopped = another_process

    def _has_room(self, held: int) -> bool:
        if self._stopped is not None:
            raise self._stopped()
        # What is larger than the whole buffer must still go through, alone.
        return not self._held or self._held + held <= self._buffer_bytes

    def _next_bundle(self) -> Bundle:
        self._seal()
        self._open = Bundle()
        self._unsettled[self._open] = None
        self._opened_at = self._clock()
        self._wake()
        return self._open

    def _seal(self) -> None:
        if self._open is not None:
            self._sealed.append(self._open)
            self._open = None

    def _left(self) -> float:
        return self._opened_at + self._linger_seconds - self._clock()


def _held_by(bundle: Bundle) -> int:
    """Bytes that a bundle takes of the buffer."""
    return bundle.size + (0 if bundle.given else bundle.record_count * RECORD_OVERHEAD)


def _add_extra(bundle: Bundle, index: int, extra: Extra) -> None:
    """Add to the columns that not every record has; those before had nothing in them."""
    rows = bundle.rows
    if rows.keys is None:
        rows.keys = [None] * index
        rows.headers = [None] * index
        rows.event_times = [None] * index
        rows.filter_values = [None] * index
    columns: list[list[Any] | None] = [
        rows.keys,
        rows.headers,
        rows.event_times,
        rows.filter_values,
    ]
    for column, item in zip(columns, extra, strict=True):
        assert column is not None
        column.append(item)
