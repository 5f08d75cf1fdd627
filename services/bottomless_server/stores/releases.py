"""Releases: what holds a WAL object goes when no tail entry can need the object any more.

A release is for one shard of streams: each uploader judges the shards that it has. When the last
member of an object is gone, and those of all earlier objects of its instance, the vacuum may delete it
(`wal.py`). In S3 nothing changes here.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from bottomless.errors import Corrupt
from bottomless.formats.checks import corrupt
from bottomless.formats.stream_record import LEADERLESS, SERVED, decode_record
from bottomless.guards import guard
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamState
from bottomless_server.coordination.base import Changes, Coordination, Member, Values
from bottomless_server.leaderless.instance import decode_instance
from bottomless_server.leaderless.tail import HeldMember, Tail, TailEntry, TailState, shard_of
from bottomless_server.leaderless.tail_changes import waiting
from bottomless_server.leaderless.tail_format import decode_tail
from bottomless_server.stores.streams import GENERATION_KEY, stream_key
from bottomless_server.stores.tail_keys import entries_from, tail_key
from bottomless_server.stores.wal import each_held, held_key, instance_key, require_generation

log = structlog.get_logger(__name__)

_LOOK_COUNT_MAX: Final = 3
"""Looks at a tail, of which entries may be pruned between two questions."""
EXEC_COUNT_MAX: Final = 1_000
"""Members that one EXEC takes away: nobody else is served meanwhile, and a round may leave 100,000."""


class Looked(NamedTuple):
    """What a release found out."""

    settled: int
    needed: set[tuple[int, int]]
    """Each (sequence, shard) of the instance that entries still need."""
    unreadable: dict[StreamId, Corrupt]
    """Streams of which nobody can tell what they need."""


class Released(NamedTuple):
    """What a release has done."""

    gone: list[HeldMember]
    unreadable: dict[StreamId, Corrupt]
    """Streams whose tails cannot be read: all that may be theirs is still held."""
    kept: list[HeldMember]
    """Members of these shards and sequences that hold their objects still."""


@guard("what is settled, read before the index in a release")
async def look(
    coordination: Coordination, instance: Uid, stream_ids: Collection[StreamId]
) -> Looked:
    """Find what is settled, and then which (sequence, shard) of an instance entries still need.

    What is below `settled` gets no entry any more, so an object that none needs afterwards is
    never needed again.
    """
    value = await coordination.get(instance_key(instance))
    looked = Looked(0 if value is None else decode_instance(value).settled, set(), {})
    for stream_id in stream_ids:
        try:
            entries = await waiting_entries(coordination, stream_id)
        except Corrupt as error:
            log.exception("a tail cannot be read", stream_id=stream_id)
            looked.unreadable[stream_id] = error
            continue
        for entry in entries:
            if entry.instance == instance:
                looked.needed.add((entry.sequence, shard_of(stream_id)))
    return looked


async def waiting_entries(coordination: Coordination, stream_id: StreamId) -> list[TailEntry]:
    """The entries of a stream that may still be needed; none of one that is gone.

    Raises:
        Corrupt: its tail cannot be read, or one of them; one of them is lost, and nobody knows what
            it needs; or the stream is there without a tail.
        CoordinationUnavailable
    """
    keys = [tail_key(stream_id), stream_key(stream_id)]
    for _ in range(_LOOK_COUNT_MAX):
        value, record = await coordination.get_many(keys)
        if value is None:
            require_gone(record)
            return []
        tail, found = decode_tail(value), list[TailEntry]()
        if tail.state is TailState.CLOSED:
            # What it still has is taken out in pages.
            return []
        offset = tail.pruned_next
        while page := await entries_from(coordination, stream_id, offset):
            found += page
            offset = page[-1].next_offset
        if is_without_hole(tail, found):
            return waiting(tail, found)
    raise corrupt("tail index", "an entry is lost")


@guard("a hole in the index of a tail")
def is_without_hole(tail: Tail, entries: Sequence[TailEntry]) -> bool:
    """Whether entries that were read after the tail are all that it has. Else some were pruned in
    between; or one is lost, and with it the word of which object its records are in."""
    offset = tail.pruned_next
    for entry in entries:
        if entry.first_offset != offset:
            return False
        offset = entry.next_offset
    return offset >= tail.next_offset


@guard("the stream record where a tail is gone")
def require_gone(record: bytes | None) -> None:
    """Look whether a stream without a tail is gone, or being deleted: both change together, so
    coordination has lost the tail otherwise, and what it needed is needed still.

    Raises:
        Corrupt: it is not, or its record cannot be read.
    """
    if record is None:
        return
    if decode_record(record, SERVED | {LEADERLESS}).state is not StreamState.DELETING:
        raise corrupt("tail record", "a stream is there without it")


async def release(
    coordination: Coordination,
    instance: Uid,
    generation: int,
    streams: Mapping[int, Collection[StreamId]],
    shards: Collection[int],
) -> Released:
    """Take away what holds objects that no entry of these shards needs.

    A stream whose tail cannot be read needs every object that it is in. `streams` has, for each
    sequence, all streams of those shards in the object's directory. In Redis after a crash: the
    first members are gone, or none; what was found stays true, so the others go next time.

    Raises:
        Corrupt: the instance's record cannot be read.
        Unavailable: `coordination-regressed`, or not now.
    """
    wanted = list(dict.fromkeys(one for found in streams.values() for one in found))
    settled, needed, unreadable = await look(coordination, instance, wanted)
    # Nobody can tell what these need, so it is everything.
    needed |= {
        (sequence, shard_of(one))
        for sequence, found in streams.items()
        for one in unreadable.keys() & set(found)
    }
    gone: list[HeldMember] = []
    kept: list[HeldMember] = []
    members: list[Member] = []
    async for held, member in each_held(coordination, instance, min(streams, default=0)):
        if held.sequence > max(streams, default=-1):
            break
        if held.sequence not in streams or held.shard not in shards:
            continue
        if held.sequence >= settled or (held.sequence, held.shard) in needed:
            kept.append(held)
            continue
        gone.append(held)
        # As it was read: of what a later release wrote the bytes may be others.
        members.append(Member(held_key(instance), member, False))
    for start in range(0, len(members), EXEC_COUNT_MAX):
        await _take_away(coordination, generation, members[start : start + EXEC_COUNT_MAX])
    return Released(gone, unreadable, kept)


async def _take_away(
    coordination: Coordination, generation: int, members: Sequence[Member]
) -> None:
    def change(values: Values) -> tuple[Changes, None]:
        require_generation(values, generation)
        return Changes(members=members), None

    await coordination.transact([GENERATION_KEY], change)
