"""What a rebuild writes of super streams into coordination, and what it takes out of it.

As of streams (`restored_streams.py`): each transaction is tied to the step on whose behalf it is done,
and what was restored already for the rebuild's generation is not discarded.
"""

from typing import Final

from bottomless.errors import Corrupt
from bottomless.formats.super_record import decode_super, encode_super
from bottomless.model.names import StreamId, SuperId
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.coordination.base import Changes, Coordination, Member, Values
from bottomless_server.stores.name_values import Holder, holder_in, value_of_super
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_streams import is_restored
from bottomless_server.stores.streams import Named, freeing, name_key
from bottomless_server.stores.supers import SUPERS_KEY, super_key, super_names_key

NOTHING: Final = Changes()


async def restore_super(
    coordination: Coordination, record: SuperRecord, also: Changes, step: RebuildStep
) -> Holder | None:
    """Write a super record into a coordination that has lost it, with `also`; repeatable.

    Returns who else has the name of one that is not being deleted: nothing was written.

    Raises:
        Unavailable: the step is not what goes on.
    """
    own, mine = name_key(record.full_name), value_of_super(record.super_id)
    named = Named(record.name, StreamId(record.super_id)).member()
    active = record.state is not SuperState.DELETING
    values: dict[str, bytes | None] = {super_key(record.super_id): encode_super(record)}
    if active:
        values[own] = mine
    members = [
        Member(super_names_key(record.tenant), named, True),
        Member(SUPERS_KEY, record.super_id.encode("ascii"), True),
    ]

    def change(found: Values) -> tuple[Changes, Holder | None]:
        step.require(found)
        if active and found[own] not in (None, mine):
            return NOTHING, holder_in(found[own])
        return Changes(values, members=members) | also, None

    watched = [super_key(record.super_id), own, *step.watched]
    return await coordination.transact(watched, change)


async def bury_super(
    coordination: Coordination, buried: SuperRecord, also: Changes, step: RebuildStep
) -> None:
    """Let a super stream that was restored be one that is being deleted, with `also`; repeatable.

    Raises:
        Unavailable: the step is not what goes on.
    """
    assert buried.state is SuperState.DELETING
    key, own = super_key(buried.super_id), name_key(buried.full_name)
    mine = value_of_super(buried.super_id)

    def change(found: Values) -> tuple[Changes, None]:
        step.require(found)
        written = Changes({key: encode_super(buried)})
        if found[own] == mine:
            written |= freeing(buried.full_name)
        return written | also, None

    await coordination.transact([key, own, *step.watched], change)


async def discard_super(coordination: Coordination, super_id: SuperId, step: RebuildStep) -> None:
    """Remove everything that coordination has of a super stream: a rebuild begins.

    What was restored already for its generation stays. One that cannot be read leaves its name, which
    leads to nothing.

    Raises:
        Unavailable: the step is not what goes on.
    """
    key = super_key(super_id)
    value = await coordination.get(key)
    gone = Changes({key: None}, members=[Member(SUPERS_KEY, super_id.encode("ascii"), False)])
    watched = [key, *step.watched]
    try:
        record = None if value is None else decode_super(value)
    except Corrupt:
        record = None
    if record is not None:
        named = Named(record.name, StreamId(super_id)).member()
        gone |= Changes(members=[Member(super_names_key(record.tenant), named, False)])
        own = name_key(record.full_name)
        if await coordination.get(own) == value_of_super(super_id):
            watched.append(own)
            gone |= freeing(record.full_name)

    def change(found: Values) -> tuple[Changes, None]:
        step.require(found)
        return NOTHING if is_restored(found[key], step.generation) else gone, None

    await coordination.transact(watched, change)
