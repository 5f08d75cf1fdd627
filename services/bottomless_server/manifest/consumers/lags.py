"""Find how much comes after positions: from the manifest, and from whoever has the tail.

One question to the owner is about all positions that are told in one answer. Commits ask nothing of
this: it is for who looks.
"""

from collections.abc import Sequence

from bottomless.model.manifest import Node
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.consumers.core.lag import Ends, Lag, asked_of_tail, lag_of
from bottomless_server.manifest.leaderless.tail_facts import tail_of
from bottomless_server.protocol.places import ASKED_COUNT_MAX, TailPlace
from bottomless_server.stores.tail_keys import entries_from

_LEADERLESS_COUNT_MAX = 100
"""Positions for which the index of a leaderless tail is looked into; of others nobody is told."""


class Lags:
    """The lags of consumers. Holds no state of its own."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def of(
        self,
        record: StreamRecord,
        root: Node,
        committed_next: int | None,
        positions: Sequence[int],
    ) -> list[Lag]:
        """The lag of each position, by where the stream is known to end."""
        asked = {asked_of_tail(one, root, committed_next) for one in positions}
        offsets = sorted(one for one in asked if one is not None)
        places = await self._places(record, offsets) if offsets else {}
        ends = Ends(root, committed_next, places)
        now = self._context.clock()
        return [lag_of(one, ends, now) for one in positions]

    async def _places(self, record: StreamRecord, offsets: Sequence[int]) -> dict[int, TailPlace]:
        if record.config.leaderless:
            return await self._places_of_entries(record, offsets)
        if record.owner_url is None:
            return {}
        seconds = self._context.settings.manifest_owner_ms / 1000
        offsets = offsets[:ASKED_COUNT_MAX]
        found = await self._context.owners.places(
            record.owner_url, record.stream_id, offsets, seconds
        )
        if found is None or len(found) != len(offsets):
            return {}
        pairs = zip(offsets, found, strict=True)
        return {offset: place for offset, place in pairs if place is not None}

    async def _places_of_entries(
        self, record: StreamRecord, offsets: Sequence[int]
    ) -> dict[int, TailPlace]:
        tail = await tail_of(self._context, record)
        if tail is None:
            return {}
        places: dict[int, TailPlace] = {}
        for offset in offsets[:_LEADERLESS_COUNT_MAX]:
            found = await entries_from(self._context.coordination, record.stream_id, offset, 1)
            if found and found[0].first_offset <= offset:
                after = max(0, tail.log_end - found[0].log_end) + found[0].size
                places[offset] = TailPlace(found[0].timestamp, after)
        return places
