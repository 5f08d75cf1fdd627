"""Claim fragments before a drive is asked to delete them: from then on no manifest names them again.

A deletion lands when it lands, also long after whoever asked for it has looked at what is named, as when
the process stands still or the drive takes its time. Meanwhile an operator may say that the drive of a copy
is lost, and the source of the copy, which waits to be deleted, would be named again. So of a stream that was
ever on another drive than the first, in this order:

1. The deleter looks at what is named, and then whether all of it is queued as it was (`looks.py`). A crash
   here leaves nothing.
2. `claim`: one EXEC for a pass enters what is to go, of all streams (`stores/going.py`). A crash here leaves
   the claim beside the member of the queue: the next pass of any process claims the same again, which
   changes nothing, and goes on.
3. The record is asked once more, and where it has changed the queue (`named_since`), then the registry of drives (`is_outdated` in
   `deleter.py`). What is named by now stays, and so does what has the bytes of something that the manifest
   names on a drive which is lost. A crash here is as before.
4. Roots of lost attempts that name them go, and then the objects. A crash here: an absent object counts as
   deleted in the next pass.
5. `settle`: one EXEC takes the members out of the queue, and the claims with them. A claim goes only where
   its object is gone, or its drive is lost, or in an EXEC at which the manifest names it: so one that was
   entered is there for as long as the object can be deleted by it (docs/decisions/0232). One without a
   member, as where an earlier release has settled that, or the queue of a lost drive was forgotten, goes with
   the next ones of its stream by the same rule, also where they find no room, or with the stream.

The loss of a drive goes the other way round (`mutators/losing.py`): the registry says it, then the record is
read, then what is going, then the drives are listed, and then what was found is named, if the record is still
the same. So what is claimed before it reads that is not named; and where something is claimed after that, step 3
comes later than the registry, and finds either that it is named, or that the drive is lost.

What cannot be deleted stays claimed, as many objects of a stream and a drive as `GOING_COUNT_MAX`; others of
that stream and drive wait in the queue until there is room.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt, NotFound, StoreError
from bottomless.formats.keys import FragmentPlace
from bottomless.formats.stream_record import decode_record
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import (
    Changes,
    Coordination,
    CoordinationUnavailable,
    Due,
    Values,
)
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.removal.looks import judge
from bottomless_server.manifest.removal.moved_sources import without_copy
from bottomless_server.manifest.removal.reachability import see
from bottomless_server.manifest.tree.core.delete_queue import (
    DeleteTarget,
    moved_member,
    parse_delete_target,
)
from bottomless_server.runtime.base.side_by_side import side_by_side
from bottomless_server.stores.going import (
    GOING_COUNT_MAX,
    decode_going,
    encode_going,
    going_key,
)
from bottomless_server.stores.streams import deletes_key, stream_key

log = structlog.get_logger(__name__)

Places = Mapping[StreamId, Collection[FragmentPlace]]
_HEADS_AT_ONCE: Final = 8


@guard("a claim before a delete")
async def claim(coordination: Coordination, wanted: Places) -> dict[StreamId, set[FragmentPlace]]:
    """Enter objects as going, all in one EXEC; returns those that are, which may be fewer.

    Raises:
        CoordinationUnavailable, CoordinationUnknown: nothing of it may be deleted.
    """
    if not wanted:
        return {}

    def enter(values: Values) -> tuple[Changes, dict[StreamId, set[FragmentPlace]]]:
        written: dict[str, bytes | None] = {}
        claimed: dict[StreamId, set[FragmentPlace]] = {}
        for stream_id, places in wanted.items():
            key = going_key(stream_id)
            before = _going(stream_id, values[key])
            if before is None:
                continue
            going = _with_room(before, places)
            claimed[stream_id] = set(places) & going
            if going != before:
                written[key] = encode_going(going)
        return Changes(written), claimed

    return await coordination.transact([going_key(one) for one in wanted], enter)


@guard("a look after the claim")
async def named_since(
    context: Context,
    record: StreamRecord,
    claimed: Mapping[Due, DeleteTarget],
) -> set[Due]:
    """Members that stay by what the manifest names now, where that is not what was looked at before the
    claim, by `record`.

    Raises:
        Unavailable, Corrupt: of the record or the root.
    """
    try:
        newer = await context.streams.load(record.stream_id)
    except NotFound:
        return set()
    if newer.root == record.root or newer.state is not StreamState.ACTIVE:
        return set()
    seen = await see(context, newer, claimed)
    kept = await requeued_since(context.coordination, claimed)
    others = {due: target for due, target in claimed.items() if due not in kept}
    live, unread = await judge(context, seen, others)
    kept |= live | unread
    moved = {due: target for due, target in others.items() if target.moved and due not in kept}
    return kept | await without_copy(context, seen, moved)


@guard("the place in the queue after the claim")
async def requeued_since(coordination: Coordination, dues: Collection[Due]) -> set[Due]:
    """Members that are not queued as they were. What was named again meanwhile, and moved once more, has a new
    time of grace; and another process may have taken its claim out while it was named."""
    members = [*dues]
    due_at = await coordination.due_at(members[0].redis_key, [due.member for due in members])
    return {due for due, at in zip(members, due_at, strict=True) if at != due.due_at}


async def settle(
    context: Context,
    settled: Sequence[Due],
    gone: Places,
    named: Mapping[StreamId, Mapping[Due, DeleteTarget]],
) -> list[Due]:
    """Take members out of their queue, and with them the claims of what is `gone`, in one EXEC, but for those
    that were found `named` and are claimed: these go with their claims, each stream by an EXEC of its own, or
    stay. Returns those that are out.

    Raises:
        CoordinationUnavailable, CoordinationUnknown: the same again is right.
    """
    coordination = context.coordination
    asked = [*{**gone, **named}]
    values = await coordination.get_many([going_key(one) for one in asked]) if asked else []
    held = {
        stream_id: going
        for stream_id, value in zip(asked, values, strict=True)
        if (going := _going(stream_id, value))
    }
    if not held:
        await coordination.settle(settled)
        return [*settled]
    ended = {stream_id: going & {*gone.get(stream_id, ())} for stream_id, going in held.items()}
    out = {*settled}
    for stream_id, going in held.items():
        mine = named.get(stream_id, {})
        claimed = {due: one for due, one in mine.items() if one.place in going}
        out -= {*claimed}
        others = going - ended[stream_id] - {one.place for one in claimed.values()}
        unqueued = await _unqueued(coordination, others)
        ended[stream_id] |= (absent := await _absent(context, unqueued))
        out |= await _release(context, stream_id, claimed, unqueued - absent)
    rest = [due for due in settled if due in out]

    def take_out(values: Values) -> tuple[Changes, None]:
        written: dict[str, bytes | None] = {}
        for stream_id, places in ended.items():
            key = going_key(stream_id)
            before = _going(stream_id, values[key])
            if before is not None and before & places:
                written[key] = encode_going(before - places)
        return Changes(written, settled=rest), None

    await coordination.transact([going_key(one) for one in held], take_out)
    return rest


async def _unqueued(
    coordination: Coordination, places: Collection[FragmentPlace]
) -> set[FragmentPlace]:
    """Objects that wait in no queue."""
    found: set[FragmentPlace] = set()
    for number in {place.drive for place in places}:
        mine = [place for place in places if place.drive == number]
        keys = [place.object_key for place in mine]
        members = [*(key.encode("ascii") for key in keys), *(moved_member(key) for key in keys)]
        due_at = await coordination.due_at(deletes_key(number), members)
        both = zip(mine, due_at[: len(mine)], due_at[len(mine) :], strict=True)
        found |= {place for place, alone_at, moved_at in both if alone_at is moved_at is None}
    return found


async def _absent(context: Context, places: Collection[FragmentPlace]) -> set[FragmentPlace]:
    """Objects that are not there any more, or lay on a drive that is lost; no key is used twice."""
    lost = await context.drive_states.lost({place.drive for place in places})
    found = {place for place in places if place.drive in lost}

    async def look(place: FragmentPlace) -> None:
        await context.drives.of(place.drive).head(place.object_key)

    looks = await side_by_side([*{*places} - found], look, _HEADS_AT_ONCE)
    for place, error in looks.items():
        if isinstance(error, ObjectMissing):
            found.add(place)
        elif isinstance(error, StoreError):
            log.warning("a claim stays for now", **place._asdict(), error=str(error))
        elif error is not None:
            raise error
    return found


async def _release(
    context: Context,
    stream_id: StreamId,
    members: Mapping[Due, DeleteTarget],
    unqueued: Collection[FragmentPlace],
) -> set[Due]:
    """Take out claims of what the manifest names in this very moment, and the members about it; returns these."""
    asked: dict[FragmentPlace, Due | None] = {
        **dict.fromkeys(unqueued),
        **{one.place: due for due, one in members.items()},
    }
    if not asked:
        return set()
    targets = {
        place: target
        for place in asked
        if (target := parse_delete_target(place.object_key.encode("ascii", "replace"), place.drive))
    }
    try:
        seen = await see(context, await context.streams.load(stream_id), targets)
    except NotFound:
        # The claims went with the record.
        return {*members}
    except CoordinationUnavailable:
        raise
    except StoreError as error:
        log.warning("claims stay for now", stream_id=stream_id, error=str(error))
        return set()
    record = seen.record
    live, _ = await judge(context, seen, targets)
    named = {place: due for place, due in asked.items() if place in live}
    if not named:
        return set()
    released = {due for due in named.values() if due is not None}
    key, record_key = going_key(stream_id), stream_key(stream_id)

    def take_out(values: Values) -> tuple[Changes, set[Due]]:
        before, value = _going(stream_id, values[key]), values[record_key]
        if before is None or not is_named_still(context, record, value):
            return Changes(), set()
        return Changes({key: encode_going(before - {*named})}, settled=[*released]), released

    return await context.coordination.transact([key, record_key], take_out)


@guard("what is named in the EXEC that takes its claim out")
def is_named_still(context: Context, record: StreamRecord, value: bytes | None) -> bool:
    """Whether the record in coordination names the root by which something was found named. A claim that went
    later than that would be missing where it has moved on, and waits to be deleted."""
    if value is None:
        return False
    try:
        return decode_record(value, context.streams.served).root == record.root
    except Corrupt:
        return False


def _going(stream_id: StreamId, value: bytes | None) -> frozenset[FragmentPlace] | None:
    """What is going of a stream; None where that cannot be read, so that nothing of it may go."""
    try:
        return decode_going(value)
    except Corrupt:
        log.exception("nothing of a stream can be claimed", stream_id=stream_id)
        return None


def _with_room(
    before: frozenset[FragmentPlace], places: Collection[FragmentPlace]
) -> frozenset[FragmentPlace]:
    """What is going, and of the others as many of each drive as there is room for, in their order."""
    going, counts = set(before), Counter(place.drive for place in before)
    for place in places:
        if place not in going and counts[place.drive] < GOING_COUNT_MAX:
            going.add(place)
            counts[place.drive] += 1
    return frozenset(going)
