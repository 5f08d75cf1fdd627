"""Consumer groups in coordination: who is in a group, and who holds which partition.

bottomless:group:{scope}:{group}            the group: its members, and who holds what
bottomless:holder:{scope}:{group}:{index}   who holds one partition, a copy of what the group says
bottomless:member:{member_id}               lease of a member: its scope, its group, and for how long
bottomless:groups:{scope}                   index of the names
bottomless:group-checks                     what has to be looked at, by the time when it is due

A scope is a stream, whose one partition has the number 0, or a super stream. A group may be 100 KB, so commits and
reads look at the copy. One EXEC writes a group with all copies that it changes and with what has to
be looked at because of it: a lease that can run out, a partition that is to be taken from its holder.
After a crash at any moment all of that is there or nothing of it.

A lease begins before its member enters the group, and ends by itself: after a crash in between it
is the lease of nobody, until it runs out. Groups are not in the bucket. Where coordination was lost,
members hear that they are none, and join again; the generations of the group that they make begin
above all that an earlier generation of the store can have given.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final, NamedTuple

import orjson

from bottomless.errors import Code, Corrupt, WrongOffset
from bottomless.formats.checks import corrupt
from bottomless.formats.stream_record import SERVED, decode_record
from bottomless.formats.super_record import decode_super
from bottomless.guards import guard
from bottomless.model.limits import PARTITION_COUNT_MAX
from bottomless.model.names import Reference, StreamId, parse_reference
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.coordination.base import (
    Changes,
    Coordination,
    Due,
    Hold,
    Member,
    Room,
    Values,
)
from bottomless_server.core.consumer_group import (
    ConsumerGroup,
    GroupMember,
    MemberId,
    decode_group,
    decode_holder,
    encode_group,
    encode_holder,
)
from bottomless_server.core.not_found import stream_not_found, super_not_found
from bottomless_server.stores.forgetting import Forgetting, forget_indexed
from bottomless_server.stores.streams import stream_key
from bottomless_server.stores.supers import super_key

CHECKS_KEY: Final = "bottomless:group-checks"
_PAGE_COUNT: Final = 500
_OF_MEMBER: Final = "member"
_OF_PARTITION: Final = "partition"


class Lease(NamedTuple):
    """What the lease of a member says."""

    scope: str
    group: Reference
    lease_ms: int


class Claim(NamedTuple):
    """What somebody says of a partition: that this member holds it, with this generation."""

    member_id: str
    generation: int


class Check(NamedTuple):
    """One thing that has to be looked at: a member, or a partition."""

    scope: str
    group: Reference
    member_id: MemberId | None
    """The member whose lease may have run out."""
    partition: int | None
    """The partition that its holder may not have released in time."""


class ListedGroups(NamedTuple):
    """A page of the groups of a scope, in the order of their names."""

    names: list[Reference]
    """All names of the page, also of groups that are gone by now."""
    groups: dict[Reference, ConsumerGroup]
    unreadable: dict[Reference, Corrupt]
    """Groups that are there, and that this release cannot read."""


def group_key(scope: str, group: Reference) -> str:
    # Neither an id nor a name can hold a colon, so no two groups share a key.
    return f"bottomless:group:{scope}:{group}"


def holder_key(scope: str, group: Reference, index: int) -> str:
    return f"bottomless:holder:{scope}:{group}:{index}"


def member_key(member_id: str) -> str:
    return f"bottomless:member:{member_id}"


def groups_index(scope: str) -> str:
    return f"bottomless:groups:{scope}"


def room_for(scope: str, group: Reference, count_max: int) -> Room:
    """The bound of a scope's groups, for one that may be new."""
    return Room(groups_index(scope), group.encode("ascii"), count_max)


Shared = StreamRecord | SuperRecord
"""What the members of a group share: a stream alone, or a super stream."""


def place_of(record: StreamRecord) -> tuple[str, int]:
    """Tell which partition a stream is to groups: the scope by which coordination knows the groups, and the
    partition's number in it.

    A stream that belongs to a super stream is one partition of that. Any other stream is a scope of its
    own, and its only partition, number 0."""
    place = record.partition_of
    return (record.stream_id, 0) if place is None else (place.super_id, place.index)


def scope_of(shared: Shared) -> str:
    """The scope of what is shared."""
    return shared.super_id if isinstance(shared, SuperRecord) else shared.stream_id


def record_key_of(shared: Shared) -> str:
    """The key of the record of what is shared: who joins watches it."""
    if isinstance(shared, SuperRecord):
        return super_key(shared.super_id)
    return stream_key(shared.stream_id)


def partition_count_of(shared: Shared) -> int:
    """How many partitions the members of a group have to share: those of a super stream as they are now,
    or 1 for a stream alone, which only one member at a time can hold."""
    return len(shared.partitions) if isinstance(shared, SuperRecord) else 1


Decide = Callable[[ConsumerGroup | None, Values], ConsumerGroup | None]
"""Makes of a group what it is to be, None for nothing; it sees the values of other keys too."""


