"""Find the streams that need WAL objects which cannot say it: a directory is damaged, or an object is
gone.

Every tail of the shards is looked at. Below what is settled no stream comes to need an object any more,
so whoever does not need it now never will. Nothing is written.
"""

from collections.abc import Collection
from typing import Final

from bottomless.errors import Corrupt
from bottomless.model.names import StreamId, parse_stream_id
from bottomless_server.coordination.base import Coordination
from bottomless_server.leaderless.tail import Tail, shard_of
from bottomless_server.stores.releases import waiting_entries
from bottomless_server.stores.streams import STREAMS_KEY
from bottomless_server.stores.tail_keys import load_tails
from bottomless_server.uploader.compaction.core.runs import place_of
from bottomless_server.uploader.compaction.core.waiting import Place

_PAGE_COUNT: Final = 1_000


async def streams_needing(
    coordination: Coordination, generation: int, places: Collection[Place], shards: Collection[int]
) -> dict[Place, list[StreamId]]:
    """The streams of these shards that have an entry in each of these objects. One whose tail cannot
    be read may need every object.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
    """
    found: dict[Place, list[StreamId]] = {place: [] for place in places}
    after = b""
    while page := await coordination.members(STREAMS_KEY, after, _PAGE_COUNT):
        after = page[-1]
        stream_ids = [parse_stream_id(member.decode("ascii")) for member in page]
        of_shards = [one for one in stream_ids if shard_of(one) in shards]
        for stream_id, tail in (await load_tails(coordination, of_shards, generation)).items():
            needed = await _needed_by(coordination, stream_id, tail, found)
            for place in found.keys() & needed:
                found[place].append(stream_id)
    return found


async def _needed_by(
    coordination: Coordination,
    stream_id: StreamId,
    tail: Tail | Corrupt | None,
    places: Collection[Place],
) -> Collection[Place]:
    if isinstance(tail, Corrupt):
        return places
    if tail is None or not tail.entry_count:
        return ()
    try:
        return {place_of(entry) for entry in await waiting_entries(coordination, stream_id)}
    except Corrupt:
        return places
