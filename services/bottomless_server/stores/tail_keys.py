"""Where coordination keeps the tails of leaderless streams, and how they are read.

bottomless:tail:{stream_id}                      the tail record
bottomless:tail-index:{stream_id}                index of its entries
bottomless:tail-producer:{stream_id}:{producer}  what is known of a producer
bottomless:tail-key:{stream_id}:{hash}           what is known of an idempotency key
bottomless:tail-known:{stream_id}                index of both
bottomless:tail-silent                           the same of all streams, by when they may be forgotten
"""

from collections.abc import Sequence
from typing import Final

from bottomless.errors import Corrupt, InvalidRequest
from bottomless.model.names import StreamId, parse_stream_id
from bottomless_server.coordination.base import Coordination, Due, Values
from bottomless_server.leaderless.decided import KnownName, parse_known_name
from bottomless_server.leaderless.tail import Tail, TailEntry
from bottomless_server.leaderless.tail_format import (
    Known,
    after_offset,
    decode_entry,
    decode_known,
    decode_tail,
)
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.wal import readable, require_generation

SILENT_KEY: Final = "bottomless:tail-silent"
_PAGE_COUNT: Final = 1_000
_STREAM_ID_SIZE: Final = 36


def tail_key(stream_id: StreamId) -> str:
    return f"bottomless:tail:{stream_id}"


def tail_index_key(stream_id: StreamId) -> str:
    return f"bottomless:tail-index:{stream_id}"


def known_index_key(stream_id: StreamId) -> str:
    return f"bottomless:tail-known:{stream_id}"


def known_key(stream_id: StreamId, name: KnownName) -> str:
    """The key of what is known of a name."""
    kind = "producer" if name.is_producer else "key"
    return f"bottomless:tail-{kind}:{stream_id}:{name.name}"


def silent(stream_id: StreamId, name: KnownName, due_at: int) -> Due:
    """The place of a name in the queue of those that may be forgotten, at `due_at` (ms since 1970)."""
    return Due(SILENT_KEY, stream_id.encode("ascii") + name.member, due_at)


def parse_silent(member: bytes) -> tuple[StreamId, KnownName]:
    """Read stream and name from a member of that queue.

    Raises:
        Corrupt: no writer can have written it.
    """
    try:
        stream_id = parse_stream_id(member[:_STREAM_ID_SIZE].decode("ascii"))
    except (UnicodeDecodeError, InvalidRequest) as error:
        raise Corrupt("a member of the queue of silent names has no stream") from error
    return stream_id, parse_known_name(member[_STREAM_ID_SIZE:])


def tail_in(values: Values, stream_id: StreamId) -> Tail | None:
    """The tail record among watched values; None where there is none.

    Raises:
        Corrupt: it is damaged.
    """
    value = values[tail_key(stream_id)]
    return None if value is None else decode_tail(value)


def known_in(values: Values, stream_id: StreamId, name: KnownName) -> Known | None:
    """What is known of a name among watched values; None where nothing is.

    Raises:
        Corrupt: it is damaged.
    """
    value = values[known_key(stream_id, name)]
    return None if value is None else decode_known(value)


async def load_tails(
    coordination: Coordination, stream_ids: Sequence[StreamId], generation: int
) -> dict[StreamId, Tail | Corrupt | None]:
    """Tail records as they are at one moment, of that generation; None of a stream without one.

    Of one that cannot be read (it is damaged, or a later release wrote it) the error is told, and
    the question goes on for the others.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
    """
    found = await load_tail_values(coordination, stream_ids, generation)
    return {
        stream_id: None if value is None else readable(decode_tail, value)
        for stream_id, value in found.items()
    }


async def load_tail_values(
    coordination: Coordination, stream_ids: Sequence[StreamId], generation: int
) -> dict[StreamId, bytes | None]:
    """The bytes of tail records at one moment, of that generation: for who asks again and again, and
    decodes what has changed.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
    """
    held, *values = await coordination.get_many([GENERATION_KEY, *map(tail_key, stream_ids)])
    require_generation({GENERATION_KEY: held}, generation)
    return dict(zip(stream_ids, values, strict=True))


async def all_known(coordination: Coordination, stream_id: StreamId) -> list[Known]:
    """What is known of every producer and key of a stream; one that is forgotten meanwhile is left out.

    Raises:
        Corrupt: one of them is damaged.
        CoordinationUnavailable
    """
    found: list[Known] = []
    after = b""
    while page := await coordination.members(known_index_key(stream_id), after, _PAGE_COUNT):
        keys = [known_key(stream_id, parse_known_name(member)) for member in page]
        values = await coordination.get_many(keys)
        found += [decode_known(value) for value in values if value is not None]
        after = page[-1]
    return found


async def entries_from(
    coordination: Coordination, stream_id: StreamId, offset: int, limit: int = _PAGE_COUNT
) -> list[TailEntry]:
    """Entries in the order of their offsets; the first is the one that holds `offset`, if any does.

    Raises:
        Corrupt: one of them is damaged.
    """
    found = await coordination.members(tail_index_key(stream_id), after_offset(offset), limit)
    return [decode_entry(member) for member in found]
