"""Claim fragments before a drive is asked to delete them: from then on no manifest names them again.

A deletion lands when it lands, also long after whoever asked for it has looked at what is named, as when
the process stands still or the drive takes its time. Meanwhile an operator may say that the drive of a copy
is lost, and the source of the copy, which waits to be deleted, would be named again. So of a stream that was
ever on another drive than the first, in this order:

1. The deleter looks at what is named. A crash here leaves nothing.
2. `claim`: one EXEC for a pass enters what is to go, of all streams (`stores/going.py`). A crash here leaves
   the claim beside the member of the queue: the next pass of any process claims the same again, which
   changes nothing, and goes on.
3. The record is asked once more (`named_since`), then the registry of drives (`is_outdated` in
   `deleter.py`). What is named by now stays, and so does what has the bytes of something that the manifest
   names on a drive which is lost. A crash here is as before.
4. Objects are deleted. A crash here: an absent object counts as deleted in the next pass.
5. `settle`: one EXEC takes the members out of the queue, and the claims with them. So neither is there
   without the other, but where an earlier release has settled the member, or the queue of a lost drive was
   forgotten: such a claim goes with the next ones of its stream, or with the stream.

The loss of a drive goes the other way round (`mutators/losing.py`): the registry says it, then the record is
read, then what is going, then the drives are listed, and then what was found is named, if the record is still
the same. So what is claimed before it reads that is not named; and where something is claimed after that, step 3
comes later than the registry, and finds either that it is named, or that the drive is lost.

What cannot be deleted stays claimed, as many objects of a stream and a drive as `GOING_COUNT_MAX`; others of
that stream and drive wait in the queue until there is room.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import structlog

from bottomless.errors import Corrupt, NotFound, StoreError
from bottomless.formats.keys import FragmentPlace
from bottomless.guards import guard
from bottomless.model.manifest import Node
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Coordination, Due, Values
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.removal.moved_sources import entry_now, require_copy
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget, moved_member
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.stores.going import (
    GOING_COUNT_MAX,
    decode_going,
    encode_going,
    going_key,
)
from bottomless_server.stores.streams import deletes_key

log = structlog.get_logger(__name__)

Places = Mapping[StreamId, Collection[FragmentPlace]]


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
    reachable: Callable[[StreamRecord, Node, DeleteTarget], Awaitable[bool]],
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
    newer, root = await load_root(context, newer)
    kept: set[Due] = set()
    for due, target in claimed.items():
        try:
            if await reachable(newer, root, target):
                kept.add(due)
                continue
            entry = await entry_now(context, newer, root, target)
            if entry is not None:
                await require_copy(context, newer, entry)
        except StoreError as error:
            log.warning("the way to an object cannot be read", uid=target.uid, error=str(error))
            kept.add(due)
    return kept


async def settle(coordination: Coordination, settled: Sequence[Due], gone: Places) -> None:
    """Take members out of their queue, and with them the claims of what is `gone`, in one EXEC.

    Raises:
        CoordinationUnavailable, CoordinationUnknown: the same again is right.
    """
    keys = [going_key(one) for one in gone]
    values = await coordination.get_many(keys) if keys else []
    held = {
        stream_id: going
        for stream_id, value in zip(gone, values, strict=True)
        if (going := _going(stream_id, value))
    }
    if not held:
        await coordination.settle(settled)
        return
    rest = {place for stream_id, going in held.items() for place in going - set(gone[stream_id])}
    forgotten = await _unqueued(coordination, rest)

    def take_out(values: Values) -> tuple[Changes, None]:
        written: dict[str, bytes | None] = {}
        for stream_id in held:
            key = going_key(stream_id)
            before = _going(stream_id, values[key])
            left = None if before is None else before - set(gone[stream_id]) - forgotten
            if left is not None and left != before:
                written[key] = encode_going(left)
        return Changes(written, settled=settled), None

    await coordination.transact([going_key(one) for one in held], take_out)


async def _unqueued(
    coordination: Coordination, places: Collection[FragmentPlace]
) -> set[FragmentPlace]:
    """Objects that wait in no queue: they are gone, or lay on a drive that is lost."""
    found: set[FragmentPlace] = set()
    for number in {place.drive for place in places}:
        mine = [place for place in places if place.drive == number]
        keys = [place.object_key for place in mine]
        members = [*(key.encode("ascii") for key in keys), *(moved_member(key) for key in keys)]
        due_at = await coordination.due_at(deletes_key(number), members)
        both = zip(mine, due_at[: len(mine)], due_at[len(mine) :], strict=True)
        found |= {place for place, alone_at, moved_at in both if alone_at is moved_at is None}
    return found


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
