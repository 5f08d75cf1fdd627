"""Decide which node may own a stream, and what the record says afterwards.

The record in coordination names the home: the data directory that holds the tail. While
it is dirty, the home may hold records that object storage does not, and nobody else may
claim it, however long the home is silent. All functions are asked again after a conflict,
so they have no effects of their own.
"""

from dataclasses import dataclass, replace
from typing import Final

from bottomless.errors import Code, Fenced, Outcome, Unavailable
from bottomless.guards import guard
from bottomless.model.names import NodeId
from bottomless.model.stream import NOBODY, EpochStart, StreamRecord, StreamState
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.core.regressed import coordination_outdated

STREAM: Final = "the stream"
"""What errors call that which a node of ingest owns."""
RESERVE_COUNT: Final = 1_000_000
"""Offsets reserved at once. Lost with a lost disk, of 2^53; each block costs one EXEC."""


@dataclass(frozen=True, slots=True)
class LocalView:
    """What this node's disk says of a stream."""

    next_offset: int
    empty: bool
    """No record lies here, and no record ever did as far as the disk knows."""
    epoch: int = 0
    version: int = 0
    published_next: int = 0
    """The highest that this disk has seen of each in coordination."""
    epochs: tuple[EpochStart, ...] = ()
    """Where the chunks of each epoch begin in the log here; nothing of one without chunks."""

    @property
    def published(self) -> bool:
        """Whether object storage holds every record that lies here, as far as the disk knows."""
        return self.next_offset <= self.published_next


def claim(
    record: StreamRecord, mine: NodeId, owner_url: str, local: LocalView, *, home_held: bool
) -> StreamRecord:
    """The record after this node claimed the stream; its last epoch is the new one.

    The home claims at any time: its directory has a lock, so its own old lease cannot be
    somebody else. Others claim only a clean stream whose home's lease is gone.

    Raises:
        NotFound: the stream is being deleted.
        Unavailable: `not-owner`, `coordination-regressed`, `storage-failed`; nothing changes.
    """
    if record.state is not StreamState.ACTIVE:
        raise stream_not_found()
    if not has_owners(record):
        raise not_owner()
    if record.home is not None and record.home != mine and (record.dirty or home_held):
        # A home with this node's own address is a disk that was here before, and is gone.
        if home_held and record.owner_url not in (None, owner_url):
            assert record.owner_url is not None
            raise OwnedElsewhere(record.owner_url)
        raise not_owner()
    if not local.empty and is_outdated(record, mine, local):
        # It was not when it was looked at: the gap of a takeover has come meanwhile. What lies
        # here must not go on after that gap; the next opening sets it aside.
        raise not_owner()
    first_offset = start_of(record, mine, local)
    epoch = record.epoch + 1
    return replace(
        record,
        epoch=epoch,
        home=mine,
        owner_url=owner_url,
        epochs=(*live_epochs(record), EpochStart(epoch, first_offset)),
    )


@guard("the profile of a stream that is claimed")
def has_owners(record: StreamRecord) -> bool:
    """Whether a node may own the stream. A leaderless one looks as if anybody might claim it: it is
    clean and has no home. Its tail in coordination would be forgotten."""
    return not record.config.leaderless


@guard("what the bucket knows of a home")
def is_noted(claimed: StreamRecord, home_before: NodeId | None, local: LocalView) -> bool:
    """Whether the bucket says already that a stream is here which this node has just claimed.

    The epoch before was this node's own, and something was written under it. Of a stream with
    replicas nobody can tell: a follower's disk has seen the epoch of its owner, and a transfer gives
    it the home under that.
    """
    return not claimed.members and home_before == claimed.home and local.epoch == claimed.epoch - 1


def start_of(record: StreamRecord, mine: NodeId, local: LocalView) -> int:
    """The next offset under this node's ownership: its log's, or the published one.

    Raises:
        Unavailable: coordination, or this disk, shows less than it once did.
    """
    seen = (local.epoch, local.version, local.published_next)
    shown = (record.epoch, record.version, record.published_next)
    if any(a < b for a, b in zip(shown, seen, strict=True)):
        raise coordination_outdated("coordination shows less than this node has seen")
    if record.home != mine:
        # Clean, so all there is of it is published; what lies here is an older time's.
        return record.published_next
    lacks = record.dirty and local.next_offset < record.published_next
    if lacks and not is_whole(record, mine, local):
        raise _lost()
    if not record.dirty and local.next_offset > record.published_next:
        raise coordination_outdated("coordination does not know of records that this node holds")
    if local.next_offset > record.reserved_next and local.next_offset > record.published_next:
        raise coordination_outdated("this node holds offsets that were not reserved")
    if local.next_offset < record.published_next:
        if not local.empty:
            raise _lost()
        # Nothing was ever written here: the directory is new, and the stream is clean.
        return record.published_next
    return local.next_offset


