"""Changes of leaderless streams that are no appends: created, configured, closed, pruned.

Each is one transaction that changes the stream's record and its tail together, or, as a prune does,
looks at the one and changes the other. So an append, which looks at the tail alone, meets the stream
as it is: fenced, closed, or of another configuration. Every EXEC watches the generation.

In S3 nothing changes here: registry objects are put by the manifest, after the EXEC.
"""

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from bottomless.errors import Corrupt
from bottomless.formats.stream_record import LEADERLESS, SERVED, decode_record, encode_record
from bottomless.guards import guard
from bottomless.model.names import FullName, StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Coordination, Member, Room, Values
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.leaderless.decided import parse_known_name
from bottomless_server.leaderless.tail import Tail, TailEntry, TailState
from bottomless_server.leaderless.tail_changes import Pruned, closed, configured, tail_of
from bottomless_server.leaderless.tail_changes import prune as prune_entries
from bottomless_server.leaderless.tail_format import decode_entry, decode_tail, encode_tail
from bottomless_server.stores.streams import GENERATION_KEY, Streams, stream_key
from bottomless_server.stores.tail_keys import (
    known_index_key,
    known_key,
    tail_in,
    tail_index_key,
    tail_key,
)
from bottomless_server.stores.wal import readable, require_generation

log = structlog.get_logger(__name__)

PRUNE_COUNT_MAX: Final = 1_000
"""Entries that one EXEC takes out."""


async def create(streams: Streams, record: StreamRecord, room: Room | None = None) -> None:
    """Enter a new leaderless stream, with an empty tail that is as its record says, or none of it.

    Raises:
        IndexFull, Exists, Unavailable: as of every stream.
    """
    assert record.config.leaderless
    made = Changes({tail_key(record.stream_id): encode_tail(tail_of(record, 0))})
    # An id is never given twice, so nothing is there under it.
    await streams.create(record, room, made)


async def configure(
    coordination: Coordination,
    stream_id: StreamId,
    generation: int,
    change: Callable[[StreamRecord], StreamRecord],
) -> StreamRecord:
    """Change the configuration of a stream, or fence it: from then on no append commits.

    `change` sees the record as it is and may be asked again; it raises to leave it. In Redis after
    a crash: both records as they were, or both changed; the registry object comes after that.

    Raises:
        NotFound: there is no such stream, or it is being deleted.
        Unavailable: `coordination-regressed`, or not now.
    """
    key = stream_key(stream_id)

    def decide(values: Values) -> tuple[Changes, StreamRecord]:
        require_generation(values, generation)
        tail, record = tail_in(values, stream_id), _record(values, stream_id)
        if tail is None or record is None or tail.state is TailState.CLOSED:
            raise stream_not_found()
        require_own(tail, record, generation)
        after = change(record)
        config = after.config
        follows = configured(tail, fenced=config.fenced, max_age_ms=config.fragment.max_age_ms)
        written = {key: encode_record(after), tail_key(stream_id): encode_tail(follows)}
        return Changes(written), after

    return await coordination.transact([GENERATION_KEY, tail_key(stream_id), key], decide)


@guard("the generation of tail and record in each change of both")
def require_own(tail: Tail, record: StreamRecord, generation: int) -> None:
    """Refuse what is of before the last rebuild: a store that went back, and was not noticed yet.

    Raises:
        Unavailable: `coordination-regressed`.
    """
    if tail.generation != generation or record.generation < generation:
        raise coordination_lost()


async def close(
    streams: Streams,
    stream_id: StreamId,
    name: FullName,
    generation: int,
    decide: Callable[[StreamRecord], StreamRecord],
    also: Changes,
) -> StreamRecord:
    """Write a stream's tombstone, free its name and close its tail, with `also`, all in one EXEC.

    In Redis after a crash: nothing of it, or all. A commit that is under way finds the tail closed;
    one that was first is in the tail, and goes with it (`clear_page`). A tail that cannot be read
    goes at once, so a commit finds none.

    Raises:
        NotFound: there is no such stream.
        Unavailable: `coordination-regressed`, or not now.
    """

    def end_tail(values: Values) -> Changes | None:
        require_generation(values, generation)
        return closing(values, stream_id)

    watched = (GENERATION_KEY, tail_key(stream_id))
    return await streams.bury(stream_id, name, decide, also, watched=watched, require=end_tail)


def closing(values: Values, stream_id: StreamId) -> Changes | None:
    """What closes a tail that is among the watched values; None where there is none.

    One that cannot be read goes at once, so a commit finds none.
    """
    value = values[tail_key(stream_id)]
    tail = None if value is None else readable(decode_tail, value)
    if isinstance(tail, Corrupt):
        log.error("a tail that cannot be read is closed", stream_id=stream_id, error=str(tail))
        return Changes({tail_key(stream_id): None})
    return None if tail is None else Changes({tail_key(stream_id): encode_tail(closed(tail))})


