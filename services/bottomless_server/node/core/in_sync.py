"""Decide who may own a stream with replicas, and what its record says of those that hold it.

Every claim is decided here, also of a stream with one replica, which is as it was without replicas.
The rest is called by replica_records.py, and what an owner waits for by replica_waits.py.

Whatever was acknowledged or shown to a reader, and is not published, lies synced on every node that
is in sync. So each of them may become the owner by one EXEC, without asking another. All functions
are asked again after a conflict, so they have no effects of their own. A refusal changes nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

from bottomless.guards import guard
from bottomless.model.limits import REPLICA_COUNT_MAX
from bottomless.model.names import NodeId
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless_server.node.core import ownership
from bottomless_server.node.core.ownership import LocalView, check_owner, live_epochs

_P = TypeVar("_P")


class Refusal(StrEnum):
    """Why a change of those that hold a stream may not be made now."""

    NOT_HOME = "not-home"
    NOT_A_MEMBER = "not-a-member"
    NOT_IN_SYNC = "not-in-sync"
    IN_SYNC = "in-sync"
    AT_THE_FLOOR = "at-the-floor"
    TOO_MANY = "too-many"
    NOT_LIVE = "not-live"
    IN_SYNC_LIVE = "in-sync-live"
    HOME = "home"
    OF_SUPER = "of-super"


class Refused(Exception):
    """A change that may not be made now; the record stays as it is."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


def may_append(record: StreamRecord) -> bool:
    """Whether enough nodes are in sync for an append to be taken."""
    return len(record.in_sync) >= record.config.replication.least_in_sync


def claim(
    record: StreamRecord,
    mine: NodeId,
    owner_url: str,
    local: LocalView,
    chosen: Collection[NodeId] = (),
    *,
    home_held: bool,
) -> StreamRecord:
    """The record after this node claimed the stream, under the next epoch.

    A dirty stream is claimed by its home, or by a node that is in sync and has its log. A clean one by
    any: all is published, so its members are chosen anew, and this node alone is in sync. `home_held`:
    whether the lease of the home is held, if that is another node. A stream with one replica is claimed
    as `ownership.claim` says, and nothing else is written.

    Raises:
        NotFound: the stream is being deleted.
        Unavailable: `not-owner`, `coordination-regressed`, `storage-failed`; nothing changes.
    """
    if not record.dirty:
        claimed = ownership.claim(record, mine, owner_url, local, home_held=home_held)
        return _said(claimed, (mine, *sorted(set(chosen) - {mine})), (mine,))
    if not home_held and may_go_on(record, mine):
        # What lies here is the stream's own log, as the home's is, and is held to the same rules.
        record = replace(record, home=mine)
    claimed = ownership.claim(record, mine, owner_url, local, home_held=home_held)
    return replace(claimed, epochs=epochs_as_here(claimed, local)) if record.members else claimed


@guard("the epochs of the log that goes on")
def epochs_as_here(claimed: StreamRecord, local: LocalView) -> tuple[EpochStart, ...]:
    """The epochs of a record that was claimed, as the log has them that goes on.

    Owners in between may have claimed with more than all in sync have, or with less than this one, and
    died before anybody else heard of it. Nothing of their epochs was shown, and nothing of them is in this
    log; what is uploaded of it has the epochs of its chunks, and would be refused under theirs.
    """
    newest = claimed.epochs[-1]
    known = tuple(one for one in claimed.epochs[:-1] if one.first_offset <= newest.first_offset)
    if local.epochs:
        first = local.epochs[0]
        before = [
            one
            for one in known
            if one.first_offset < first.first_offset and one.epoch < first.epoch
        ]
        known = (*before, *local.epochs)
    return live_epochs(replace(claimed, epochs=(*known, newest)))


@guard("the in-sync set in a claim")
def may_go_on(record: StreamRecord, mine: NodeId) -> bool:
    """Whether a node has everything that a dirty stream has acknowledged.

    One that had no replicas so far lies at its home alone.
    """
    return mine in record.in_sync if record.members else mine == record.home


def admit(record: StreamRecord, mine: NodeId, epoch: int, node: NodeId) -> StreamRecord:
    """The record after a member that has everything was counted in.

    Raises:
        Fenced: somebody claimed the stream since.
        Refused: `not-home`, or `not-a-member`.
    """
    check_home(record, mine, epoch)
    _require(node in record.members, Refusal.NOT_A_MEMBER)
    if node in record.in_sync:
        return record
    return replace(record, in_sync=(*record.in_sync, node))