class ConsumerGroups:
    """All consumer groups. Holds no state of its own."""

    def __init__(self, coordination: Coordination, served: AbstractSet[str] = SERVED) -> None:
        self._coordination = coordination
        self._served = served
        """Features of streams that may have groups."""

    async def find(self, scope: str, group: Reference) -> ConsumerGroup | None:
        """A group, None if there is none."""
        value = await self._coordination.get(group_key(scope, group))
        return None if value is None else decode_group(value)

    async def listed(self, scope: str, after: str = "", limit: int = _PAGE_COUNT) -> ListedGroups:
        """Groups in the order of their names, from after a name.

        One that cannot be read is told beside the others and does not end the question for them.
        """
        members = await self._coordination.members(
            groups_index(scope), after.encode("ascii"), limit
        )
        page = ListedGroups([Reference(member.decode("ascii")) for member in members], {}, {})
        values = await self._coordination.get_many([group_key(scope, name) for name in page.names])
        for name, value in zip(page.names, values, strict=True):
            if value is None:
                continue
            try:
                page.groups[name] = decode_group(value)
            except Corrupt as error:
                page.unreadable[name] = error
        return page

    async def change(
        self,
        scope: str,
        group: Reference,
        decide: Decide,
        watched: Sequence[str] = (),
        room: Room | None = None,
    ) -> ConsumerGroup | None:
        """Replace a group by what `decide` makes of it, with all copies; returns that.

        `decide` is asked again after a conflict, and raises to leave it as it is.

        Raises:
            IndexFull: the group is new, and its scope has as many as `room` says.
        """
        key = group_key(scope, group)

        def change(values: Values) -> tuple[Changes, ConsumerGroup | None]:
            value = values[key]
            before = None if value is None else decode_group(value)
            after = decide(before, values)
            if after == before:
                return Changes(), after
            return _written(scope, group, before, after), after

        return await self._coordination.transact([key, *watched], change, room=room)

    def require_active(self, shared: Shared, value: bytes | None) -> Shared:
        """The record, as it is now, of what is there and is not being deleted.

        Raises:
            NotFound: it is not.
        """
        if isinstance(shared, SuperRecord):
            whole = None if value is None else decode_super(value, self._served)
            if whole is None or whole.state is SuperState.DELETING:
                raise super_not_found()
            return whole
        record = None if value is None else decode_record(value, self._served)
        if record is None or record.state is not StreamState.ACTIVE:
            raise stream_not_found()
        return record

    async def lease_of(self, member_id: str) -> Lease | None:
        """What the lease of a member says; None where it has run out or was given back."""
        value = await self._coordination.get(member_key(member_id))
        return None if value is None else _decode_lease(value)

    async def hold(self, member_id: MemberId, lease: Lease) -> bool:
        """Begin or renew the lease of a member; false where its key says something else."""
        value = orjson.dumps(list(lease))
        held = await self._coordination.hold(member_key(member_id), value, lease.lease_ms)
        return held is not Hold.REFUSED

    async def give_back(self, member_id: MemberId, lease: Lease) -> None:
        """End the lease of a member."""
        await self._coordination.release(member_key(member_id), orjson.dumps(list(lease)))

    async def holder(self, scope: str, group: Reference, index: int) -> tuple[MemberId, int] | None:
        """The holder of a partition and its generation; None where nobody holds it."""
        return decode_holder(await self._coordination.get(holder_key(scope, group, index)))

    async def held(self, asked: Sequence[tuple[StreamId, str]]) -> list[int | None]:
        """Tell with which generation each of these members holds this stream; None where it does not,
        where its lease is over, and where what is there of it cannot be read.

        Two questions for all of them together: for the leases, which name the groups, and for the
        holders.
        """
        leases = await self._coordination.get_many([member_key(member) for _, member in asked])
        held: dict[int, Lease] = {}
        for at, value in enumerate(leases):
            # One that cannot be read is not that of the others which are asked about with it.
            with suppress(Corrupt):
                if value is not None:
                    held[at] = _decode_lease(value)
        places = await self._places(
            [asked[at][0] for at, lease in held.items() if lease.scope != asked[at][0]]
        )
        keys: dict[int, str] = {}
        for at, lease in held.items():
            stream_id = asked[at][0]
            scope, index = places.get(stream_id, (stream_id, 0))
            if lease.scope == scope:
                keys[at] = holder_key(scope, lease.group, index)
        values = await self._coordination.get_many(list(keys.values()))
        holders: dict[int, tuple[MemberId, int] | None] = {}
        for at, value in zip(keys, values, strict=True):
            with suppress(Corrupt):
                holders[at] = decode_holder(value)
        return [_generation_of(holders.get(at), member) for at, (_, member) in enumerate(asked)]

    async def _places(self, stream_ids: Sequence[StreamId]) -> dict[StreamId, tuple[str, int]]:
        """The scope of which each of these streams is a partition, and which partition; streams that are
        gone, or that cannot be read, are left out."""
        values = await self._coordination.get_many([stream_key(one) for one in stream_ids])
        places = {}
        for stream_id, value in zip(stream_ids, values, strict=True):
            with suppress(Corrupt):
                if value is not None:
                    places[stream_id] = place_of(decode_record(value, self._served))
        return places

    async def due(self, now: int, limit: int) -> list[tuple[Due, Check | Corrupt]]:
        """What has to be looked at by now, the earliest first. Of what cannot be read the error is
        told, and the others are told beside it."""
        found = await self._coordination.due(CHECKS_KEY, now, limit)
        return [(due, _parse_check(due.member)) for due in found]

    async def forget(self, scope: str, forgetting: Forgetting) -> None:
        """Remove all groups of a scope, one after the other; after a crash, the rest of them.

        Raises:
            Unavailable: as the condition says.
        """

        def keys_of(page: Sequence[bytes]) -> list[str]:
            return [group_key(scope, Reference(member.decode("ascii"))) for member in page]

        def gone(page: Sequence[bytes], found: Values) -> Changes:
            changes = Changes()
            for key, member in zip(keys_of(page), page, strict=True):
                group = Reference(member.decode("ascii"))
                numbers = range(_partition_count(found[key]))
                holders = {holder_key(scope, group, number): None for number in numbers}
                out = [Member(groups_index(scope), member, False)]
                changes |= Changes({key: None, **holders}, members=out)
            return changes

        # One at a time: a group may be 100 KB, and have a thousand holders.
        await forget_indexed(self._coordination, groups_index(scope), 1, keys_of, gone, forgetting)