def is_whole(record: StreamRecord, mine: NodeId, local: LocalView) -> bool:
    """Whether a log without a record lacks nothing: it was begun where all was published, and nothing was
    published since. A node that follows knows this by its checkpoint, and a disk that lost its log has none.

    Of a node in sync that is enough, whatever epochs there were since: owners that wrote nothing which was
    shown may have died before anybody heard of them. Of the home of a stream that lies there alone the
    epoch has to be the newest as well.
    """
    if not local.empty or local.published_next != record.published_next:
        return False
    return mine in record.in_sync or local.epoch == record.epoch


def is_outdated(record: StreamRecord, mine: NodeId, local: LocalView) -> bool:
    """Whether the log that lies here is not the stream's any more, and can be set aside.

    Asked before a claim: afterwards the record says that the log is here. Another home that
    is dirty holds the tail in this one's place, under a later epoch. Nobody does between the fence
    of a takeover and its gap: if coordination is lost then, the bucket still names this home, and
    without its log it would begin anew at offsets that it has acknowledged.
    """
    if record.home == mine or record.state is not StreamState.ACTIVE or is_held(record, mine):
        return False
    if record.dirty and (record.home in (None, NOBODY) or record.epoch == local.epoch):
        return False
    return record.epoch >= local.epoch and record.version >= local.version


@guard("the log of a node that holds a stream")
def is_held(record: StreamRecord, mine: NodeId) -> bool:
    """Whether a dirty stream may count on the log of this node beside that of its home.

    Others may have claimed it meanwhile, and one after the other may be dead: then this log has all
    that was acknowledged. What it has beyond that is cut when an owner opens it.
    """
    return record.dirty and mine in record.members


@guard("all of a former log in object storage before it goes")
def is_past(record: StreamRecord, mine: NodeId, local: LocalView) -> bool:
    """Whether the log of a node that neither owns a stream nor holds it any more can be removed: object
    storage has all of it. Until then it may be what is left if others are lost."""
    if record.state is not StreamState.ACTIVE or record.home in (None, NOBODY, mine):
        return False
    if mine in record.members or record.epoch < local.epoch or record.version < local.version:
        return False
    return local.next_offset <= record.published_next


@guard("the bucket's word before an older log goes")
def may_be_needed(record: StreamRecord, local: LocalView) -> bool:
    """Whether an outdated log may be needed again if coordination is lost.

    Whoever claimed the stream since has not written, so the bucket may not say yet that it is
    there: a rebuild would give it back to this node. All records are published, but what is known
    of producers lies here.
    """
    untouched = not record.dirty and record.published_next <= local.next_offset
    return untouched and not local.empty and record.home not in (None, NOBODY)


def reserve(record: StreamRecord, epoch: int, next_offset: int) -> StreamRecord:
    """The record after the owner of `epoch` may acknowledge up to `next_offset`, and more.

    Raises:
        Fenced: somebody claimed the stream since, or it is being deleted.
    """
    check_owner(record, epoch)
    reserved = record.reserved_next
    if next_offset + RESERVE_COUNT // 2 > reserved:
        reserved = max(reserved, next_offset + RESERVE_COUNT)
    return replace(record, dirty=True, reserved_next=reserved, epochs=live_epochs(record))


def leave_clean(record: StreamRecord, epoch: int, next_offset: int) -> StreamRecord:
    """The record after a stop at which object storage holds everything.

    Raises:
        Fenced: somebody claimed the stream since.
        Unavailable: not everything is published, so the stream stays dirty.
    """
    check_owner(record, epoch)
    if record.published_next != next_offset:
        raise not_owner()
    return replace(record, dirty=False)


class OwnedElsewhere(Unavailable):
    """`not-owner`, outcome none: another node that is alive owns what is asked for."""

    def __init__(self, owner_url: str, owned: str = STREAM) -> None:
        super().__init__(f"another node owns {owned}", code=Code.NOT_OWNER, retry_after_seconds=1)
        self.owner_url = owner_url
        """Its internal address."""


def not_owner(*, outcome: Outcome = Outcome.NONE, owned: str = STREAM) -> Unavailable:
    return Unavailable(
        f"this node does not own {owned} now",
        code=Code.NOT_OWNER,
        outcome=outcome,
        retry_after_seconds=1,
    )


@guard("the generation")
def went_back(known: int | None, shown: int | None) -> bool:
    """Whether coordination shows less of its generation than this node has seen: it was lost."""
    return known is not None and (shown is None or shown < known)


@guard("the epoch in the EXEC of an owner")
def check_owner(record: StreamRecord, epoch: int) -> None:
    """Refuse what an owner of the past asks for.

    Raises:
        Fenced: somebody claimed the stream since, or it is being deleted.
    """
    if record.epoch != epoch or record.state is not StreamState.ACTIVE:
        raise Fenced(
            "the stream is owned by a newer epoch", facts={"mine": epoch, "newest": record.epoch}
        )


def live_epochs(record: StreamRecord) -> tuple[EpochStart, ...]:
    """Epochs that may still cover unpublished records: the one at published_next, and later."""
    ended = sum(start.first_offset <= record.published_next for start in record.epochs)
    return record.epochs[max(ended - 1, 0) :]


def _lost() -> Unavailable:
    return Unavailable(
        "this node's log ends below what is published: its disk lost data",
        code=Code.STORAGE_FAILED,
        retryable=False,
    )
