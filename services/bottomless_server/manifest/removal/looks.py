"""Find out what of one stream may be deleted: `look`, before which nothing of it is.

What is named stays, and so does what a lease protects, and what may be all that is left of something that is
named. Later, when all that is to go is claimed, `named_by_strays` removes roots of lost attempts, and what one
names that cannot be removed stays too.
"""

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, TypeVar

import numpy as np
import structlog

from bottomless.errors import NotFound, StoreError
from bottomless.formats.keys import FragmentPlace
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Coordination, Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.failing_deletes import queue_later
from bottomless_server.manifest.removal.moved_sources import (
    refused,
    require_other,
    tell_unread,
    unleased,
)
from bottomless_server.manifest.removal.range_leases import condemn, latest_end, put_off
from bottomless_server.manifest.removal.reachability import Seen, is_reachable, see
from bottomless_server.manifest.removal.stray_roots import remove_stray_roots
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.runtime.base.side_by_side import side_by_side

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)
Members = Mapping[Due, DeleteTarget]

_OTHERS_AT_ONCE: Final = 8


class Look(NamedTuple):
    """What was found out of the members of one stream."""

    record: StreamRecord | None
    lost: frozenset[int]
    """The drives of the stream that were lost."""
    live: tuple[Due, ...]
    """Members whose objects are named."""
    unread: tuple[Due, ...]
    """Members of which that cannot be told."""
    members: Members
    """Members whose objects may go."""

    @property
    def may_be_claimed(self) -> bool:
        """Whether anything of the stream may be claimed: not of one that was never on another drive."""
        return self.record is None or bool(self.record.drives)

    @property
    def to_be_claimed(self) -> dict[Due, FragmentPlace]:
        """What has to be claimed before it goes: what could be named again instead of a copy of it."""
        record = self.record
        if record is None or record.state is not StreamState.ACTIVE or not record.drives:
            return {}
        return {due: one.place for due, one in self.members.items() if one.is_fragment}


async def look(context: Context, stream_id: StreamId, members: Members, now: int) -> Look:
    """Look at the record of a stream and at its manifest; what is held by a lease is put off.

    Raises:
        Unavailable, Corrupt: of the record or the root.
    """
    try:
        record = await context.streams.load(stream_id)
    except NotFound:
        return Look(None, frozenset(), (), (), members)
    seen: Seen[Due] | None = None
    live, unread = set[Due](), set[Due]()
    if record.state is StreamState.ACTIVE:
        # Of a stream that is being deleted nothing is live, and its root may be gone.
        seen = await see(context, record, members)
        record, lost = seen.record, seen.lost
        live, unread = await judge(context, seen, members)
    else:
        lost = await context.drive_states.lost(record.drives)
    due_before, members = members, _without(members, live | unread)
    members = await condemned(context, record, members, now)
    members, unsure = await unleased(context, record, seen, members, now)
    unread |= unsure
    return Look(
        record,
        lost,
        tuple(due for due in due_before if due in live),
        tuple(due for due in due_before if due in unread),
        members,
    )


async def judge(
    context: Context, seen: Seen[K], members: Mapping[K, DeleteTarget]
) -> tuple[set[K], set[K]]:
    """Members that a reader of the manifest could still come to, and members of which that cannot be
    told, or in place of which nothing whole is named."""
    live, unread = set[K](), set[K]()
    others: dict[K, np.void] = {}
    for key, target in members.items():
        found = seen.entries.get(key)
        entry = None if isinstance(found, StoreError) else found
        if is_reachable(seen.record, seen.root, target, entry):
            live.add(key)
        elif isinstance(found, StoreError):
            tell_unread(target, found)
            unread.add(key)
        elif found is not None:
            others[key] = found

    async def look_at_other(key: K) -> None:
        await require_other(context, seen.record, others[key], members[key], seen.lost)

    looks = await side_by_side(others, look_at_other, _OTHERS_AT_ONCE)
    return live, unread | refused(members, looks)


async def queued_as_before(
    coordination: Coordination, looks: Mapping[StreamId, Look]
) -> dict[StreamId, Look]:
    """Looks of one pass without the members that are not queued any more as they were when it began."""
    dues = [due for one in looks.values() for due in one.members]
    moved = await requeued(coordination, dues) if dues else set[Due]()
    return {
        stream_id: one._replace(members=_without(one.members, moved))
        for stream_id, one in looks.items()
    }


@guard("the place in the queue after the look")
async def requeued(coordination: Coordination, dues: Sequence[Due]) -> set[Due]:
    """Members of one queue that have another place in it, or none.

    It is asked after the manifests were read: what was named and moved once more before that has a new time of
    grace by now, or was settled.
    """
    queued = await coordination.due_at(dues[0].redis_key, [due.member for due in dues])
    return {due for due, at in zip(dues, queued, strict=True) if at != due.due_at}


async def named_by_strays(context: Context, record: StreamRecord, members: Members) -> set[Due]:
    """Members that stay for now, since a root that a rebuild could believe may name them."""
    named = {due: target for due, target in members.items() if target.is_of_tree}
    if not named:
        return set()
    try:
        await remove_stray_roots(context, record, named.values())
    except StoreError as error:
        log.warning(
            "what a lost attempt may name stays for now",
            stream_id=record.stream_id,
            error=str(error),
        )
        return {*named}
    return set()


@guard("condemning before a delete")
async def condemned(context: Context, record: StreamRecord, members: Members, now: int) -> Members:
    """Members that are condemned now, or need not be; the others are put off."""
    ends = {
        due: one.range.next_offset
        for due, one in members.items()
        # What is left of the copies of a move lies beside what is live, at the same offsets.
        if one.range is not None and not one.is_of_copies
    }
    if not ends:
        return members
    if max(ends.values()) > record.condemned_next:
        record = await condemn(
            context.streams,
            record.stream_id,
            max(ends.values()),
            now,
            latest_end(context.settings, now),
        )
        await reach("manifest.deleter.after-condemn")
    held = {due: end for due, end in ends.items() if end > record.condemned_next}
    await queue_later(context.coordination, put_off(context.settings, record, held, now))
    return _without(members, held.keys())


def _without(members: Members, dues: AbstractSet[Due]) -> Members:
    return {due: one for due, one in members.items() if due not in dues}
