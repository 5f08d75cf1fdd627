"""What stands in the place of a guard of leaderless streams that is taken away."""

from dataclasses import replace
from typing import Any

from support.guards import guarded

from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Coordination, Values
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.instance import decode_instance
from bottomless_server.leaderless.tail_format import decode_held, decode_tail
from bottomless_server.stores.tail_keys import tail_key
from bottomless_server.stores.wal import NOTHING, Deletable, held_key, instance_key


async def held_first(_: Any, coordination: Coordination, instance: Uid, __: int) -> Deletable:
    """What is held is read before what is settled."""
    oldest = await coordination.members(held_key(instance), b"", 1)
    value = await coordination.get(instance_key(instance))
    if value is None:
        return NOTHING
    record = decode_instance(value)
    end = min([record.settled, *(decode_held(member).sequence for member in oldest)])
    return Deletable(range(record.deleted, max(end, record.deleted)), 0)


async def without_those_before(
    _: Any, coordination: Coordination, instance: Uid, generation: int
) -> Deletable:
    """An object goes that nothing holds, though an earlier one of its instance is held."""
    value = await coordination.get(instance_key(instance))
    if value is None:
        return NOTHING
    record = decode_instance(value)
    members = await coordination.members(held_key(instance), b"", 100)
    look_again = guarded("the instance, looked at again after what is held")
    await look_again(coordination, instance, generation, record)
    held = {decode_held(member).sequence for member in members}
    # None has put more than a few.
    free = [one for one in range(record.deleted, min(record.settled, 10)) if one not in held]
    return Deletable(range(free[0], free[0] + 1), 0) if free else NOTHING


async def index_first(coordination: Coordination, instance: Uid, stream_ids: Any) -> Any:
    """A release reads the index before what is settled."""
    look = guarded("what is settled, read before the index in a release")
    first = await look(coordination, instance, stream_ids)
    later = await look(coordination, instance, ())
    return first._replace(settled=later.settled)


def same_number(numbers: AttemptNumbers, **_: bool) -> int:
    """A bump has the number of the commit that it decides about."""
    return numbers.attempt + 1


def record_to_come(values: Values, stream_id: StreamId) -> StreamRecord | None:
    """A prune goes by the record as its manifest meant to write it."""
    record: StreamRecord = guarded("the stream record in the EXEC of a prune")(values, stream_id)
    tail = decode_tail(values[tail_key(stream_id)] or b"")
    return replace(record, published_next=tail.next_offset, version=record.version + 1)


async def believed(*asked: Any) -> Any:
    """What was read before is believed."""
    return asked[-1]
