"""What the manifest service asks of the tail of a leaderless stream. Nothing is written here."""

from bottomless.errors import Corrupt
from bottomless.model.stream import StreamRecord
from bottomless_server.leaderless.tail import Tail, TailState
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.registry.stream_description import ShownTail
from bottomless_server.stores.tail_keys import entries_from, load_tails


async def tail_of(context: Context, record: StreamRecord) -> Tail | None:
    """The tail of a stream; None where it is gone, or is being deleted.

    Raises:
        Corrupt: it cannot be read.
        Unavailable: `coordination-regressed`, or not now.
    """
    stream_id = record.stream_id
    loaded = await load_tails(context.coordination, [stream_id], record.generation)
    tail = loaded[stream_id]
    if isinstance(tail, Corrupt):
        raise tail
    return None if tail is None or tail.state is TailState.CLOSED else tail


async def shown_tail(context: Context, record: StreamRecord) -> ShownTail | None:
    """The tail of a stream with its oldest entry, as people are told of it.

    Raises:
        Corrupt, Unavailable: as `tail_of`.
    """
    tail = await tail_of(context, record)
    if tail is None:
        return None
    # A prune may come in between: then it is the oldest of those that are left.
    found = await entries_from(context.coordination, record.stream_id, tail.pruned_next, 1)
    return ShownTail(tail, found[0] if found else None)