@guard("the watched lease key when a member expires")
def require_over(lease: bytes | None) -> bool:
    """Whether the lease of a member has run out, by the key that the EXEC watches."""
    return lease is None


@guard("the generation in the commit's EXEC")
def require_holder(holder: bytes | None, claim: Claim | None) -> None:
    """Let a commit pass only if it is of who holds the partition now, or nobody holds it.

    Raises:
        WrongOffset: `consumer-fenced`.
    """
    if decode_holder(holder) == claim:
        return
    told = (
        "a member of the group of this name holds the partition: only it may store the offset"
        if claim is None
        else "this member does not hold the partition any more, or never did: stop, and ask for what it holds"
    )
    raise WrongOffset(told, code=Code.CONSUMER_FENCED)


def lease_due(scope: str, group: Reference, member: GroupMember, due_at: int) -> Due:
    """Have a member looked at when its lease can have run out."""
    return _due(f"{_OF_MEMBER}:{scope}:{group}:{member.member_id}", due_at)


def _written(
    scope: str, group: Reference, before: ConsumerGroup | None, after: ConsumerGroup | None
) -> Changes:
    """The group, the copies of it that are others now, and what is to be looked at for that."""
    old = () if before is None else before.partitions
    new = () if after is None else after.partitions
    values = {group_key(scope, group): None if after is None else encode_group(after)}
    copies = {one.number: encode_holder(one) for one in old}
    for one in new:
        copy = encode_holder(one)
        if copy != copies.pop(one.number, None):
            values[holder_key(scope, group, one.number)] = copy
    values |= {holder_key(scope, group, index): None for index in copies}
    entered = Member(groups_index(scope), group.encode("ascii"), after is not None)
    known = set() if before is None else set(before.members)
    joined = [one for one in (after.members if after else ()) if one not in known]
    dues = [lease_due(scope, group, one, one.joined_at + one.lease_ms) for one in joined]
    dues += [
        _due(f"{_OF_PARTITION}:{scope}:{group}:{one.number}", one.revoke_at)
        for one in new
        if one.revoke_at is not None and one not in old
    ]
    return Changes(values, dues, [entered])


def _due(member: str, due_at: int) -> Due:
    return Due(CHECKS_KEY, member.encode("ascii"), due_at)


@guard("what cannot be read of the queue of checks, told beside the others")
def _parse_check(member: bytes) -> Check | Corrupt:
    """What a member of the queue says; or why nobody can tell, as of what a later release wrote."""
    try:
        kind, scope, group, last = member.decode("ascii").split(":")
        if kind == _OF_MEMBER:
            return Check(scope, Reference(group), MemberId(last), None)
        if kind == _OF_PARTITION:
            return Check(scope, Reference(group), None, int(last))
    except ValueError as error:
        return corrupt("a check of a consumer group", f"it is no member of its queue: {error}")
    return corrupt("a check of a consumer group", "it is of another kind")


def _decode_lease(value: bytes) -> Lease:
    try:
        scope, group, lease_ms = orjson.loads(value)
        return Lease(str(scope), parse_reference(str(group)), int(lease_ms))
    except (TypeError, ValueError) as error:
        raise corrupt("lease of a member", "it does not name its group") from error


def _generation_of(holder: tuple[MemberId, int] | None, member_id: str) -> int | None:
    return holder[1] if holder is not None and holder[0] == member_id else None


def _partition_count(value: bytes | None) -> int:
    """How many copies of holders a group may have."""
    if value is None:
        return 0
    try:
        return len(decode_group(value).partitions)
    except Corrupt:
        return PARTITION_COUNT_MAX
