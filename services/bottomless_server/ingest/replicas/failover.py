"""Become the owner of streams whose owners are dead: one task watches all streams that this node follows.

`node/core/failover.py` decides; here records and leases are read, and streams are opened as any other
stream is. What is there after a crash at each step:

1. the stream is not followed any more      a log that ends where it was told; its owner opens it again
2. what lies here is recovered              the same
3. the stream is claimed, by one EXEC       the record names this node and the next epoch; the next
                                            start claims it once more, or another one in sync does
4. the bucket says that it is here          the same
5. the claim is noted in the checkpoint     the same
6. the log is on every node in sync         it is shown, and appends are taken

`local/opening.py` does 2 to 5 and says more of them. Nothing is acknowledged or shown before 6, and what
was acknowledged before lies on every node that the record counts, so on this one.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol

import structlog

from bottomless.errors import Code, Corrupt, NotFound, StoreError
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import NOBODY, StreamRecord
from bottomless_server.ingest.replicas.figures import ReplicaFigures
from bottomless_server.node.core.failover import LOOK_MS, Outcome, Watch
from bottomless_server.node.lease import Clocks
from bottomless_server.node.owner import Owner
from bottomless_server.node.pulse import wait_for
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless

log = structlog.get_logger(__name__)

_PAGE_COUNT: Final = 64
"""Records that one question asks for."""


class Owned(Protocol):
    """The streams that this node owns; `OwnedStreams` is one."""

    def owns(self, stream_id: StreamId) -> bool:
        """Whether a stream is open here and takes appends."""
        ...

    async def get(self, stream_id: StreamId) -> object:
        """Open a stream, once it is not followed any more.

        Raises:
            StoreError
        """
        ...


class FollowedHere(Protocol):
    """The streams that this node follows; `Following` is one."""

    def heard(self) -> Iterable[tuple[StreamId, int]]:
        """Streams, each with the time at which its owner was heard last, in ms."""
        ...


class Failover:
    """The watch of this node over the streams that it follows."""

    def __init__(
        self,
        owner: Owner,
        owned: Owned,
        followed: FollowedHere,
        clocks: Clocks,
        figures: ReplicaFigures | None = None,
    ) -> None:
        self._figures = figures or ReplicaFigures()
        self._left: set[StreamId] = set()
        """Streams whose home had no lease when their records were read last."""
        self._owner = owner
        self._owned = owned
        self._followed = followed
        self._clocks = clocks
        self._watch: Watch | None = None
        """Made at the start, when it is known which node this is."""
        self._term: int | None = None
        self._term_began = 0
        """When the term of this node's lease was seen first, in ms."""
        self._claiming: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, stream_ids: Iterable[StreamId]) -> None:
        """Watch from now on what is followed, and these streams that lie here and are not open: their
        owner may have died while this node was away."""
        self._watch = watch = Watch(self._owner.node_id)
        now = self._clocks.elapsed()
        for stream_id in stream_ids:
            if not self._owned.owns(stream_id):
                watch.heard(stream_id, now)
        self._task = asyncio.create_task(endless("ingest-failover", self._step), name="failover")

    async def stop(self) -> None:
        """Claim nothing more. What is being opened goes on; whoever opens it ends it."""
        if self._task is not None:
            await end_tasks(self._task)
        await end_tasks(*self._claiming)

    def is_held_back(self, stream_id: StreamId) -> bool:
        """Whether a stream must not be followed now: a claim of it is under way, or may land."""
        return self._watch is not None and self._watch.is_held_back(stream_id)

    def given(self, stream_id: StreamId) -> None:
        """Look at a stream at once, since somebody says that it was given to this node."""
        if self._watch is not None:
            self._watch.given(stream_id, self._clocks.elapsed())
            self._wake.set()

    def given_away(self, stream_id: StreamId) -> None:
        """Watch a stream that was this node's: whoever it was given to may die before it says a word."""
        if self._watch is not None:
            self._watch.heard(stream_id, self._clocks.elapsed())

    def note_failed(self, stream_id: StreamId, error: StoreError) -> None:
        """Hear of a claim that failed, also of one for somebody who asked for the stream: it may land."""
        if self._watch is not None and outcome_of(error) is Outcome.UNKNOWN:
            self._watch.unsettled(stream_id, self._clocks.elapsed())

    async def _step(self) -> float:
        await self.look()
        assert self._watch is not None
        next_claim, now = self._watch.next_claim(), self._clocks.elapsed()
        pause_ms = LOOK_MS if next_claim is None else max(min(next_claim - now, LOOK_MS), 1)
        await wait_for(self._wake, pause_ms / 1000)
        return 0

    async def look(self) -> None:
        """Find out about silent streams, and begin the claims that are due."""
        watch = self._watch
        assert watch is not None
        self._wake.clear()
        now = self._clocks.elapsed()
        for stream_id, at in self._followed.heard():
            watch.heard(stream_id, at)
        lease = self._owner.lease
        if not lease.is_live() or lease.regressed:
            # It could claim nothing, and may be the one that is cut off.
            return
        if lease.term != self._term:
            self._term, self._term_began = lease.term, now
        if now - self._term_began < lease.lease_ms:
            # If coordination was away, so were all leases; the others renew theirs in the next moments.
            return
        try:
            await self._read(watch, now)
        except StoreError as error:
            log.warning("silent streams were not looked at", error=str(error))
            return
        for stream_id in watch.begin_claims(self._clocks.elapsed()):
            task = asyncio.create_task(self._claim(watch, stream_id), name=f"claim-{stream_id}")
            self._claiming.add(task)
            task.add_done_callback(self._claiming.discard)

    async def _read(self, watch: Watch, now: int) -> None:
        watch.dead(await self._without_lease(watch.nodes(now)), now)
        due = []
        for stream_id in watch.due(now):
            if self._owned.owns(stream_id):
                watch.forget(stream_id)
            else:
                due.append(stream_id)
        for start in range(0, len(due), _PAGE_COUNT):
            await self._read_page(watch, due[start : start + _PAGE_COUNT])

    async def _read_page(self, watch: Watch, page: Sequence[StreamId]) -> None:
        loaded = await self._owner.streams.load_many(page)
        records = {record.stream_id: record for record in loaded.records}
        if len(records) + len(loaded.unreadable) < len(page):
            # A stream that is missing where all are missing was not deleted.
            await self._owner.check_not_lost()
        homes = {record.home for record in loaded.records if record.home not in (None, NOBODY)}
        # After the records: who has a lease then may be the home again since.
        dead = await self._without_lease([home for home in homes if home is not None])
        now = self._clocks.elapsed()
        for stream_id in page:
            if stream_id in loaded.unreadable:
                watch.put_off(stream_id, now)
                continue
            record = records.get(stream_id)
            if record is not None and record.home in dead:
                self._left.add(stream_id)
            else:
                self._left.discard(stream_id)
            watch.looked(stream_id, record, now, home_live=_lives(record, dead))

    async def _without_lease(self, nodes: Collection[NodeId]) -> set[NodeId]:
        asked = {node for node in nodes if node != self._owner.node_id}
        return asked - await self._owner.live_of(asked)

    async def _claim(self, watch: Watch, stream_id: StreamId) -> None:
        outcome = Outcome.UNKNOWN
        try:
            await self._owned.get(stream_id)
            outcome = Outcome.OWNED
        except StoreError as error:
            # It may be lost again already, or the lease: then it is opened, and asked about as others.
            outcome = Outcome.OWNED if self._owned.owns(stream_id) else outcome_of(error)
            log.warning("a stream was not claimed", stream_id=stream_id, error=str(error))
        finally:
            watch.claimed(stream_id, outcome, self._clocks.elapsed())
            self._wake.set()
        if outcome is Outcome.OWNED:
            # What was given to this node was not left by anybody.
            self._figures.failovers += stream_id in self._left
            self._left.discard(stream_id)
            log.warning("this node owns a stream that it followed", stream_id=stream_id)


def outcome_of(error: StoreError) -> Outcome:
    """Tell whether a claim that failed may have been written all the same.

    What is refused by the record, or before anything is asked, was not. Anything else may be from after
    the EXEC: the bucket was not told, or the disk failed.
    """
    refused = isinstance(error, NotFound | Corrupt) or error.code in (Code.NOT_OWNER, Code.DRAINING)
    return Outcome.REFUSED if refused else Outcome.UNKNOWN


def _lives(record: StreamRecord | None, dead: Collection[NodeId]) -> bool:
    return record is not None and record.home not in (None, NOBODY) and record.home not in dead
