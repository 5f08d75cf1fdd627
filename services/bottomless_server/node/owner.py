"""The claims of this node on streams, under the lease of `lease.py`.

A lapse of the lease makes every claim doubtful: clean streams may have moved meanwhile. So each
claim is confirmed against the record before it is used after a lapse. A claim of which
coordination said once that it is not the newest is never used again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol

import structlog

from bottomless.errors import Code, Fenced, NotFound, Outcome, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.limits import MIB
from bottomless.model.names import NodeId, StreamId, SuperId
from bottomless.model.stream import StreamRecord
from bottomless.model.super_stream import SuperRecord
from bottomless_server.coordination.base import Coordination, Values
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.node.core import in_sync, ownership
from bottomless_server.node.core.ownership import LocalView
from bottomless_server.node.lease import NodeLease
from bottomless_server.node.placement import Placement
from bottomless_server.stores.generation import held_generation
from bottomless_server.stores.joined_calls import JoinedCalls
from bottomless_server.stores.streams import Streams, node_key, producers_key
from bottomless_server.stores.supers import Supers

log = structlog.get_logger(__name__)

PRODUCERS_SIZE_MAX: Final = 8 * MIB
"""What a stream's producers may take in coordination; where it is more the stream stays dirty,
and waits for its home."""
_CLAIM_ATTEMPTS: Final = 4
"""A claim begins anew when the home changes under it, which happens once in a handover."""


class Claim:
    """The ownership of a stream in one epoch, with the offsets that are reserved under it."""

    def __init__(self, owner: "Owner", record: StreamRecord, term: int) -> None:
        self.stream_id = record.stream_id
        self.epoch = record.epoch
        self.first_offset = record.epochs[-1].first_offset
        self._owner = owner
        self._term = term
        self._dirty = record.dirty
        self._perhaps_dirty = False
        """The answer to a reservation was lost: the record may say that it is dirty."""
        self._reserved_next = record.reserved_next
        self._reserving: asyncio.Task[None] | None = None
        self._fenced = False
        """Coordination has said that somebody claimed the stream since."""

    @property
    def reserved_next(self) -> int:
        return self._reserved_next

    @property
    @guard("the claim, confirmed again after a lapse")
    def held(self) -> bool:
        """Whether this claim is good now, as far as this node can know without asking."""
        lease = self._owner.lease
        return lease.is_live() and lease.term == self._term and not self._fenced

    @property
    def term(self) -> int:
        """The term of the lease under which the claim was confirmed last."""
        return self._term

    @property
    def fenced(self) -> bool:
        """Whether coordination has said that somebody claimed the stream since, or another node has."""
        return self._fenced

    async def confirm(self) -> None:
        """Make sure that this claim is still the newest.

        Raises:
            Unavailable: the lease may have run out, or coordination does not answer.
            Fenced: somebody claimed the stream since.
        """
        await self._owner.lease.settle()
        self._owner.lease.require()
        term = self._owner.lease.term
        if not self._fenced and term != self._term:
            record = await self._owner.load(self.stream_id)
            if record.epoch != self.epoch:
                # Never the other way: a reservation may have heard more while this was read.
                self._fenced = True
        if self._fenced:
            raise Fenced("the stream is owned by a newer epoch")
        self._term = term

    def require(self, outcome: Outcome = Outcome.NONE) -> None:
        """Refuse to act for a stream that may not be this node's any more.

        Raises:
            Unavailable: `not-owner`: the lease may have run out, now or since the last `confirm`,
                or somebody claimed the stream since.
        """
        self._owner.lease.require(outcome)
        if self._owner.lease.term != self._term or self._fenced:
            raise ownership.not_owner(outcome=outcome)

    @guard("reserved offsets")
    async def reserve(self, next_offset: int) -> None:
        """Return when offsets below `next_offset` may be written and acknowledged.

        Asks coordination before the first append, and when a block is used up; when half of
        it is used, it is asked in the background.

        Raises:
            Fenced: somebody claimed the stream since.
            Unavailable: `coordination-unavailable`; nothing was written, so outcome none.
        """
        if not self._dirty or next_offset > self._reserved_next:
            await self._reserve(next_offset)
            return
        asking = self._reserving is not None and not self._reserving.done()
        if not asking and next_offset + ownership.RESERVE_COUNT // 2 > self._reserved_next:
            self._reserving = asyncio.create_task(self._reserve_quietly(next_offset))

    async def leave(self, next_offset: int, producers: bytes | None) -> None:
        """Note that object storage holds everything, if it does; a best effort at the stop.

        With it, in the same EXEC, goes what is known of `producers`, for the next node that claims the
        stream.

        Raises:
            Fenced, Unavailable: the stream stays as it was, or the EXEC's reply was lost.
        """
        if self._reserving is not None:
            await self._reserving
        if not self._dirty and not self._perhaps_dirty:
            return
        if producers is not None and len(producers) > PRODUCERS_SIZE_MAX:
            raise Unavailable("more is known of producers than coordination should hold")
        await self._owner.streams.leave(
            self.stream_id,
            lambda record: self._as_home(in_sync.leave_clean, record, next_offset),
            producers,
        )
        self._dirty = self._perhaps_dirty = False

    @guard("a fence that is heard in the background")
    def note_fence(self) -> None:
        """Acknowledge nothing under this claim any more: somebody has the stream since.

        Said also where offsets were reserved in the background, and nobody waits for the answer.
        """
        self._fenced = True

    async def _reserve_quietly(self, next_offset: int) -> None:
        try:
            await self._reserve(next_offset)
        except Fenced:
            log.warning("another node owns the stream", stream_id=self.stream_id)
        except StoreError as error:
            # Asked again with the next append; the block is half full yet.
            log.warning("offsets were not reserved", stream_id=self.stream_id, error=str(error))

    def _as_home(
        self,
        change: Callable[[StreamRecord, NodeId, int, int], StreamRecord],
        record: StreamRecord,
        next_offset: int,
    ) -> StreamRecord:
        try:
            return change(record, self._owner.node_id, self.epoch, next_offset)
        except in_sync.Refused as error:
            # It was given to another node, which has not claimed it yet.
            raise Fenced("the stream was given to another node") from error

    async def _reserve(self, next_offset: int) -> None:
        try:
            record = await self._owner.streams.update(
                self.stream_id,
                lambda record: self._as_home(in_sync.reserve, record, next_offset),
            )
        except Fenced:
            self.note_fence()
            raise
        except NotFound:
            await self._owner.check_not_lost()
            raise
        except Unavailable as error:
            # Whether this EXEC lands does not matter until the stream is left: it raises a bound,
            # and may have made the stream dirty.
            self._perhaps_dirty = True
            raise coordination_unavailable() from error
        self._dirty = True
        self._reserved_next = max(self._reserved_next, record.reserved_next)


class Owner:
    """Claims streams for this node."""

    def __init__(
        self,
        coordination: Coordination,
        lease: NodeLease,
        note_home: Callable[[StreamId], Awaitable[None]],
        placement: Placement | None = None,
    ) -> None:
        """`note_home` returns when the bucket says that a stream is here. `placement` chooses the other
        nodes that hold a stream; None: there are none."""
        self._coordination = coordination
        self.streams = Streams(coordination)
        # Calls that are made again after any failure, of which a start makes thousands at once.
        self._joined = Streams(JoinedCalls(coordination))
        self._supers = Supers(coordination, self.streams)
        self.lease = lease
        self._note_home = note_home
        self._placement = placement

    @property
    def node_id(self) -> NodeId:
        """The node that claims streams here."""
        return self.lease.node.node_id

    async def load(self, stream_id: StreamId) -> StreamRecord:
        """The stream's record.

        Raises:
            NotFound
            Unavailable: `coordination-unavailable`, outcome none.
        """
        try:
            return await self._joined.load(stream_id)
        except NotFound:
            await self.check_not_lost()
            raise
        except Unavailable as error:
            raise coordination_unavailable() from error

    async def live_of(self, nodes: Collection[NodeId]) -> set[NodeId]:
        """Find those of these nodes whose lease is held, as it was a moment ago.

        Raises:
            Unavailable: `coordination-unavailable`, outcome none.
        """
        asked = list(nodes)
        if not asked:
            return set()
        try:
            held = await self._coordination.get_many([node_key(node) for node in asked])
        except Unavailable as error:
            raise coordination_unavailable() from error
        return {node for node, value in zip(asked, held, strict=True) if value is not None}

    async def load_super(self, super_id: SuperId) -> SuperRecord:
        """The record of a super stream.

        Raises:
            NotFound: there is none.
            Unavailable: `coordination-unavailable`, outcome none.
        """
        try:
            return await self._supers.load(super_id)
        except NotFound:
            await self.check_not_lost()
            raise
        except Unavailable as error:
            raise coordination_unavailable() from error

    async def note_home(self, stream_id: StreamId) -> None:
        """Return when the bucket says where a stream is, whichever node has it.

        Raises:
            NotFound: the stream is gone.
            Unavailable: it does not say so yet; outcome none.
        """
        await self._note_home(stream_id)

    async def check_not_lost(self) -> None:
        """A stream that is missing where all are missing was not deleted.

        Raises:
            Unavailable: `coordination-regressed`
        """
        shown = await held_generation(self._coordination)
        known = self.lease.generation
        if shown is None or (known is not None and shown < known):
            raise coordination_lost()

    async def claim(
        self,
        stream_id: StreamId,
        local: LocalView,
        seen: StreamRecord | None = None,
        keeper: "Keeper | None" = None,
    ) -> tuple[StreamRecord, Claim]:
        """Claim a stream with the next epoch.

        `seen` is its record as it was a moment ago, for who has it; the claim is made on the record
        of now, and is refused and begun anew if its home has changed since, or how many nodes are to
        hold it. A stream that is clean is held by this node and others that are chosen now; a dirty one
        stays with those that the record names.
        `keeper` is that of a node on whose disk nothing says what is known of producers. What the
        last owner left of that where this claim begins is made durable here before the stream is
        claimed: from then on the bucket may say at any time that it is here, and if coordination
        is lost nobody else is asked. It counts also where the stream is dirty, since this node may
        have died between the mark and its first write, and then knows nothing else.
        After a lost reply the claim may have happened: the next one takes a higher epoch.
        This returns only when the bucket says that the stream is here: if coordination is lost,
        a rebuild learns from there who holds the tail. Nothing is written under an epoch before
        that, so a disk that has seen the last epoch of its own stream proves that the bucket
        says so already, and nobody is asked. After a crash between the claim and the bucket the
        disk has not seen that epoch, and the next claim asks again.

        Raises:
            NotFound: there is no such stream, or it is being deleted.
            Unavailable: `not-owner`, `coordination-unavailable`, `coordination-regressed`,
                `storage-failed`; outcome none.
        """
        for _ in range(_CLAIM_ATTEMPTS):
            self.lease.require()
            term = self.lease.term
            before = seen or await self.load(stream_id)
            seen, home = None, before.home
            chosen = await self._chosen(before)
            try:
                record = await self._claim(before, chosen, local, keeper)
            except _RecordChanged:
                continue
            except _NotKept as found:
                if found.keeper.kept is not None or found.left is None:
                    # The stream had another owner meanwhile: the next claim keeps what that left.
                    raise ownership.not_owner() from None
                await found.keeper.keep(found.record, found.left)
                seen = found.record
                continue
            if not ownership.is_noted(record, home, local):
                await self._note_home(stream_id)
            return record, Claim(self, record, term)
        raise ownership.not_owner()

    async def require_claimable(self, stream_id: StreamId) -> None:
        """Find out whether this node may claim a stream of which it has a log that follows another's.

        What is found may have changed a moment later: the claim decides.

        Raises:
            OwnedElsewhere: another node that lives owns it.
            NotFound
            Unavailable: `not-owner`: this node may lack something; or coordination does not answer.
        """
        record = await self.load(stream_id)
        home = record.home
        if home in (None, self.node_id):
            return
        try:
            [held] = await self._coordination.get_many([node_key(NodeId(str(home)))])
        except Unavailable as error:
            raise coordination_unavailable() from error
        if held is not None and record.owner_url is not None:
            raise ownership.OwnedElsewhere(record.owner_url)
        if held is not None or (record.dirty and not in_sync.may_go_on(record, self.node_id)):
            raise ownership.not_owner()

    async def _chosen(self, record: StreamRecord) -> tuple[NodeId, ...]:
        if self._placement is None:
            return ()
        try:
            return await self._placement.choose(record, self.node_id)
        except Unavailable as error:
            raise coordination_unavailable() from error

    async def _claim(
        self,
        before: StreamRecord,
        chosen: tuple[NodeId, ...],
        local: LocalView,
        keeper: "Keeper | None",
    ) -> StreamRecord:
        stream_id, home = before.stream_id, before.home
        wanted = before.config.replication.replicas
        lease = node_key(home) if home is not None and home != self.node_id else None
        left = None if keeper is None else producers_key(stream_id)

        def decide(record: StreamRecord, values: Values) -> StreamRecord:
            if record.generation > (self.lease.generation or 0):
                # A rebuild has written it and is not finished; it may write it once more.
                raise coordination_lost()
            if record.home != home or record.config.replication.replicas != wanted:
                raise _RecordChanged
            node_id, url = self.lease.node
            home_held = lease is not None and values[lease] is not None
            claimed = in_sync.claim(record, node_id, url, local, chosen, home_held=home_held)
            if keeper is not None and left is not None:
                _require_kept(keeper, record, claimed.epochs[-1].first_offset, values[left])
            return claimed

        watched = [key for key in (lease, left) if key is not None]
        try:
            return await self._joined.update_watching(stream_id, watched, decide)
        except NotFound:
            await self.check_not_lost()
            raise
        except Unavailable as error:
            if error.code is Code.COORDINATION_UNAVAILABLE:
                raise coordination_unavailable() from error
            raise


class Keeper(Protocol):
    """Makes durable, on this node's disk, what the last owner of a stream left of producers."""

    @property
    def kept(self) -> bytes | None:
        """What is durable here by now."""
        ...

    def is_left_at(self, left: bytes, next_offset: int, /) -> bool:
        """Whether the stream ended there when that was left.

        Raises:
            Unavailable: what was left is damaged.
        """
        ...

    async def keep(self, record: StreamRecord, left: bytes, /) -> None:
        """Return when what was left is durable here, of a stream with this record.

        Raises:
            Unavailable: what was left is damaged; `storage-failed`, outcome none.
        """
        ...


