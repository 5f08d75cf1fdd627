"""The first entry of a time: found in an index of thousands without reading all of it.

Entries sort by offset, and their times never go down. A page is looked through from where the entry
may begin; if it is not there, one entry in the middle of the offsets that are left says in which half
it is. So each round halves them, and comes nearer by a page at least.
"""

from typing import Final

from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Coordination
from bottomless_server.leaderless.tail import Tail, TailEntry
from bottomless_server.stores.tail_keys import entries_from

PAGE_COUNT: Final = 256
"""Entries that are looked through at a time."""


async def first_since(
    coordination: Coordination, stream_id: StreamId, tail: Tail, timestamp: int
) -> TailEntry | None:
    """The first entry of `timestamp` or later of a tail that has one.

    None where entries went away meanwhile: then nobody knows any more whether it was one of them.

    Raises:
        Corrupt: an entry cannot be read.
    """
    # Entries that end at or below `low` are too early; one that begins below `high` is late enough.
    low, high = tail.pruned_next, tail.next_offset
    while low < high:
        for entry in await entries_from(coordination, stream_id, low, PAGE_COUNT):
            if entry.first_offset != low:
                return None
            if entry.timestamp >= timestamp:
                return entry
            low = entry.next_offset
        middle = (low + high) // 2
        found = await entries_from(coordination, stream_id, middle, 1)
        if not found or found[0].first_offset > middle:
            return None
        if found[0].timestamp < timestamp:
            low = found[0].next_offset
        else:
            high = found[0].first_offset + 1
    return None
