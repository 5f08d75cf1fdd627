"""Decide what the owner of a stream with replicas does as long as a round is not on all its disks.

Only `ingest/replicas/` calls this: other_nodes.py for a round, joins.py for a member.
A round is shown when every node has it that is in sync. One that is silent is evicted first, by an EXEC
on the record, and then the round goes on without it: who is in sync may become the owner, and would not
have the round. Where too few would be left, the round is held until somebody answers, or until another
member has caught up and is admitted.

Times are milliseconds of the monotonic clock.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from bottomless.guards import guard
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.node.core.in_sync import all_have, may_be_admitted
from bottomless_server.protocol.replica import Place

JOIN_MS_MAX: Final = 60_000
"""A node that is evicted again and again is admitted again after this time at the latest."""


class WaitBounds(NamedTuple):
    """How long an owner waits."""

    wait_ms: int
    """A node in sync that says nothing for so long is evicted."""
    commit_ms: int
    """After so long the callers of a round are told that its outcome is unknown. Appends wait for so
    long after a claim until enough nodes are in sync, and are refused from then on."""
    join_ms: int
    """A member that was evicted once has had everything for so long before it is admitted."""
    replace_ms: int = 600_000
    """A member without a lease for so long is replaced."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a node has said under this epoch, as its owner heard it."""

    end: Place | None = None
    """Where its synced log ends; None before it was opened."""
    at: int = 0
    """When it was heard last, with something that this owner did not know."""
    failed: bool = False
    """Whether it said that it takes nothing now; one that is not reached has said nothing."""
    evictions: int = 0
    """How often it was evicted under this epoch."""
    caught_up_at: int | None = None
    """When it had everything for the first time since it was evicted; None: it has lacked something
    since."""


@dataclass(frozen=True, slots=True)
class Holders:
    """The nodes that hold a stream, by the newest record that its owner has read."""

    mine: NodeId
    members: tuple[NodeId, ...]
    in_sync: tuple[NodeId, ...]
    least: int
    """Nodes in sync below which none is evicted, and no append is taken."""
    doubted: frozenset[NodeId] = frozenset()
    """Nodes whose admission or eviction is under way, or had no reply and was not settled since: to read
    the record is not enough, as it may still land."""

    @classmethod
    def of(cls, record: StreamRecord, mine: NodeId) -> "Holders":
        """Read who holds a stream from its record."""
        least = record.config.replication.least_in_sync
        if not record.members:
            # So far it lies at its home alone.
            return cls(mine, (mine,), (mine,), least)
        return cls(mine, record.members, record.in_sync, least)

    @property
    def counted(self) -> frozenset[NodeId]:
        """Nodes that may be in sync: one too many is only waited for."""
        return frozenset(self.in_sync) | self.doubted

    @property
    def are_enough(self) -> bool:
        """Whether so many are in sync, beyond doubt, that a round may be begun."""
        return len(set(self.in_sync) - self.doubted) >= self.least


def heard_from(one: Said, end: Place, written: Place, now: int) -> Said:
    """What a node has said, when it says that its log ends at a place, and ours was written up to another."""
    caught_up_at = one.caught_up_at
    if caught_up_at is None and end >= written:
        caught_up_at = now
    at = one.at if end == one.end else now
    return replace(one, end=end, at=at, failed=False, caught_up_at=caught_up_at)


def unheard(one: Said) -> Said:
    """What a node has said, when nobody knows any more what it has."""
    return replace(one, end=None, caught_up_at=None)


def let_go(one: Said, written: Place, now: int) -> Said:
    """What a node has said, when it was evicted. It may have everything by now, since an eviction
    takes its time: then it waits from now on."""
    has_all = one.end is not None and one.end >= written
    return replace(one, evictions=one.evictions + 1, caught_up_at=now if has_all else None)


class Waited(NamedTuple):
    """A round that this disk has synced, or the log as it was found at the claim."""

    end: Place
    """Where the log ends with it."""
    since: int
    """When it was sent."""


class Do(StrEnum):
    """What an owner does next about a round."""

    SHOW = "show"
    """All have it: it is committed."""
    EVICT = "evict"
    """The round may go on without a node once the record says that it is not in sync."""
    ADMIT = "admit"
    """A member has everything, and is needed so that another may be evicted."""
    TAKE_BACK = "take-back"
    """A node has more than this one, and was evicted before that was heard: it has to be in sync again, so
    that it can become the owner."""
    SETTLE = "settle"
    """The round waits for somebody, and nobody knows of a node whether it is in sync: an EXEC tells."""
    WAIT = "wait"