def _require_kept(
    keeper: Keeper, record: StreamRecord, first_offset: int, left: bytes | None
) -> None:
    """Refuse a claim that begins at `first_offset` as long as what was left there is not kept.

    Raises:
        _NotKept
        Unavailable: what was left is damaged.
    """
    if left is not None and not keeper.is_left_at(left, first_offset):
        log.warning("producers are not known any more", stream_id=record.stream_id)
        left = None
    if not is_kept(left, keeper.kept):
        raise _NotKept(keeper, record, left)


@guard("what the last owner left, kept before the claim")
def is_kept(left: bytes | None, kept: bytes | None) -> bool:
    """Whether what was left is what is durable here, no more and no less."""
    return left == kept


class _NotKept(Exception):
    """What the last owner left where the claim begins is not what is durable here."""

    def __init__(self, keeper: Keeper, record: StreamRecord, left: bytes | None) -> None:
        super().__init__()
        self.keeper = keeper
        self.record = record
        self.left = left


class _RecordChanged(Exception):
    """The record names another home than the one whose lease was to be watched, or asks for another
    number of nodes than were chosen."""


def coordination_unavailable() -> Unavailable:
    """Coordination did not answer before anything was written."""
    return Unavailable(
        "the coordination store does not answer",
        code=Code.COORDINATION_UNAVAILABLE,
        outcome=Outcome.NONE,
        retry_after_seconds=1,
    )
