"""What a rebuild makes of leaderless streams in coordination: what lay there goes, then the new comes.

A tail or an instance of an older generation may have entries, names and held members left. Under a
new record they would be taken for its own. So they are discarded first, page by page, and before the
stream's record goes, since nothing leads to them afterwards. What was restored already for the
generation of the rebuild stays, as everywhere (`restored_streams.py`).

Every transaction is tied to the step on whose behalf it is done (`rebuild_step.py`).
"""

from collections.abc import Mapping
from typing import Final

from bottomless.guards import guard
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Changes, Coordination, Member, Values
from bottomless_server.leaderless.decided import KnownName, NewKnown
from bottomless_server.leaderless.instance import WalInstance, encode_instance
from bottomless_server.leaderless.tail_changes import tail_of
from bottomless_server.leaderless.tail_format import encode_tail
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_streams import is_restored, restore_stream
from bottomless_server.stores.streams import stream_key
from bottomless_server.stores.tail_commits import known_written
from bottomless_server.stores.tail_keys import tail_key
from bottomless_server.stores.tails import contents_page
from bottomless_server.stores.wal import INSTANCES_KEY, held_key, instance_key

PAGE_COUNT: Final = 1_000
"""Entries, names or members of one EXEC: nobody else is served meanwhile."""


async def restore(
    coordination: Coordination,
    record: StreamRecord,
    known: Mapping[KnownName, NewKnown],
    also: Changes,
    step: RebuildStep,
    *,
    last_timestamp: int,
) -> StreamId | None:
    """Write record, tail and producers into a coordination that has lost them, with `also`.

    The tail is made of the record: it begins where the manifest ends, and is fenced or closed where
    the record says so. `last_timestamp` is the last that any record of the stream was given. Returns
    another stream that has the name of one that is active: then nothing was written.

    In Redis after a crash: of what lay there less is left; then record and tail, with some of the
    names. Nothing is served before the rebuild has ended, and the same again is right.

    Raises:
        Unavailable: the step is not what goes on, so streams may be in use.
    """
    stream_id = record.stream_id
    await discard_tail(coordination, stream_id, step)
    producers = sum(name.is_producer for name in known)
    tail = tail_of(record, last_timestamp)._replace(
        producer_count=producers, key_count=len(known) - producers
    )
    made = Changes({tail_key(stream_id): encode_tail(tail)})
    other = await restore_stream(coordination, record, made | also, step)
    if other is not None:
        return other
    names = list(known.items())
    for start in range(0, len(names), PAGE_COUNT):
        page = [
            known_written(stream_id, name, now, tail.next_offset)
            for name, now in names[start : start + PAGE_COUNT]
        ]
        # At once, and not one after the other: that would copy what is there for each name.
        changes = Changes(
            {key: value for one in page for key, value in one.values.items()},
            [due for one in page for due in one.queued],
            [member for one in page for member in one.members],
        )
        await step.write(coordination, changes)
    return None


@guard("what a rebuild takes away before it restores a tail")
async def discard_tail(
    coordination: Coordination, stream_id: StreamId, step: RebuildStep, limit: int = PAGE_COUNT
) -> None:
    """Discard what coordination has of a stream's tail, whatever state it is in.

    In Redis after a crash: less of it; its record goes with the last page, and the stream's record
    after that. Of a stream without a tail nothing is written.

    Raises:
        Unavailable: the step is not what goes on.
    """
    key = stream_key(stream_id)
    more = True
    while more:
        gone, more = await contents_page(coordination, stream_id, limit)
        empty = not gone.members and await coordination.get(tail_key(stream_id)) is None
        if empty:
            return
        if not await _discard(coordination, key, gone, step):
            return


async def discard_instances(coordination: Coordination, after: bytes, step: RebuildStep) -> bytes:
    """Discard a page of instances with what holds their objects; returns the last, or nothing.

    In Redis after a crash: less of them; the record of an instance goes after all that it holds.

    Raises:
        Unavailable: the step is not what goes on.
    """
    page = await coordination.members(INSTANCES_KEY, after, PAGE_COUNT)
    for member in page:
        key = instance_key(Uid(member.decode("ascii")))
        await _discard_held(coordination, Uid(member.decode("ascii")), step)
        gone = Changes({key: None}, members=[Member(INSTANCES_KEY, member, False)])
        await _discard(coordination, key, gone, step)
    return page[-1] if page else b""


async def restore_instance(
    coordination: Coordination, instance: Uid, record: WalInstance, step: RebuildStep
) -> None:
    """Enter an instance whose objects a rebuild found: all settled, nothing held.

    Raises:
        Unavailable: the step is not what goes on.
    """
    assert record.settled == record.reserved
    await _discard_held(coordination, instance, step)
    entered = Member(INSTANCES_KEY, instance.encode("ascii"), True)
    changes = Changes({instance_key(instance): encode_instance(record)}, members=[entered])
    await step.write(coordination, changes)


async def _discard_held(coordination: Coordination, instance: Uid, step: RebuildStep) -> None:
    key = held_key(instance)
    while page := await coordination.members(key, b"", PAGE_COUNT):
        gone = Changes(members=[Member(key, member, False) for member in page])
        if not await _discard(coordination, instance_key(instance), gone, step):
            return


async def _discard(
    coordination: Coordination, record_key: str, gone: Changes, step: RebuildStep
) -> bool:
    """Take something away, unless the record that it belongs to was restored; whether it went."""

    def change(found: Values) -> tuple[Changes, bool]:
        step.require(found)
        if is_restored(found[record_key], step.generation):
            return Changes(), False
        return gone, True

    return await coordination.transact([record_key, *step.watched], change)