class Step(NamedTuple):
    """The next thing to do; after an EXEC, a word of a node, or at `again_at` it is decided anew."""

    do: Do
    node: NodeId | None = None
    again_at: int | None = None
    """When a node has been silent for too long; None if only the word of somebody can change this."""


def next_step(
    holders: Holders,
    said: Mapping[NodeId, Said],
    waited: Waited,
    now: int,
    bounds: WaitBounds,
    ahead: Collection[NodeId] = (),
) -> Step:
    """Decide what is done about a round that is synced here.

    `ahead`: nodes that said that they have more than this one, and were in sync when it last showed
    anything. One of them may be the only one that has what was acknowledged: nothing is shown and nobody
    let go before it owns the stream. One that is not in sync, or of which nobody knows, is taken back.
    """
    if ahead:
        back = to_take_back(holders, ahead)
        return Step(Do.TAKE_BACK, back[0]) if back else Step(Do.WAIT)
    have = {node: one.end for node, one in said.items() if one.end is not None}
    have[holders.mine] = waited.end
    if all_have(holders.counted, have, waited.end):
        return Step(Do.SHOW)
    due = sorted(_due(holders, said, have, waited, bounds))
    if due and due[0][0] <= now:
        silent = [node for at, node in due if at <= now]
        for node in silent:
            if len(holders.in_sync) > holders.least or node in holders.doubted:
                return Step(Do.EVICT, node)
        joining = joiner(holders, said, waited.end, now, bounds)
        if joining is not None:
            return Step(Do.ADMIT, joining)
        if holders.doubted:
            return Step(Do.SETTLE)
    later = [at for at, _ in due if at > now]
    return Step(Do.WAIT, again_at=min(later, default=None))


@guard("a node that has more, back in sync before anything is shown")
def to_take_back(holders: Holders, ahead: Collection[NodeId]) -> list[NodeId]:
    """Name those that have more than this node, and could not be given the stream: their eviction was under
    way when they said so, or was done a moment before."""
    return sorted(one for one in ahead if one not in holders.in_sync or one in holders.doubted)


def joiner(
    holders: Holders,
    said: Mapping[NodeId, Said],
    written: Place | None,
    now: int,
    bounds: WaitBounds,
) -> NodeId | None:
    """A member that may be counted in now: it has all that was written, and was not evicted a short
    time ago. The same at all times where there are several: in the order of the record."""
    for node in holders.members:
        if node in holders.counted or node not in said:
            continue
        one = said[node]
        if one.end is None or not may_be_admitted(one.end, written):
            continue
        if now - (now if one.caught_up_at is None else one.caught_up_at) >= join_wait(
            one.evictions, bounds
        ):
            return node
    return None


def join_wait(evictions: int, bounds: WaitBounds) -> int:
    """How long a member has had everything before it is admitted, in ms: twice as long after each
    eviction. After a claim nobody waits, or the first append to a new stream would be refused."""
    if not evictions:
        return 0
    return min(bounds.join_ms << min(evictions - 1, 16), JOIN_MS_MAX)


def is_late(waited: Waited, now: int, bounds: WaitBounds) -> bool:
    """Whether callers are answered before the round is: it is stored here and may be shown later."""
    return now - waited.since >= bounds.commit_ms


def refuses(holders: Holders, claimed_at: int, now: int, bounds: WaitBounds) -> bool:
    """Whether appends are refused, since too few nodes are in sync; for a while after a claim they
    wait for the first ones instead."""
    return not holders.are_enough and now - claimed_at >= bounds.commit_ms


def _due(
    holders: Holders,
    said: Mapping[NodeId, Said],
    have: Mapping[NodeId, Place],
    waited: Waited,
    bounds: WaitBounds,
) -> Iterator[tuple[int, NodeId]]:
    """When each node that lacks something has been silent for too long."""
    for node in holders.counted - {holders.mine}:
        if node in have and have[node] >= waited.end:
            continue
        one = said.get(node, Said())
        # Who catches up a long log says something all the time, and is not silent.
        yield (
            waited.since if one.failed else max(one.at, waited.since) + bounds.wait_ms,
            node,
        )
