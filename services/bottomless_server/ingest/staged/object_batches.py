"""Staged batches of streams with replicas, and plans of their commits: objects of the stream.

On one disk they would be lost with their node, while the log goes on elsewhere: the next owner could
neither finish a commit of several parts, nor tell a half of one from its repeat. Batches are the
objects of leaderless streams (leaderless/staged_batches.py); a plan is an object beside them. Its key
says under which epoch it was put, and as which of that epoch: of one producer the last one counts. So
a put of an earlier owner, or one that was given up, may land as late as it likes.

What is there after a crash at each step, and what the next owner does:

    batches staged         objects that nothing names; garbage collection takes them. The same commit
                           appends what it names.
    plan put               the same; the plan is not begun, and is garbage after some days.
    some parts appended    those are in the log of all nodes in sync, and the plan was put before the
                           first. The next owner sees in its log that a commit is open, lists the plans
                           of the stream, and goes on with the last one of that producer.
    the last one appended  a repeat. What is left of plan and batches is garbage.
    plan deleted           the same; its batches are deleted after it.

The disk of a node takes part where the number of replicas was changed meanwhile: a batch that was
staged there goes into the object store when a commit needs it, first there, then gone here; after a
crash in between it is in both, under one id and with the same records. A commit that was begun by a
plan on the disk is finished from there (commits.py).

On the record's path: before commits.py, in place of batches.py.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import structlog
from cachetools import LRUCache

from bottomless.drives.base import Drive, DriveUnavailable, ObjectMissing
from bottomless.errors import Corrupt, Outcome, StoreError
from bottomless.formats.checks import check, crc32c
from bottomless.formats.keys import (
    StagedPlanKey,
    parse_staged_plan_key,
    staged_plan_key,
    staged_plans_prefix,
)
from bottomless.formats.rows import Frame
from bottomless.guards import guard
from bottomless.model.limits import BINARY_BODY_SIZE_MAX
from bottomless.model.names import StreamId
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.core.tracking.open_commits import name_of_parts_by_hash
from bottomless_server.ingest.leaderless.staged_batches import StagedObjects
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.ports import Staged
from bottomless_server.ingest.producers.commit_plan import (
    PLAN_SIZE_MAX,
    PLAN_SUFFIX,
    CommitPlan,
    StagedBatch,
    decode_plan,
    encode_plan,
    plan_name,
    staged_not_found,
)
from bottomless_server.ingest.staged.batches import StagedBatches
from bottomless_server.ingest.staged.commit_appends import HoldRoom
from bottomless_server.ingest.staged.kept import droppable, free_batches
from bottomless_server.stores.put_retries import put_object

log = structlog.get_logger(__name__)

_READ_COUNT: Final = 3
"""Attempts to read a plan: bytes may be damaged on their way, and a store may not answer once."""
_ROOM_SECONDS: Final = 30.0
_LOOK_COUNT: Final = 16
"""Batches of one plan that are looked for at once."""
_KNOWN_COUNT_MAX: Final = 100_000
"""Batches of which it is remembered what is in them, of all streams: others are read twice."""


@dataclass(frozen=True, slots=True)
class StagedStore:
    """What all claims share."""

    drive: Drive
    objects: StagedObjects
    disk: StagedBatches
    """What was staged on this disk, before a stream had replicas."""
    room: HoldRoom
    put_seconds: float
    """The seconds for which a put of a plan is tried."""
    known: LRUCache[tuple[StreamId, str], StagedBatch] = field(
        default_factory=lambda: LRUCache(_KNOWN_COUNT_MAX)
    )
    """What is in batches that were staged or read here, by their streams and ids."""


class SharedBatches:
    """Staged batches in the object store, by the claims under which streams are owned here."""

    def __init__(self, store: StagedStore) -> None:
        self._store = store
        self._claims: WeakKeyDictionary[LocalAppender, ObjectBatches] = WeakKeyDictionary()

    async def stage(self, appender: LocalAppender, frames: Sequence[Frame]) -> Staged:
        """Put validated frames; returns when they are durable.

        Raises:
            Unavailable: nothing is staged.
        """
        return await self.of(appender).stage(frames)

    async def get(self, appender: LocalAppender) -> "ObjectBatches":
        """What is kept of a stream, with the plans of all commits that are open.

        Raises:
            StoreError: they cannot be looked at now; parts of a commit are stored, so the outcome of
                a commit is unknown.
        """
        found = self.of(appender)
        await found.look()
        return found

    def drop_damaged_plan(self, appender: LocalAppender, producer_id: str) -> None:
        """Forget the plan of a producer that is to be forgotten, if it cannot be read."""
        self.of(appender).drop_damaged_plan(producer_id)

    def of(self, appender: LocalAppender) -> "ObjectBatches":
        """What is kept of a stream, perhaps without the plans of earlier claims; asks nobody."""
        found = self._claims.get(appender)
        if found is None:
            found = self._claims[appender] = ObjectBatches(self._store, appender)
        return found


class ObjectBatches:
    """Staged batches and plans of one stream, under one claim."""

    def __init__(self, store: StagedStore, appender: LocalAppender) -> None:
        self._store = store
        # The appender refers to nothing here, and is not kept: it is the key to this.
        self._stream_id = appender.stream_id
        self._tenant = appender.tenant
        self._epoch = appender.claim.epoch
        self._open = appender.tracking.open_commits
        self._is_replicated = appender.has_replicas
        self._plans: dict[str, CommitPlan] = {}
        """The plans of producers that count, by the name of the producer."""
        self._keys: dict[str, str] = {}
        """Their objects, by the name of the producer."""
        self._damaged: set[str] = set()
        """The names of plans that cannot be read, without what stands before them."""
        self._known = store.known
        self._pins: set[str] = set()
        self._sequence = 0
        self._looked = False
        self._looking = asyncio.Lock()

    async def stage(self, frames: Sequence[Frame]) -> Staged:
        """Put validated frames; returns when they are durable.

        Raises:
            Unavailable: nothing is staged.
        """
        staged = await self._store.objects.stage(self._stream_id, self._tenant, frames)
        self._known[self._stream_id, staged.batch.staged_id] = staged.batch
        return staged

    @guard("the plans of an earlier owner")
    async def look(self) -> None:
        """Find the plans of commits that were open when the stream was claimed: nobody else can have
        begun one since. Where none is, nothing is listed.

        Raises:
            StoreError: not now; outcome unknown.
        """
        async with self._looking:
            if self._looked:
                return
            try:
                if self._open:
                    await self._find_plans()
            except StoreError as error:
                error.outcome = Outcome.UNKNOWN
                raise
            self._looked = True

    def plan(self, stream_id: StreamId, producer_id: str) -> CommitPlan | None:
        """The plan of a producer that counts; see `KeptBatches.plan`."""
        if plan_name(producer_id) in self._damaged:
            raise Corrupt(f"the plan of an earlier commit to {stream_id} is damaged")
        return self._plans.get(producer_id)

    @property
    def plans(self) -> list[CommitPlan]:
        """The plans that count."""
        return list(self._plans.values())

    @asynccontextmanager
    async def pinned(
        self, stream_id: StreamId, producer_id: str, staged_ids: Sequence[str]
    ) -> AsyncIterator[list[StagedBatch]]:
        """Batches that nobody else gets under this claim; see `KeptBatches.pinned`."""
        found = {one: await self._find(stream_id, one) for one in staged_ids}
        others = [plan for plan in self._plans.values() if plan.producer_id != producer_id]
        batches = free_batches(found, staged_ids, self._pins, others)
        self._pins.update(staged_ids)
        try:
            yield batches
        finally:
            self._pins.difference_update(staged_ids)

    async def read(self, stream_id: StreamId, batches: Sequence[StagedBatch]) -> tuple[Frame, ...]:
        """The frames of batches, in order; see `KeptBatches.read`."""
        found: list[Frame] = []
        for batch in batches:
            found += await self._store.objects.read(stream_id, self._tenant, batch.staged_id)
        return tuple(found)

    async def record_count(self, stream_id: StreamId, staged_ids: Sequence[str]) -> int:
        """The records of those batches that are there; see `KeptBatches.record_count`."""
        return await self._store.objects.record_count(stream_id, self._tenant, staged_ids)

    @guard("the plan in the object store before the first part")
    async def save_plan(self, stream_id: StreamId, plan: CommitPlan) -> None:
        """Put a plan, which is the last one of its producer then; see `KeptBatches.save_plan`."""
        name = plan_name(plan.producer_id)
        key = StagedPlanKey(self._epoch, self._sequence, name.removesuffix(PLAN_SUFFIX))
        # Counted before it is put: one whose put was given up may land after the next.
        self._sequence += 1
        object_key, data = staged_plan_key(stream_id, key, self._tenant), encode_plan(plan)
        seconds = self._store.put_seconds
        await put_object(
            self._store.drive, object_key, [data], crc32c(data), deadline_seconds=seconds
        )
        before = self._keys.get(plan.producer_id)
        self._plans[plan.producer_id], self._keys[plan.producer_id] = plan, object_key
        if before is not None:
            await self._delete([before])
        await self._require_all_there(stream_id, plan)

    @guard("the batches of a plan, looked for before its first part")
    async def _require_all_there(self, stream_id: StreamId, plan: CommitPlan) -> None:
        """Refuse to begin a commit of which a batch is gone: its rest could never be stored.

        What is remembered of a batch was so when it was staged or read here. Another owner may have
        committed it since, or garbage collection have taken it; from the plan on that takes none.

        Raises:
            NotFound: `staged-not-found`; the plan is gone again.
            StoreError: it cannot be looked at now; outcome none.
        """
        room = asyncio.Semaphore(_LOOK_COUNT)

        async def is_gone(staged_id: str) -> bool:
            async with room:
                return not await self._store.objects.is_there(stream_id, self._tenant, staged_id)

        ids = plan.staged_ids
        found = await asyncio.gather(*map(is_gone, ids))
        gone = [staged_id for staged_id, one in zip(ids, found, strict=True) if one]
        if not gone:
            return
        for staged_id in gone:
            self._known.pop((stream_id, staged_id), None)
        await self.drop(stream_id, [], plan)
        raise staged_not_found()

    async def drop(
        self, stream_id: StreamId, staged_ids: Sequence[str], plan: CommitPlan | None = None
    ) -> None:
        """Delete a plan and batches; what fails is garbage. See `KeptBatches.drop`."""
        ids = droppable(staged_ids, plan, self._plans.values())
        if plan is not None and self._plans.get(plan.producer_id) == plan:
            del self._plans[plan.producer_id]
            await self._delete([self._keys.pop(plan.producer_id)])
        await self._store.disk.drop(stream_id, ids)
        # Of a stream that lies here alone hardly any batch ever was an object.
        gone = [
            staged_id
            for staged_id in ids
            if staged_id not in self._pins
            and (self._is_replicated or (stream_id, staged_id) in self._known)
        ]
        for staged_id in gone:
            self._known.pop((stream_id, staged_id), None)
        if gone:
            await self._store.objects.drop(stream_id, self._tenant, gone)

    def drop_damaged_plan(self, producer_id: str) -> None:
        """Forget the plan of a producer that is to be forgotten, if it cannot be read."""
        self._damaged.discard(plan_name(producer_id))

    async def _find(self, stream_id: StreamId, staged_id: str) -> StagedBatch:
        """What is in a batch, which is an object afterwards.

        Raises:
            NotFound: `staged-not-found`.
            StoreError: outcome none.
        """
        known = self._known.get((stream_id, staged_id))
        if known is not None:
            return known
        lies_here = self._store.disk.has_all(stream_id, [staged_id])
        async with self._room(stream_id):
            if lies_here:
                await self._lift(stream_id, staged_id)
            frames = await self._store.objects.read(stream_id, self._tenant, staged_id)
        size = sum(frame.size for frame in frames)
        count = sum(frame.record_count for frame in frames)
        batch = StagedBatch(staged_id, 0, size, count, len(frames))
        self._known[stream_id, staged_id] = batch
        return batch

    async def _lift(self, stream_id: StreamId, staged_id: str) -> None:
        """Put a batch of this disk into the object store, then remove it here."""
        disk = self._store.disk
        async with disk.pinned(stream_id, "", [staged_id]) as batches:
            frames = await disk.read(stream_id, batches)
            await self._store.objects.put(stream_id, self._tenant, staged_id, frames)
        await disk.drop(stream_id, [staged_id])

    def _room(self, stream_id: StreamId) -> AbstractAsyncContextManager[None]:
        return self._store.room(stream_id, BINARY_BODY_SIZE_MAX, _ROOM_SECONDS)

    async def _find_plans(self) -> None:
        newest: dict[str, ObjectFacts] = {}
        prefix = staged_plans_prefix(self._stream_id, self._tenant)
        async for facts in self._store.drive.list(prefix):
            key = parse_staged_plan_key(facts.object_key)
            if key is not None and name_of_parts_by_hash(key.producer) in self._open:
                # They are listed in the order of epochs, and of the plans of one epoch.
                newest[key.producer] = facts
        for producer, facts in newest.items():
            await self._read_plan(producer + PLAN_SUFFIX, facts)

    async def _read_plan(self, name: str, facts: ObjectFacts) -> None:
        left = _READ_COUNT
        while left:
            left -= 1
            try:
                data = await self._store.drive.get(facts.object_key, 0, PLAN_SIZE_MAX)
                plan = _plan_of(name, bytes(data))
            except ObjectMissing:
                return
            except DriveUnavailable:
                if not left:
                    raise
            except Corrupt as error:
                log.warning("the plan of a commit is damaged", left=left, error=str(error))
            else:
                self._plans[plan.producer_id] = plan
                self._keys[plan.producer_id] = facts.object_key
                return
        self._damaged.add(name)

    async def _delete(self, object_keys: Sequence[str]) -> None:
        if await self._store.drive.delete(object_keys):
            log.info("the plan of a commit was not deleted", stream_id=self._stream_id)


def _plan_of(name: str, data: bytes) -> CommitPlan:
    """Read a plan, which is that of the producer that its key names.

    Raises:
        Corrupt
    """
    plan = decode_plan(data)
    check("plan of a commit", plan_name(plan.producer_id) == name, "it is another producer's")
    return plan
