"""What coordination knows of the producers of a leaderless stream, shown and changed by any node.

Nothing of it is in a node: each question reads it, and each change is one transaction on the tail and
on what is known of that one producer. In Redis after a crash: the change, or nothing of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from bottomless.errors import Code, Unavailable
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.core.tracking.known_producers import Producer
from bottomless_server.ingest.leaderless.core.changing import forget, raise_epoch
from bottomless_server.ingest.leaderless.core.remembered import KnownBounds, RememberedNames
from bottomless_server.ingest.leaderless.writing import Writer
from bottomless_server.leaderless.decided import KnownName, NewKnown, parse_known_name
from bottomless_server.leaderless.tail import Tail, TailState
from bottomless_server.leaderless.tail_changes import is_of_before
from bottomless_server.leaderless.tail_format import Known, decode_known, decode_tail
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.tail_commits import change_known
from bottomless_server.stores.tail_keys import known_index_key, known_key, tail_key
from bottomless_server.stores.wal import require_generation

_PAGE_COUNT: Final = 1_000
"""Producers whose values are read at once."""


class KnownProducers:
    """The producers of all leaderless streams, as coordination has them."""

    def __init__(
        self,
        coordination: Coordination,
        writer: Writer,
        bounds: KnownBounds,
        read_clock: Callable[[], int],
    ) -> None:
        self._coordination = coordination
        self._writer = writer
        self._bounds = bounds
        self._read_clock = read_clock

    async def look(
        self, stream_id: StreamId, names: Sequence[KnownName] = ()
    ) -> tuple[Tail, dict[KnownName, Known | None]]:
        """The tail of a stream, and what is known of some names, at one moment.

        Raises:
            NotFound: there is no such stream, or it is being deleted.
            Corrupt: one of these values is damaged.
            Unavailable: `coordination-regressed`, or not now.
        """
        generation, before = self._writer.generation, self._writer.seen.of(stream_id)
        keys = [GENERATION_KEY, tail_key(stream_id), *(known_key(stream_id, one) for one in names)]
        held, value, *known = await self._coordination.get_many(keys)
        with self._doubting():
            require_generation({GENERATION_KEY: held}, generation)
        if value is None:
            raise stream_not_found()
        tail = decode_tail(value)
        with self._doubting():
            if is_of_before(tail, generation, before):
                raise coordination_lost()
        if tail.state is TailState.CLOSED:
            raise stream_not_found()
        self._writer.seen.note(stream_id, tail)
        return tail, {
            name: None if one is None else decode_known(one)
            for name, one in zip(names, known, strict=True)
        }

    async def find(self, stream_id: StreamId, producer_id: str) -> Producer | None:
        """What is known of a producer; None if it is not known.

        Raises:
            StoreError: as `look`.
        """
        name = _producer(producer_id)
        _, known = await self.look(stream_id, [name])
        return self._shown(known).get(producer_id)

    async def listed(
        self, stream_id: StreamId, after: str, count: int
    ) -> list[tuple[str, Producer]]:
        """At most `count` producers in the order of their names, of those that sort after `after`.

        Raises:
            StoreError: as `look`.
        """
        found: list[tuple[str, Producer]] = []
        last = _producer(after).member
        while len(found) < count:
            members = await self._coordination.members(
                known_index_key(stream_id), last, min(count, _PAGE_COUNT)
            )
            names = [parse_known_name(member) for member in members]
            _, known = await self.look(stream_id, names)
            # Between the two questions some may have been forgotten.
            found += self._shown(known).items()
            if len(members) < min(count, _PAGE_COUNT):
                break
            last = members[-1]
        return found[:count]

    async def raise_epoch(self, stream_id: StreamId, producer_id: str) -> None:
        """Lock earlier writers of a producer out; one that is not known is from then on.

        Raises:
            Overloaded: `quota-exceeded`.
            StoreError: with the outcome that is known.
        """
        clock = self._read_clock()
        await self._change(
            stream_id,
            producer_id,
            lambda tail, known: raise_epoch(producer_id, tail, known, clock, self._bounds),
        )

    async def forget(self, stream_id: StreamId, producer_id: str) -> None:
        """Forget a producer.

        Raises:
            NotFound: `producer-not-found`, or there is no such stream.
            StoreError: with the outcome that is known.
        """

        def change(_: Tail, known: Known | None) -> None:
            forget(known)

        await self._change(stream_id, producer_id, change)

    async def _change(
        self,
        stream_id: StreamId,
        producer_id: str,
        decide: Callable[[Tail, Known | None], NewKnown | None],
    ) -> None:
        before = self._writer.seen.of(stream_id)
        generation = self._writer.generation

        def change(tail: Tail, known: Known | None) -> NewKnown | None:
            if is_of_before(tail, generation, before):
                raise coordination_lost()
            return decide(tail, known)

        name = _producer(producer_id)
        with self._doubting():
            await change_known(self._coordination, stream_id, name, generation, change)

    @contextmanager
    def _doubting(self) -> Iterator[None]:
        """Have the writer look whether it still counts, where coordination is found to be another one:
        a writer to which nobody sends anything would never notice."""
        try:
            yield
        except Unavailable as error:
            if error.code is Code.COORDINATION_REGRESSED:
                self._writer.doubt()
            raise

    def _shown(self, known: Mapping[KnownName, Known | None]) -> dict[str, Producer]:
        names = RememberedNames(known, self._bounds)
        producers = {name.name: names.producer(name) for name in known}
        return {name: one for name, one in producers.items() if one is not None}


def _producer(producer_id: str) -> KnownName:
    return KnownName(producer_id, is_producer=True)
