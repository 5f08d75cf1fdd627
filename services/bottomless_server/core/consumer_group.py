"""A consumer group as coordination keeps it: its members, and who holds which partition. Pure.

A group shares the partitions of a *scope*: the one partition, number 0, of a stream, or those of a super
stream. What changes a group is decided in `manifest/consumers/core/groups.py` and written by
`stores/groups.py`.
Spec: docs/formats.md, "Consumer groups".
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, NewType

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import check, corrupt
from bottomless.model.limits import TIMESTAMP_MAX
from bottomless.model.names import Reference, parse_reference

MemberId = NewType("MemberId", str)
"""The id of a member, and its capability: 128 random bits, in hex, told to nobody else."""

MEMBER_COUNT_MAX: Final = 256
GENERATION_MAX: Final = 2**53 - 1
"""The largest whole number that every reader of JSON keeps exactly."""
_FORMAT: Final = 1
_REMEMBERED_SIZE_MAX: Final = 16_384
"""A group of some 270 members; what is decoded takes ten times as much memory."""
_WHAT: Final = "consumer group"
_MEMBERS: Final = frozenset(
    ("format", "scope", "group", "strategy", "revoke_ms", "counter", "members", "partitions")
) | {"created_at", "empty_since"}


class Strategy(StrEnum):
    """How the partitions of a scope that has several are shared."""

    STICKY = "sticky"
    """Partitions stay where they are: as few as possible move."""
    RANGE = "range"
    """Neighbours together, in the order of members' names."""
    MODULO = "modulo"
    """Partition i goes to member i mod n, in the order in which they joined."""


class GroupMember(NamedTuple):
    """One member of a group, in the order in which they joined."""

    member_id: MemberId
    name: Reference
    joined_at: int
    """Milliseconds since 1970 by the clock of coordination."""
    lease_ms: int


class Partition(NamedTuple):
    """One partition: who holds it, and who gets it next."""

    number: int
    """The number of the partition, counted from 0."""
    holder: MemberId | None = None
    generation: int = 0
    """The generation of its holder, or of the last one; 0 where nobody ever held it."""
    following: MemberId | None = None
    """The member that gets it once its holder has released it; None where it stays."""
    revoke_at: int | None = None
    """When it is taken from its holder, by the clock of coordination."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """All of one group."""

    scope: str
    """The id of the stream."""
    name: Reference
    strategy: Strategy
    revoke_ms: int
    """How long a holder may take to release what is revoked."""
    counter: int
    """The highest generation that was given to a holder; grows only."""
    members: tuple[GroupMember, ...]
    partitions: tuple[Partition, ...]
    created_at: int
    empty_since: int | None = None
    """Since when nobody is in it, so that nobody holds a partition; None while somebody is."""

    def member(self, member_id: str) -> GroupMember | None:
        """The member that has an id."""
        return next((one for one in self.members if one.member_id == member_id), None)

    def named(self, name: str) -> GroupMember | None:
        """The member that has a name."""
        return next((one for one in self.members if one.name == name), None)

    def check(self) -> None:
        """Assert what is true of every group at every time."""
        ids = {one.member_id for one in self.members}
        assert len(ids) == len({one.name for one in self.members}) == len(self.members)
        assert len(self.members) <= MEMBER_COUNT_MAX
        assert [one.number for one in self.partitions] == list(range(len(self.partitions)))
        given = [one.generation for one in self.partitions if one.generation]
        assert len(set(given)) == len(given), "two partitions have one generation"
        assert max(given, default=0) <= self.counter <= GENERATION_MAX
        for one in self.partitions:
            assert one.holder in ids if self.members else one.holder is None
            assert one.holder is None or one.generation
            assert (one.following is None) == (one.revoke_at is None)
            assert one.following is None or one.following in ids - {one.holder}


def encode_group(group: ConsumerGroup) -> bytes:
    """Encode the value of a group's key in coordination: JSON."""
    return orjson.dumps(
        {
            "format": _FORMAT,
            "scope": group.scope,
            "group": group.name,
            "strategy": group.strategy,
            "revoke_ms": group.revoke_ms,
            "counter": group.counter,
            "members": [list(one) for one in group.members],
            "partitions": [list(one) for one in group.partitions],
            "created_at": group.created_at,
            "empty_since": group.empty_since,
        }
    )


def decode_group(data: bytes) -> ConsumerGroup:
    """Read what `encode_group` wrote.

    Heartbeats of all members of a group read the same value again and again, so the last ones that
    are not large are remembered: some 50 MB at most.

    Raises:
        Corrupt: it is not such a value, or of a later release.
    """
    return _remembered(data) if len(data) <= _REMEMBERED_SIZE_MAX else _decoded(data)


@lru_cache(maxsize=256)
def _remembered(data: bytes) -> ConsumerGroup:
    return _decoded(data)


def _decoded(data: bytes) -> ConsumerGroup:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise corrupt(_WHAT, "it is not JSON") from error
    check(_WHAT, isinstance(value, dict), "it is no object")
    check(_WHAT, value.get("format") == _FORMAT, "its format is another one")
    check(_WHAT, value.keys() == _MEMBERS, "it has other members")
    try:
        group = ConsumerGroup(
            scope=_text(value["scope"]),
            name=parse_reference(_text(value["group"])),
            strategy=Strategy(value["strategy"]),
            revoke_ms=_count(value["revoke_ms"]),
            counter=_count(value["counter"]),
            members=tuple(_member(*row) for row in value["members"]),
            partitions=tuple(_partition(*row) for row in value["partitions"]),
            created_at=_count(value["created_at"]),
            empty_since=_count_or_none(value["empty_since"]),
        )
        group.check()
    except (InvalidRequest, TypeError, ValueError, AssertionError) as error:
        raise corrupt(_WHAT, "it contradicts itself") from error
    return group


def encode_holder(partition: Partition) -> bytes | None:
    """Encode the copy of a partition's holder that commits and reads look at; None of nobody."""
    if partition.holder is None:
        return None
    return orjson.dumps([partition.holder, partition.generation])


def decode_holder(data: bytes | None) -> tuple[MemberId, int] | None:
    """Read what `encode_holder` wrote: who holds a partition, and with which generation.

    Raises:
        Corrupt: it is not such a value.
    """
    if data is None:
        return None
    try:
        holder, generation = orjson.loads(data)
        return MemberId(_text(holder)), _count(generation)
    except (TypeError, ValueError) as error:
        raise corrupt("holder of a partition", "it is no pair of member and number") from error


def _member(member_id: Any, name: Any, joined_at: Any, lease_ms: Any) -> GroupMember:
    named = parse_reference(_text(name))
    return GroupMember(MemberId(_text(member_id)), named, _count(joined_at), _count(lease_ms))


def _partition(
    number: Any, holder: Any, generation: Any, following: Any, revoke_at: Any
) -> Partition:
    return Partition(
        _count(number),
        None if holder is None else MemberId(_text(holder)),
        _count(generation),
        None if following is None else MemberId(_text(following)),
        _count_or_none(revoke_at),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _count(value: Any) -> int:
    # Not isinstance: JSON's true is not a number.
    if type(value) is not int or not 0 <= value <= max(TIMESTAMP_MAX, GENERATION_MAX):
        raise TypeError("not a number of its range")
    return value


def _count_or_none(value: Any) -> int | None:
    return None if value is None else _count(value)
