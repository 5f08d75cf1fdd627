"""Tail records as coordination shows them now, unless it has gone back.

A store that was emptied, or an older copy that was put back, answers like any other. So nothing is
believed that is of another generation than the bucket's, or below what this process had seen before
it asked: not only that stream, but all that came with the same answer.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cachetools import LRUCache, TTLCache

from bottomless.drives.base import Drive
from bottomless.errors import Code, Corrupt, Unavailable
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.leaderless.tail import UNSEEN, SeenTail, Tail
from bottomless_server.leaderless.tail_changes import is_of_before, seen_of
from bottomless_server.leaderless.tail_format import decode_tail
from bottomless_server.reader.patience import patiently
from bottomless_server.runtime.base.single_flight import SingleFlight
from bottomless_server.stores.generation import stored_generation
from bottomless_server.stores.tail_keys import load_tail_values
from bottomless_server.stores.wal import readable

SEEN_COUNT_MAX: Final = 100_000
"""Streams of which is remembered how far they were, some hundred bytes each."""
GENERATION_SECONDS: Final = 1.0
"""How long what the bucket showed is not asked for again, while coordination shows something else."""


class Found(NamedTuple):
    """The record of a stream's tail, and the bytes that say so."""

    value: bytes | None
    tail: Tail | Corrupt | None
    """None where there is none; the error of one that cannot be read."""


class TailRecords:
    def __init__(self, coordination: Coordination, drive: Drive) -> None:
        self._coordination = coordination
        self._drive = drive
        self._seen: LRUCache[StreamId, SeenTail] = LRUCache(SEEN_COUNT_MAX)
        self._generation: int | None = None
        self._shown: TTLCache[None, int] = TTLCache(1, GENERATION_SECONDS)
        self._asking: SingleFlight[None, int] = SingleFlight(linger_seconds=0)

    async def load(
        self, stream_ids: Sequence[StreamId], known: Mapping[StreamId, Found] | None = None
    ) -> dict[StreamId, Found]:
        """The tails of streams as they are at one moment; one whose bytes are `known` is not decoded
        again.

        Raises:
            Unavailable: `coordination-regressed`, or not now.
        """
        known = known or {}
        # Before it asks: answers overtake each other.
        before = {stream_id: self.seen(stream_id) for stream_id in stream_ids}
        generation, values = await self._values(stream_ids)
        found: dict[StreamId, Found] = {}
        for stream_id, value in values.items():
            last = known.get(stream_id)
            if last is None or last.value != value:
                tail = None if value is None else readable(decode_tail, value)
                last = Found(value, tail)
            if isinstance(last.tail, Tail):
                if is_of_before(last.tail, generation, before[stream_id]):
                    raise coordination_lost()
                self._seen[stream_id] = seen_of(last.tail, self._seen.get(stream_id, UNSEEN))
            found[stream_id] = last
        return found

    @guard("the highest tail that a reader has seen before it asked")
    def seen(self, stream_id: StreamId) -> SeenTail:
        """How far this process has seen a tail until now."""
        return self._seen.get(stream_id, UNSEEN)

    async def _values(
        self, stream_ids: Sequence[StreamId]
    ) -> tuple[int, dict[StreamId, bytes | None]]:
        """The generation, and the records of that generation."""
        generation = self._generation
        if generation is not None:
            try:
                return generation, await load_tail_values(
                    self._coordination, stream_ids, generation
                )
            except Unavailable as error:
                if error.code is not Code.COORDINATION_REGRESSED:
                    raise
        # It is the bucket that says which generation counts: a rebuild raises it there first.
        generation = await self._stored()
        values = await load_tail_values(self._coordination, stream_ids, generation)
        self._generation = max(generation, self._generation or 0)
        return generation, values

    async def _stored(self) -> int:
        shown = self._shown.get(None)
        return await self._asking.join(None, self._ask) if shown is None else shown

    async def _ask(self) -> int:
        generation = await patiently(lambda: stored_generation(self._drive))
        if generation is None:
            raise coordination_lost()
        self._shown[None] = generation
        return generation
