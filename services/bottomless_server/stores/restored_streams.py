"""What a rebuild writes into coordination, and what it takes out of it, stream by stream.

A rebuild goes to the next generation, which coordination shows only when all is restored. Each
transaction here is tied to the step on whose behalf it is done (`rebuild_step.py`), and what the
rebuild has restored already, under its own generation, is not discarded: an operation that is
entered anew begins over what the one before it has restored.
"""

import orjson

from bottomless.errors import Corrupt, InvalidRequest
from bottomless.formats.stream_record import decode_record, encode_record
from bottomless.model.names import FullName, StreamId, parse_stream_name, parse_tenant
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Coordination, Member, Values
from bottomless_server.stores.going import going_key
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.streams import (
    STREAMS_KEY,
    Named,
    freeing,
    name_key,
    names_key,
    producers_key,
    stream_key,
)


async def restore_stream(
    coordination: Coordination, record: StreamRecord, also: Changes, step: RebuildStep
) -> StreamId | None:
    """Write a record into a coordination that has lost it, with `also`; repeatable.

    Returns another stream that has the name of one that is active: nothing was written.

    Raises:
        Unavailable: the step is not what goes on, so streams may be in use.
    """
    keys = (stream_key(record.stream_id), name_key(record.full_name))
    mine = record.stream_id.encode("ascii")
    named = Named(record.name, record.stream_id).member()
    active = record.state is StreamState.ACTIVE
    values: dict[str, bytes | None] = {keys[0]: encode_record(record)}
    if active:
        values[keys[1]] = mine
    index = names_key(record.state, record.tenant)
    members = [Member(index, named, True), Member(STREAMS_KEY, mine, True)]

    def change(found: Values) -> tuple[Changes, StreamId | None]:
        step.require(found)
        other = found[keys[1]]
        if active and other is not None and other != mine:
            return Changes(), StreamId(other.decode("ascii"))
        return Changes(values, (), members) | also, None

    return await coordination.transact([*keys, *step.watched], change)


async def discard_stream(
    coordination: Coordination, stream_id: StreamId, step: RebuildStep
) -> None:
    """Remove everything that coordination has of a stream: a rebuild begins.

    What was restored already for its generation stays.

    Raises:
        Unavailable: the step is not what goes on, so the stream may be in use.
    """
    key = stream_key(stream_id)
    value = await coordination.get(key)
    told = None if value is None else name_in(value)
    beside = producers_key(stream_id), going_key(stream_id)
    empty: dict[str, bytes | None] = dict.fromkeys((key, *beside))
    gone = Changes(empty, (), [Member(STREAMS_KEY, stream_id.encode("ascii"), False)])
    watched = [key, *step.watched]
    if told is not None:
        named = Named(told.name, stream_id).member()
        indexes = [names_key(state, told.tenant) for state in StreamState]
        gone |= Changes(members=[Member(index, named, False) for index in indexes])
        own_name = name_key(told)
        if await coordination.get(own_name) == stream_id.encode("ascii"):
            watched.append(own_name)
            gone |= freeing(told)

    def change(found: Values) -> tuple[Changes, None]:
        step.require(found)
        changes = Changes() if is_restored(found[key], step.generation) else gone
        return changes, None

    await coordination.transact(watched, change)


def name_in(value: bytes) -> FullName | None:
    """The name in a record or a registry object, also one that is damaged or of a later release.

    None if it does not say so: then a record's place among the names stays, and leads to nothing.
    """
    try:
        return decode_record(value).full_name
    except Corrupt:
        pass
    try:
        members = orjson.loads(value)
        return FullName(parse_tenant(members["tenant"]), parse_stream_name(members["name"]))
    except (orjson.JSONDecodeError, TypeError, KeyError, InvalidRequest):
        return None


def is_restored(value: bytes | None, generation: int) -> bool:
    """Whether the record of a stream, or of a key, is one that a rebuild to `generation` has written."""
    try:
        return value is not None and int(orjson.loads(value).get("generation", 0)) >= generation
    except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError):
        return False