async def clear_page(
    coordination: Coordination, stream_id: StreamId, generation: int, limit: int = PRUNE_COUNT_MAX
) -> bool:
    """Take out a page of what a closed tail still has; returns whether there is more.

    The record goes with the last page, so it says that the stream is closed for as long as anything
    of it is there. In Redis after a crash: a page is gone or not; the same again is right. What
    stands in the queue of silent names is taken out when it is due.

    Raises:
        Corrupt: the tail cannot be read, and the stream's record does not say that it is deleted.
        Unavailable: `coordination-regressed`, or not now.
    """
    gone, more = await contents_page(coordination, stream_id, limit)

    def change(found: Values) -> tuple[Changes, None]:
        require_generation(found, generation)
        assert _is_closed(found, stream_id), "what is in use is never cleared"
        return gone, None

    await coordination.transact(
        [GENERATION_KEY, tail_key(stream_id), stream_key(stream_id)], change
    )
    return more


async def contents_page(
    coordination: Coordination, stream_id: StreamId, limit: int
) -> tuple[Changes, bool]:
    """What takes a page of a tail away, its record with the last one; and whether there is more."""
    index, names = tail_index_key(stream_id), known_index_key(stream_id)
    entries = await coordination.members(index, b"", limit)
    known = await coordination.members(names, b"", limit)
    members = [Member(index, entry, False) for entry in entries]
    members += [Member(names, name, False) for name in known]
    more = max(len(entries), len(known)) == limit
    # Of a member that is no name nothing else is there.
    parsed = [readable(parse_known_name, name) for name in known]
    values: dict[str, bytes | None] = {
        known_key(stream_id, name): None for name in parsed if not isinstance(name, Corrupt)
    }
    if not more:
        values[tail_key(stream_id)] = None
    return Changes(values, members=members), more


def _is_closed(values: Values, stream_id: StreamId) -> bool:
    """Whether nothing is committed to a stream any more; of a tail that cannot be read the record
    says it."""
    try:
        tail = tail_in(values, stream_id)
    except Corrupt:
        record = _record(values, stream_id)
        if record is None or record.state is not StreamState.DELETING:
            raise
        return True
    return tail is None or tail.state is TailState.CLOSED


@guard("the stream record in the EXEC of a prune")
def record_in(values: Values, stream_id: StreamId) -> StreamRecord | None:
    """The stream's record in this very transaction, by which a prune goes."""
    return _record(values, stream_id)


def _record(values: Values, stream_id: StreamId) -> StreamRecord | None:
    value = values[stream_key(stream_id)]
    return None if value is None else decode_record(value, SERVED | {LEADERLESS})


def _is_no_older(tail: Tail, oldest: Sequence[TailEntry]) -> bool:
    """Whether a tail can have come of the one whose oldest entries were read before it: no entry is
    missing between its end of what is pruned and them."""
    left = [entry for entry in oldest if entry.next_offset > tail.pruned_next]
    return not left or left[0].first_offset <= tail.pruned_next


async def prune(
    coordination: Coordination,
    stream_id: StreamId,
    generation: int,
    limit: int = PRUNE_COUNT_MAX,
) -> Pruned | None:
    """Take out entries that fragments have replaced, at most `limit`; None of a stream that is gone.

    In Redis after a crash: the entries and the old `pruned_next`, or neither; readers go by either,
    since what is pruned is published. As long as `limit` entries go, there may be more.

    Raises:
        Corrupt: record, tail or one of the entries cannot be read.
        Unavailable: `coordination-regressed`, or not now.
    """
    page = await coordination.members(tail_index_key(stream_id), b"", limit)
    # Taken out as it was read: of what a later release wrote the bytes may be others.
    oldest = {decode_entry(member): member for member in page}

    def change(values: Values) -> tuple[Changes, Pruned | None]:
        require_generation(values, generation)
        tail, record = tail_in(values, stream_id), record_in(values, stream_id)
        if tail is None or record is None or tail.state is TailState.CLOSED:
            return Changes(), None
        require_own(tail, record, generation)
        if not tail.published_next <= record.published_next <= tail.next_offset:
            raise coordination_lost()
        if record.version < tail.manifest_version or not _is_no_older(tail, list(oldest)):
            raise coordination_lost()
        pruned = prune_entries(tail, list(oldest), record.published_next, record.version)
        if pruned.tail == tail:
            return Changes(), pruned
        index = tail_index_key(stream_id)
        gone = [Member(index, oldest[entry], False) for entry in pruned.gone]
        return Changes({tail_key(stream_id): encode_tail(pruned.tail)}, members=gone), pruned

    keys = [GENERATION_KEY, tail_key(stream_id), stream_key(stream_id)]
    return await coordination.transact(keys, change)
