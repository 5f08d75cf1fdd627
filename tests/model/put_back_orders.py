"""Every order of a few events around an older copy of coordination that is put back, with whole writers.

The search over leaderless streams (leaderless_search.py) loses coordination and rebuilds it; an older copy
is outside of it. Here two nodes write as they do in the product, each a process with all its tasks, on a
clock that jumps. At some moment coordination holds again what it held before, as after a restart of Valkey
that had not synced yet. A world has so few events that each order of them is tried, to the end.

What must hold is what docs/leaderless.md promises, and decision 107:

1. What readers saw before the copy came back stays at its offset, with its time; whether its writer was
   told of it or not.
2. No offset that was acknowledged is given to another record.
3. Where the copy lacks nothing that was acknowledged, every append gets its answer.
"""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, Final, NamedTuple

from support.wire import Mishap, Passage
from unit.ingest.leaderless.harness import BOUNDS, WriterProcess, a_house, until
from unit.ingest.leaderless.making import an_append
from unit.ingest.leaderless.test_staged_writer import committed

from bottomless.errors import StoreError
from bottomless_server.ingest.producers.producers import Appended
from model.leaderless import Violation

STREAM_COUNT: Final = 2
_NO_REPLY: Final = Passage(Mishap.LOSE_REPLY, silence_seconds=1.0)
_AWAY: Final = Passage(Mishap.LOSE_REQUEST, silence_seconds=0.1)
_SLOW: Final = Passage(there_seconds=20.0)
_REPEATED_SECONDS: Final = 15.0
_MOMENT: Final = BOUNDS.note_ms / 1000 + BOUNDS.check_seconds


class Event(NamedTuple):
    """What is done after the copy was put back."""

    node: int
    """Who appends; -1: nobody, and a moment passes."""
    stream: int = 0

    def __str__(self) -> str:
        if self.node < 0:
            return "a moment passes"
        return f"node {self.node} appends to stream {self.stream}"


PAUSE: Final = Event(-1)
EVENTS: Final = (*(Event(node, stream) for node in range(2) for stream in range(2)), PAUSE)


class Order(NamedTuple):
    """One order of events."""

    before: int | None
    """Who had appended to stream 0 before the copy was made; None: nobody."""
    lost: tuple[int, ...]
    """The streams of the commit of node 0 whose reply is lost with the store that had it."""
    staged: bool
    """Whether that commit is one of what was staged, by the other instance of its node."""
    acknowledged: bool
    """Whether node 1 is acknowledged an append to stream 1 that the copy lacks, and whose note is late."""
    other: int | None
    """The stream of an append of node 1 that is under way when the copy comes back."""
    seconds: float
    """How long coordination is away before it comes back."""
    events: tuple[Event, ...]

    def __str__(self) -> str:
        after = ", ".join(map(str, self.events))
        return (
            f"before {self.before}, lost {self.lost}{' staged' * self.staged}, acknowledged {self.acknowledged},"
            f" under way {self.other}, {self.seconds:.0f} s, then {after}"
        )


def orders(event_count: int) -> Iterator[Order]:
    """All orders with so many events after the copy was put back."""
    choices: tuple[Any, ...] = (
        (None, 0, 1),
        (((0,), False), ((0, 1), False), ((0,), True), ((), False)),
        (False, True),
        (None, 0, 1),
        (1.0, BOUNDS.commit_seconds + 3),
        product(EVENTS, repeat=event_count),
    )
    for before, (lost, staged), acknowledged, other, seconds, events in product(*choices):
        if lost or acknowledged:
            yield Order(before, lost, staged, acknowledged, other, seconds, events)


