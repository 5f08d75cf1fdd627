"""Decide who loses a stream to a takeover, what still belongs to it, and where it goes on. Pure.

The order is what makes it safe: the epoch exists, by one EXEC, before any root of it does. A
root that was put for a takeover that did not happen could not be told from the newest one
after a loss of coordination, since there only the keys of the roots are left to rank them.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from bottomless.errors import Code, Fenced
from bottomless.guards import guard
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import Node
from bottomless.model.names import NodeId
from bottomless.model.stream import (
    NOBODY,
    EpochStart,
    StreamRecord,
    epoch_at,
    gap_due,
    is_unknown_epoch,
)
from bottomless_server.manifest.tree.core.events import TakeOver
from bottomless_server.manifest.tree.core.rebuild_decision import TreeEnd
from bottomless_server.tree.resolve import epoch_covers


def is_done(record: StreamRecord, home: NodeId, epoch: int) -> bool:
    """Whether nothing is left to do of a takeover from `home`, which had `epoch`."""
    if gap_due(record) is not None or record.home == home:
        return False
    return record.epoch > epoch or home == NOBODY


@guard("the home's lease, at the fence of a takeover")
def fence(record: StreamRecord, home: NodeId, epoch: int, *, home_held: bool) -> StreamRecord:
    """The record after its home has lost it; a gap is due then, unless all of it is published.

    What the home reserved, it may have acknowledged: `reserved_next` stays, and says where the
    gap ends. The version grows too, so that no root of the old epoch has one as high.

    Raises:
        Fenced: `home-live`: the home is alive, or the stream is another's by now.
    """
    if gap_due(record) is not None and record.epoch == epoch + 1:
        # The attempt whose reply was lost did arrive.
        return record
    if home_held or (record.home, record.epoch) != (home, epoch):
        raise home_live(record)
    fenced = replace(record, epoch=epoch + 1, version=record.version + 1, owner_url=None)
    return replace(fenced, home=NOBODY) if record.dirty else without_home(fenced)


class GoesOn(NamedTuple):
    """A member that goes on with what it holds, in place of a gap."""

    node: NodeId
    next_offset: int
    """Where its log ends, as it said itself (exclusive)."""
    held_epoch: int | None = None
    """The highest under which its log was opened; None: it was not asked."""


def require_reaches(record: StreamRecord, named: GoesOn) -> None:
    """Refuse a member whose log ends before what is published: it could never go on from there.

    Raises:
        Fenced: `not-in-sync`.
    """
    if not reaches(record, named.next_offset):
        raise cannot_go_on("the node's log ends before what is in object storage")


@guard("a log that reaches what is published, in a takeover by a node")
def reaches(record: StreamRecord, next_offset: int) -> bool:
    """Whether a log that ends there lacks nothing of what is published."""
    return record.published_next <= next_offset


def require_seen(root: Node, named: GoesOn) -> None:
    """Refuse a member that never heard of the owner who wrote the last of what is published: what lies there
    at these offsets and after them may be something else that nobody acknowledged.

    Raises:
        Fenced: `not-in-sync`.
    """
    if not has_seen(root, named):
        raise cannot_go_on("the node has not heard of who wrote what is in object storage")


@guard("the epoch of what is published, in a takeover by a node")
def has_seen(root: Node, named: GoesOn) -> bool:
    """Whether a log was opened under the last epoch that is published, or a later one."""
    published = int(root.entries["last_epoch"][-1]) if len(root.entries) else 0
    return named.held_epoch is None or named.held_epoch >= published


@guard("where a log ends that goes on after a takeover")
def going_on_from(record: StreamRecord, named: GoesOn) -> StreamRecord:
    """The record of a stream that a member goes on with: what it does not hold is given up, so no epoch of
    before is to write there any more.

    A fragment of the lost owner may be registered later than this; it would be published past the log of
    the member, which could never go on then. If that log has become longer since it was asked, its claim
    says where it ends.
    """
    if not record.dirty:
        return record
    kept = [one for one in record.epochs if one.first_offset <= named.next_offset]
    return replace(record, epochs=(*kept, EpochStart(record.epoch, named.next_offset)))


def cannot_go_on(why: str) -> Fenced:
    """The node that an operator names cannot be the home of the stream."""
    return Fenced(why, code=Code.NOT_IN_SYNC, retry_after_seconds=5)


def end_of_takeover(record: StreamRecord) -> TakeOver | None:
    """The edit that ends a takeover; None where no takeover waits for its end.

    The next offset of the stream is the first one that the lost home never reserved. All below it
    may have been acknowledged, so a gap goes up to there, and no offset is used twice.
    """
    next_offset = gap_due(record)
    return None if next_offset is None else TakeOver(next_offset)


def without_home(record: StreamRecord) -> StreamRecord:
    """Anybody may claim it now, from its end on."""
    return replace(
        record,
        home=None,
        owner_url=None,
        dirty=False,
        reserved_next=max(record.reserved_next, record.published_next),
        epochs=(EpochStart(record.epoch, record.published_next),),
    )


def going_on(
    record: StreamRecord, end: TreeEnd, found: Collection[FragmentInfo]
) -> FragmentInfo | None:
    """The fragment that goes on from `end`, of several that are whole; None if none does.

    The owner cannot be asked: its log is given up. What it uploaded was synced before, and
    nothing is left that could say otherwise; only a later epoch can have written the same
    offsets anew, and `epochs` says so. Where a rebuild forgot those, epochs may not go back.
    """
    fitting = [
        fragment
        for fragment in found
        if epoch_covers(record, fragment)
        and fragment.first_offset == end.next_offset
        and fragment.first_timestamp >= end.timestamp
        and (fragment.epoch >= end.epoch or _is_known(record, fragment))
    ]
    return max(fitting, key=lambda one: (one.epoch, one.next_offset), default=None)


def _is_known(record: StreamRecord, fragment: FragmentInfo) -> bool:
    epoch = epoch_at(record, fragment.first_offset)
    return epoch is not None and not is_unknown_epoch(epoch)


def home_live(record: StreamRecord) -> Fenced:
    return Fenced(
        "the home of the stream is alive, or it is not the one that expect_home names",
        code=Code.HOME_LIVE,
        facts={"home": record.home, "epoch": record.epoch},
        retry_after_seconds=5,
    )


def in_sync_live(record: StreamRecord) -> Fenced:
    """Nothing needs to be given up: a node that has everything goes on."""
    return Fenced(
        "a node lives that has everything which the stream holds, and becomes its owner",
        code=Code.IN_SYNC_LIVE,
        facts={"home": record.home, "epoch": record.epoch},
        retry_after_seconds=5,
    )