def evict(record: StreamRecord, mine: NodeId, epoch: int, node: NodeId) -> StreamRecord:
    """The record after a node that does not answer is not waited for any more.

    Raises:
        Fenced: somebody claimed the stream since.
        Refused: `not-home`, or `at-the-floor`: too few would be left, so the round waits.
    """
    check_home(record, mine, epoch)
    assert node != mine
    if node not in record.in_sync:
        return record
    _require(leaves_enough(record), Refusal.AT_THE_FLOOR)
    return replace(record, in_sync=tuple(one for one in record.in_sync if one != node))


def settled(record: StreamRecord, mine: NodeId, epoch: int) -> StreamRecord:
    """The record as it is, to be written by its owner so that nothing which was asked before lands.

    Raises:
        Fenced: somebody claimed the stream since.
        Refused: `not-home`.
    """
    check_home(record, mine, epoch)
    return record


@guard("the floor of the in-sync set")
def leaves_enough(record: StreamRecord) -> bool:
    """Whether one node fewer is still enough."""
    return len(record.in_sync) > record.config.replication.least_in_sync


def set_members(
    record: StreamRecord, mine: NodeId, epoch: int, members: Collection[NodeId]
) -> StreamRecord:
    """The record with other members; those that go have been evicted before.

    Raises:
        Fenced: somebody claimed the stream since.
        Refused: `not-home`, `in-sync` or `too-many`.
    """
    check_home(record, mine, epoch)
    _require(set(record.in_sync or (mine,)) <= set(members), Refusal.IN_SYNC)
    _require(len(set(members)) <= REPLICA_COUNT_MAX, Refusal.TOO_MANY)
    kept = [one for one in record.members or (mine,) if one in members]
    said = (*kept, *sorted(set(members) - set(kept)))
    return _said(record, said, record.in_sync or (mine,))


def with_member(record: StreamRecord, mine: NodeId, epoch: int, node: NodeId) -> StreamRecord:
    """The record with one member more, on the word of an operator; there are to be as many from now on.

    Raises:
        Fenced: somebody claimed the stream since.
        Refused: `not-home` or `too-many`; `of-super`: it is a partition that has as many as its super
            stream wants.
    """
    check_home(record, mine, epoch)
    # Of a stream with one replica the owner is all of them, and the record does not say so.
    held = record.members or (mine,)
    if node in held:
        return record
    members = (*held, node)
    _require(len(members) <= REPLICA_COUNT_MAX, Refusal.TOO_MANY)
    wanted = max(record.config.replication.replicas, len(members))
    return _said(_wanting(record, wanted), members, record.in_sync or (mine,))


def without_member(record: StreamRecord, mine: NodeId, epoch: int, node: NodeId) -> StreamRecord:
    """The record with one member less, on the word of an operator, in sync or not; as many as are left are
    wanted from now on. Of a partition that too many hold the number stays its super stream's.

    Raises:
        Fenced: somebody claimed the stream since.
        Refused: `not-home`; `home` of the owner itself; `at-the-floor`: too few would be in sync, by
            the number that is wanted then; `of-super`: it is a partition that has no more than its super
            stream wants.
    """
    check_home(record, mine, epoch)
    _require(node != mine, Refusal.HOME)
    if node not in record.members:
        return record
    members = tuple(one for one in record.members if one != node)
    in_sync = tuple(one for one in record.in_sync if one != node)
    too_many = len(members) >= record.config.replication.replicas
    of_super = record.partition_of is not None and too_many
    wanting = record if of_super else _wanting(record, len(members))
    left_alone = in_sync == record.in_sync
    _require(
        left_alone or len(in_sync) >= wanting.config.replication.least_in_sync, Refusal.AT_THE_FLOOR
    )
    return _said(wanting, members, in_sync)


def _wanting(record: StreamRecord, replicas: int) -> StreamRecord:
    """The record with another number of replicas in its configuration."""
    replication = record.config.replication
    if replication.replicas == replicas:
        return record
    # What a partition wants is said of its super stream, and of all partitions alike.
    _require(record.partition_of is None, Refusal.OF_SUPER)
    least = replication.min_in_sync
    _require(least is None or least <= replicas, Refusal.AT_THE_FLOOR)
    wanted = replication.model_copy(update={"replicas": replicas})
    return replace(
        record,
        config=record.config.model_copy(update={"replication": wanted}),
        config_version=record.config_version + 1,
        registry_version=record.registry_version + 1,
    )