class World:
    """One order, from its begin to its end."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._stores, first = a_house(STREAM_COUNT)
        second = WriterProcess(self._stores, "ingest-1").start()
        until(self._stores, lambda: second.writer.run is not None)
        self._nodes = (first, second)
        self._waiting: list[asyncio.Future[Appended | StoreError]] = []
        self._numbers = 0

    def run(self) -> None:
        """Let everything happen, and look at the end of it.

        Raises:
            Violation
        """
        stores, order = self._stores, self._order
        if order.before is not None:
            self._acknowledged(order.before, 0)
        if order.staged:
            # Its instance is in the copy, as that of appends is.
            assert isinstance(stores.do(self._staged(0, 1, self._value())), Appended)
        copy = stores.coordination.copy()
        answered: list[tuple[int, int, Any]] = []
        if order.acknowledged:
            stores.trouble.next["drive.put"] = [Passage(), _SLOW]
            value = self._acknowledged(1, 1)
            until(stores, lambda: not stores.trouble.next["drive.put"])
            answered += [(1, offset, one) for offset, one in stores.records(1) if one == value]
        self._lose_a_reply()
        stores.trouble.always["coordination.watch"] = _AWAY
        if order.other is not None:
            self._append(1, order.other)
        stores.do(asyncio.sleep(order.seconds))
        seen = [self._shown(stream) for stream in range(STREAM_COUNT)]
        stores.trouble.always.clear()
        stores.coordination.put_back(copy)
        for event in order.events:
            if event is PAUSE:
                stores.do(asyncio.sleep(_MOMENT))
            else:
                self._append(*event)
        said = self._nodes[0].told(*self._waiting)
        # Whoever has something to repeat does so by itself, once it has compared the store.
        stores.do(asyncio.sleep(_REPEATED_SECONDS))
        self._check(seen, answered, said)

    def _acknowledged(self, node: int, stream: int) -> bytes:
        value = self._value()
        said = self._nodes[node].append(stream, an_append(value))
        assert isinstance(said, Appended)
        return value

    def _lose_a_reply(self) -> None:
        stores, streams = self._stores, self._order.lost
        if not streams:
            return
        stores.trouble.next["coordination.exec"] = [_NO_REPLY]
        if self._order.staged:
            value = self._value()
            work = self._nodes[0].process.spawn(self._staged(1, 0, value))
            self._waiting.append(asyncio.ensure_future(work, loop=stores.loop))
            values = {0: value}
        else:
            values = {stream: self._append(0, stream) for stream in streams}
        until(
            stores,
            lambda: all(value in stores.values(stream) for stream, value in values.items()),
        )

    def _append(self, node: int, stream: int) -> bytes:
        value = self._value()
        self._waiting.append(self._nodes[node].put(stream, an_append(value)))
        return value

    async def _staged(self, number: int, stream: int, value: bytes) -> Appended | StoreError:
        return await committed(self._nodes[0], number, value, stream=stream)

    def _value(self) -> bytes:
        self._numbers += 1
        return b"%d" % self._numbers

    def _shown(self, stream: int) -> tuple[list[tuple[int, Any]], list[int]]:
        """Records at their offsets, and the times of their commits, as readers are shown them."""
        times = [entry.timestamp for entry in self._stores.entries(stream)]
        return self._stores.records(stream), times

    def _check(
        self,
        seen: list[tuple[list[tuple[int, Any]], list[int]]],
        answered: list[tuple[int, int, Any]],
        said: list[Appended | StoreError],
    ) -> None:
        for stream, offset, value in answered:
            there = dict(self._stores.records(stream))
            if there.get(offset, value) != value:
                raise Violation("an offset that was acknowledged is given to another record")
        if answered:
            # The copy is found out, and an operator rebuilds from the bucket, which has all of it.
            return
        failed = [one for one in said[self._early_count() :] if not isinstance(one, Appended)]
        if failed:
            raise Violation(f"an append has no place, though the copy lacks nothing: {failed[0]}")
        for stream, (records, times) in enumerate(seen):
            now, times_now = self._shown(stream)
            if now[: len(records)] != records or times_now[: len(times)] != times:
                raise Violation("what readers saw is at another offset, or of another time")

    def _early_count(self) -> int:
        """So many of the first appends may be told that it is not now, or that nobody knows: they were
        under way while coordination was away."""
        return len(self._order.lost) + (self._order.other is not None)

    def close(self) -> None:
        self._stores.close()


class Found(NamedTuple):
    """What came of a search."""

    orders: int
    violation: Violation | None = None
    order: Order | None = None


def search(wanted: Iterable[Order]) -> Found:
    """Try orders one after the other, to the first that breaks what must hold."""
    count = 0
    for order in wanted:
        world = World(order)
        count += 1
        try:
            world.run()
        except Violation as error:
            return Found(count, error, order)
        finally:
            world.close()
    return Found(count)
