"""Decide who of a consumer group holds which partition. Pure: group in, group out.

    free ──given──► held ──revoked──► held, another follows ──released, or taken──► held by it
                      └──its holder is gone──► held by another at once

A partition that stays with its holder keeps its generation, so a change of members stops only what
moves. Every time that a partition is given to somebody it gets a generation that no partition of the
group ever had: commits of an earlier holder name a smaller one, and are refused. What has to move
is first asked back, so that its holder ends the batch in hand; after `revoke_ms` it is taken.

`now` is the time by the clock of coordination, by which members' leases run, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from bottomless.errors import Code, NotFound, Overloaded, WrongOffset
from bottomless.guards import guard
from bottomless.model.names import Reference
from bottomless_server.core.consumer_group import (
    MEMBER_COUNT_MAX,
    ConsumerGroup,
    GroupMember,
    MemberId,
    Partition,
    Strategy,
)

REVOKE_MS: Final = 10_000
"""How long a holder may take to end the batch in hand."""
_GENERATIONS_EACH: Final = 2**40
"""Generations of a group in one generation of the store: a change each millisecond, for 34 years."""


def new_group(
    scope: str, name: Reference, strategy: Strategy, store_generation: int, now: int
) -> ConsumerGroup:
    """A group without members and partitions: those come with the first who joins."""
    first = store_generation * _GENERATIONS_EACH
    return ConsumerGroup(scope, name, strategy, REVOKE_MS, first, (), (), now)


def join(group: ConsumerGroup, member: GroupMember, now: int) -> ConsumerGroup:
    """Let somebody in. Who has its name goes: it is the same program, started again, so it gets
    that one's place in the order and its partitions at once.

    Raises:
        Overloaded: `quota-exceeded`: the group has as many members as it may have.
    """
    before = group.named(member.name)
    if before is None:
        if len(group.members) >= MEMBER_COUNT_MAX:
            raise Overloaded(
                "the group has as many members as it may have",
                code=Code.QUOTA_EXCEEDED,
                retry_after_seconds=60,
                facts={"limit": MEMBER_COUNT_MAX},
            )
        members = (*group.members, member)
        return plan(replace(group, members=members, empty_since=None), now)
    members = tuple(member if one is before else one for one in group.members)
    partitions = [_taken_over(one, before.member_id, member.member_id) for one in group.partitions]
    changed = replace(group, members=members)
    return plan(_given(changed, partitions), now)


def leave(group: ConsumerGroup, member_id: MemberId, now: int) -> ConsumerGroup:
    """Let somebody go; what it held goes to others at once."""
    return strike_out(group, {member_id}, now)


def strike_out(group: ConsumerGroup, gone: AbstractSet[MemberId], now: int) -> ConsumerGroup:
    """Strike out who died; what they held goes to others at once, and to none of them on the way."""
    members = tuple(one for one in group.members if one.member_id not in gone)
    partitions = tuple(_without(one, gone) for one in group.partitions)
    empty_since = None if members else now
    return plan(
        replace(group, members=members, partitions=partitions, empty_since=empty_since), now
    )


def release(
    group: ConsumerGroup, index: int, member_id: MemberId, generation: int
) -> ConsumerGroup:
    """Take back what its holder gives over, for whoever follows. What names an earlier holding
    changes nothing: it is late, or comes twice."""
    if not _is_holding(group, index, member_id, generation):
        return group
    freed = tuple(_freed(one) if one.number == index else one for one in group.partitions)
    return _filled(replace(group, partitions=freed))


@guard("the generation in a release")
def _is_holding(group: ConsumerGroup, index: int, member_id: MemberId, generation: int) -> bool:
    if not 0 <= index < len(group.partitions):
        return False
    partition = group.partitions[index]
    return (partition.holder, partition.generation) == (member_id, generation)


def release_overdue(group: ConsumerGroup, now: int) -> ConsumerGroup:
    """Take from their holders what they did not release in time."""
    partitions = tuple(
        _freed(one) if one.revoke_at is not None and one.revoke_at <= now else one
        for one in group.partitions
    )
    return (
        group if partitions == group.partitions else _filled(replace(group, partitions=partitions))
    )


def grow(group: ConsumerGroup, partition_count: int, now: int) -> ConsumerGroup:
    """Let the group have all partitions of its scope; there are never fewer than before."""
    if partition_count <= len(group.partitions):
        return group
    added = tuple(Partition(index) for index in range(len(group.partitions), partition_count))
    return plan(replace(group, partitions=(*group.partitions, *added)), now)


def activate(group: ConsumerGroup, index: int, name: str, now: int) -> ConsumerGroup:
    """Let a member have a partition, whatever the strategy says, until members change next.

    Raises:
        NotFound: `member-expired`: nobody in the group has this name.
        NotFound: `not-found`: there is no such partition.
    """
    member = group.named(name)
    if member is None:
        raise NotFound("no member of the group has this name", code=Code.MEMBER_EXPIRED)
    if index >= len(group.partitions):
        raise NotFound("the group has no such partition", code=Code.NOT_FOUND)
    partitions = [
        _towards(one, member.member_id, now + group.revoke_ms) if one.number == index else one
        for one in group.partitions
    ]
    return _given(group, partitions)


def require_strategy(group: ConsumerGroup, strategy: Strategy | None) -> None:
    """Refuse who expects the group to share in another way than it does.

    Raises:
        WrongOffset: `group-mismatch`.
    """
    if strategy is not None and strategy is not group.strategy:
        raise WrongOffset(
            "the group shares its partitions by another strategy; leave it out, or take that one",
            code=Code.GROUP_MISMATCH,
            facts={"strategy": group.strategy.value},
        )


def held_by(group: ConsumerGroup, member_id: str) -> dict[int, Partition]:
    """What a member holds and may go on with, by the number of the partition."""
    return {
        one.number: one
        for one in group.partitions
        if one.holder == member_id and one.following is None
    }


def revoked_from(group: ConsumerGroup, member_id: str) -> list[Partition]:
    """What a member holds and has to release."""
    return [
        one for one in group.partitions if one.holder == member_id and one.following is not None
    ]


def differs(group: ConsumerGroup, member_id: str, holding: Mapping[int, int]) -> bool:
    """Whether a member has something to do that knows of `holding`, its generations by partition:
    begin with one, stop one, or hand one over."""
    has = {index: one.generation for index, one in held_by(group, member_id).items()}
    return has != dict(holding)


def plan(group: ConsumerGroup, now: int) -> ConsumerGroup:
    """Share all partitions among all members: what is free is given, what has to move is revoked."""
    if not group.members:
        return replace(group, partitions=tuple(_freed(one) for one in group.partitions))
    wanted = _wanted(group)
    revoke_at = now + group.revoke_ms
    return _given(group, [_towards(one, wanted[one.number], revoke_at) for one in group.partitions])


@guard("who follows gets what is released")
def _next_holder(partition: Partition, wanted: MemberId) -> MemberId:
    """The member that gets a partition which nobody holds; `wanted` is the one that the strategy names.
    An operator may have named another one, which is to last until members change."""
    return partition.following or wanted


def _filled(group: ConsumerGroup) -> ConsumerGroup:
    """Give what was released to who follows, or else as the strategy says; all others stay."""
    wanted = _wanted(group)
    partitions = [
        _towards(one, _next_holder(one, wanted[one.number]), 0) if one.holder is None else one
        for one in group.partitions
    ]
    return _given(group, partitions)


def _given(group: ConsumerGroup, partitions: Iterable[Partition]) -> ConsumerGroup:
    """The group with these partitions: each that has another holder than before gets the next
    generation."""
    counter, done = group.counter, []
    for before, after in zip(group.partitions, partitions, strict=True):
        changes_hands = after.holder is not None and after.holder != before.holder
        counter += changes_hands
        done.append(after._replace(generation=counter) if changes_hands else after)
    return replace(group, counter=counter, partitions=tuple(done))


def _towards(partition: Partition, wanted: MemberId, revoke_at: int) -> Partition:
    """The partition on its way to a member: one that nobody holds is there at once."""
    if partition.holder in (None, wanted):
        return partition._replace(holder=wanted, following=None, revoke_at=None)
    # Who is asked to release it gets no more time because another one follows now.
    at = revoke_at if partition.revoke_at is None else partition.revoke_at
    return partition._replace(following=wanted, revoke_at=at)


def _freed(partition: Partition) -> Partition:
    """The partition without its holder, for who follows: `plan` knows it by `following`."""
    if partition.following is None:
        return partition._replace(holder=None, revoke_at=None)
    return partition._replace(holder=None)


def _without(partition: Partition, gone: AbstractSet[MemberId]) -> Partition:
    if partition.following in gone:
        partition = partition._replace(following=None, revoke_at=None)
    return _freed(partition) if partition.holder in gone else partition


def _taken_over(partition: Partition, before: MemberId, after: MemberId) -> Partition:
    if partition.following == before:
        return partition._replace(following=after)
    if partition.holder != before:
        return partition
    # What was revoked from it is free by that: it stopped, if it was started again.
    return _freed(partition) if partition.following else partition._replace(holder=after)


def _wanted(group: ConsumerGroup) -> dict[int, MemberId]:
    """The member that is to have each partition."""
    if len(group.partitions) == 1 or group.strategy is Strategy.STICKY:
        return _sticky(group)
    if group.strategy is Strategy.RANGE:
        return _range(group)
    ids = [one.member_id for one in group.members]
    return {one.number: ids[one.number % len(ids)] for one in group.partitions}


def _range(group: ConsumerGroup) -> dict[int, MemberId]:
    ids = [one.member_id for one in sorted(group.members, key=lambda one: one.name)]
    rooms = _rooms(len(group.partitions), ids)
    return dict(enumerate(member_id for member_id in ids for _ in range(rooms[member_id])))


def _sticky(group: ConsumerGroup) -> dict[int, MemberId]:
    """Leave as many as possible where they are or are going; counts differ by at most one."""
    has: dict[MemberId, list[int]] = {one.member_id: [] for one in group.members}
    for one in group.partitions:
        owner = one.following or one.holder
        if owner is not None:
            has[owner].append(one.number)
    # Who has the most may keep one more than others; of those who have as much, who joined first.
    ranked = sorted(has, key=lambda member_id: -len(has[member_id]))
    rooms = _rooms(len(group.partitions), ranked)
    wanted: dict[int, MemberId] = {}
    for member_id in ranked:
        wanted |= dict.fromkeys(has[member_id][: rooms[member_id]], member_id)
    free = [one.number for one in group.partitions if one.number not in wanted]
    room = [
        member_id
        for member_id in ranked
        for _ in range(rooms[member_id] - min(len(has[member_id]), rooms[member_id]))
    ]
    return wanted | dict(zip(free, room, strict=True))


def _rooms(partition_count: int, ids: Sequence[MemberId]) -> dict[MemberId, int]:
    """How many partitions each may have: the first of them one more, where it does not come out."""
    each, more = divmod(partition_count, len(ids))
    return {member_id: each + (number < more) for number, member_id in enumerate(ids)}