def transfer(
    record: StreamRecord, mine: NodeId, epoch: int, target: NodeId, url: str, *, live: bool
) -> StreamRecord:
    """The record after an owner that has stopped gave its place to a node in sync, which claims.

    The epoch stays, so every EXEC of an owner looks at the home too. `live`: whether the lease of
    the target is held.

    Raises:
        Fenced: somebody claimed the stream since.
        Refused: `not-home`, `not-in-sync` or `not-live`.
    """
    check_home(record, mine, epoch)
    _require(target in record.in_sync, Refusal.NOT_IN_SYNC)
    _require(live, Refusal.NOT_LIVE)
    return replace(record, home=target, owner_url=url)


def reserve(record: StreamRecord, mine: NodeId, epoch: int, next_offset: int) -> StreamRecord:
    """The record after the owner may acknowledge up to `next_offset`, and more.

    Raises:
        Fenced: somebody claimed the stream since.
        Refused: `not-home`.
    """
    check_home(record, mine, epoch)
    return ownership.reserve(record, epoch, next_offset)


def leave_clean(record: StreamRecord, mine: NodeId, epoch: int, next_offset: int) -> StreamRecord:
    """The record after a stop at which object storage holds everything.

    Raises:
        Fenced: somebody claimed the stream since.
        Unavailable: not everything is published, so the stream stays dirty.
        Refused: `not-home`.
    """
    check_home(record, mine, epoch)
    return ownership.leave_clean(record, epoch, next_offset)


def take_over(
    record: StreamRecord,
    fenced: StreamRecord,
    live: Collection[NodeId],
    node: NodeId | None = None,
) -> StreamRecord:
    """The record after an operator gave up those that are in sync; `fenced` is what a takeover
    makes of the stream's record today.

    Nobody is in sync then; or, where a member is named that goes on with what it has, it alone. Of a
    clean stream all is published, so nobody has to go on. `live`: the nodes whose leases are held.

    Raises:
        Refused: `in-sync-live`: one of those that have everything lives, and can go on;
            `not-a-member`.
    """
    _require(not is_any_live(record, live), Refusal.IN_SYNC_LIVE)
    if node is None or not fenced.dirty:
        return replace(fenced, in_sync=())
    _require(node in record.members, Refusal.NOT_A_MEMBER)
    return replace(fenced, home=node, in_sync=(node,))


@guard("no takeover while a node in sync lives")
def is_any_live(record: StreamRecord, live: Collection[NodeId]) -> bool:
    """Whether a node lives that has everything which was acknowledged."""
    return any(node in live for node in record.in_sync)


def check_home(record: StreamRecord, mine: NodeId, epoch: int) -> None:
    """Refuse what an owner of the past asks for, also one that gave its place away.

    Raises:
        Fenced: somebody claimed the stream since, or it is being deleted.
        Refused: `not-home`.
    """
    check_owner(record, epoch)
    _require(is_home(record, mine), Refusal.NOT_HOME)


@guard("the home in the EXECs of an owner with replicas")
def is_home(record: StreamRecord, mine: NodeId) -> bool:
    """Whether the stream is still at this node: a transfer keeps the epoch."""
    return record.home == mine


@guard("waiting for all that are in sync")
def all_have(counted: Collection[NodeId], have: Mapping[NodeId, _P], place: _P) -> bool:
    """Whether every node that may be in sync has synced a log up to a place, or beyond.

    `counted` is the set of the newest record that the owner has read, with those whose admission or
    eviction had no reply, is under way, or may still land: one too many is safe. `have` are the ends that nodes said under this
    epoch, and the owner's own synced end. So what is found at a claim is shown when all have it.
    """
    return all(node in have and have[node] >= place for node in counted)  # type: ignore[operator]


@guard("all that was found, shown before a stream is left")
def holds_all(*, waits: bool, committed: _P, synced: _P) -> bool:
    """Whether a stream ends where the log of its owner does, which may be said of a stream that is left.

    `waits`: what was found at the claim waits for other nodes, or the log has failed. Of a disk that came
    back older, or empty, others have more: a clean stream would go on from here, and their logs would
    be put away.
    """
    return not waits and committed == synced


@guard("admission after all rounds")
def may_be_admitted(have: _P | None, written: _P | None) -> bool:
    """Whether a member has answered for everything that the owner has written, and not only for
    what came before the round under way. Of an empty log that is nothing: it has been opened."""
    return written is None or (have is not None and have >= written)  # type: ignore[operator]


def _said(
    record: StreamRecord, members: tuple[NodeId, ...], in_sync: tuple[NodeId, ...]
) -> StreamRecord:
    """Write down who holds a stream, unless it is one node and no other is wanted: that says `home`."""
    if len(members) == 1 and record.config.replication.replicas == 1:
        members = in_sync = ()
    return replace(record, members=members, in_sync=in_sync)


def _require(fact: bool, refusal: Refusal) -> None:
    if not fact:
        raise Refused(refusal)
