"""Bring the offsets of consumers into the object store, soon after each commit.

A commit puts its stream into a queue; every pass writes one object for each stream that
is there. In this order, with what is there after a crash at each step:

1. A version is given out by coordination, higher than all before, and then the offsets are
   read. A crash here leaves a version that no object has.
2. The object with all offsets of the stream is put: it counts for a rebuild from now on,
   since the highest version does. If the crash comes here, nobody has noted it; the stream
   is still in the queue, so the next pass puts another one above it.
3. It is noted in coordination, and the one before goes into the delete queue: but only while
   no higher version was given out. Of two processes that write at once, the one with the
   higher version is the one that is noted, and the other one's stream stays in the queue.
4. The stream leaves the queue, unless there was another commit since the queue was read.

So once a stream has left the queue, every object above the noted one was read after it: a
rebuild finds all commits that were there then, whichever of them it takes. No clock matters:
it is only the lowest version that is given out, so that a version is not used again after
coordination was lost. The bucket is asked for its highest one where coordination knows none,
which is before the first snapshot, after a rebuild, and of what an earlier release wrote.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog
from cachetools import LRUCache

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Code, Corrupt, NotFound, StoreError, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.consumers import ConsumersSnapshot, decode_snapshot, encode_snapshot
from bottomless.formats.keys import consumers_key, parse_consumers_key, stream_prefix
from bottomless.guards import guard
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference, StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.failing_deletes import queue_later
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.consumers import (
    SNAPSHOTS_KEY,
    ConsumerOffsets,
    Reserved,
    SnapshotPointer,
    first_version,
)
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.streams import delete_later, stream_key

log = structlog.get_logger(__name__)

_PASS_COUNT: Final = 256
_FOREVER: Final = 2**52
"""Later than anything is queued for."""
_AT_ONCE: Final = 8
_KNOWN_COUNT_MAX: Final = 1_000
"""Streams of which it is known what their snapshot holds; of others only whether it is due."""


class ConsumerSnapshots:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._offsets = ConsumerOffsets(context.coordination, context.served)
        self._known: LRUCache[StreamId, Mapping[Reference, int]] = LRUCache(_KNOWN_COUNT_MAX)
        self._room = asyncio.Semaphore(_AT_ONCE)
        self.written_count = 0

    async def run(self) -> None:
        """Make passes for ever; two fit into the time that is promised."""
        await endless("manifest-consumer-snapshots", self._pass_once)

    async def _pass_once(self) -> float:
        try:
            await self.make_pass()
        except StoreError as error:
            log.warning("consumer offsets are not in the object store", error=str(error))
        return self._context.settings.manifest_consumer_snapshot_ms / 2000

    def forget(self) -> None:
        """Know nothing of what snapshots hold."""
        self._known.clear()

    async def make_pass(self) -> None:
        """Write the snapshots that are due now, some streams at once.

        Raises:
            Unavailable: of the first stream that failed; the others are done.
        """
        context = self._context
        # All of them, whatever the time: who entered them may have had another clock.
        dues = await context.coordination.due(SNAPSHOTS_KEY, _FOREVER, _PASS_COUNT)
        results = await asyncio.gather(*(self._write(due) for due in dues), return_exceptions=True)
        failed = [
            due for due, result in zip(dues, results, strict=True) if isinstance(result, Exception)
        ]
        if failed and len(dues) == _PASS_COUNT:
            # To the end of the queue: those that cannot be written may not be every page for ever.
            latest = max(context.clock(), *(due.due_at + 1 for due in dues))
            await queue_later(context.coordination, [due._replace(due_at=latest) for due in failed])
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def holds(self, stream_id: StreamId, stored: StoredOffset) -> bool:
        """Whether a snapshot has this very commit, as far as this process can tell."""
        if self._known.get(stream_id, {}).get(stored.consumer) == stored.revision:
            return True
        return not await self._offsets.is_behind(stream_id)

    async def _write(self, due: Due) -> None:
        context, stream_id = self._context, StreamId(due.member.decode("ascii"))
        async with self._room:
            try:
                record: StreamRecord | None = await context.streams.load(stream_id)
            except NotFound:
                record = None
            if record is None or record.state is not StreamState.ACTIVE:
                await context.coordination.settle([due])
                return
            tenant, generation = record.tenant, context.streams.generation
            try:
                version, before = await self._reserve(record)
            except NotFound:
                # It was deleted since, or coordination lost: the next pass finds that out.
                return
            found = await self._offsets.all_listed(stream_id)
            await check_not_lost(context, generation)
            consumers = tuple(found.stored.values())
            kept = await self._kept(record, before, found.unreadable) if found.unreadable else ()
            after = SnapshotPointer(version, context.new_uid())
            rows = tuple(sorted((*consumers, *kept), key=lambda stored: stored.consumer))
            await self._put(ConsumersSnapshot(stream_id, tenant, version, rows), after)
            retired = None if before is None else self._retired(stream_id, tenant, before)
            if not await self._offsets.point(stream_id, before, after, retired):
                # Another process writes one; the stream stays in the queue for the next pass.
                mine = self._retired(stream_id, tenant, after)
                await context.coordination.transact(
                    [stream_key(stream_id)], lambda _: (Changes(queued=[mine]), None)
                )
                return
            self._note(stream_id, consumers)
            await context.coordination.settle([due])

    async def _reserve(self, record: StreamRecord) -> Reserved:
        """A version above all that there may be, before the offsets are read."""
        first = first_version(self._context.streams.generation or 0)
        floor = first + self._context.clock()
        if await self._offsets.highest_version(record.stream_id) is None:
            prefix = f"{stream_prefix(record.stream_id, record.tenant)}metadata/consumers."
            async for facts in self._context.drive.list(prefix):
                floor = max(floor, (parse_consumers_key(facts.object_key) or 0) + 1)
        return await self._offsets.reserve(record.stream_id, floor)

    async def _kept(
        self,
        record: StreamRecord,
        before: SnapshotPointer | None,
        unreadable: Mapping[Reference, Corrupt],
    ) -> list[StoredOffset]:
        """What the snapshot before holds of consumers whose offsets this release cannot read (a
        later one wrote them, or they are damaged). They end nothing for the stream's others."""
        self._context.counts.unreadable_consumers += len(unreadable)
        for consumer, error in unreadable.items():
            log.error(
                "a consumer's offset cannot be read, its snapshot keeps an older one",
                stream_id=record.stream_id,
                consumer=consumer,
                error=str(error),
            )
        if before is None:
            return []
        key = consumers_key(record.stream_id, before.version, before.uid, record.tenant)
        try:
            snapshot = decode_snapshot(bytes(await self._context.drive.get(key)))
        except (ObjectMissing, Corrupt):
            log.exception("a snapshot of consumers cannot be read", object_key=key)
            return []
        return [stored for stored in snapshot.consumers if stored.consumer in unreadable]

    async def _put(self, snapshot: ConsumersSnapshot, pointer: SnapshotPointer) -> None:
        data = encode_snapshot(snapshot)
        await put_object(
            self._context.drive,
            consumers_key(snapshot.stream_id, pointer.version, pointer.uid, snapshot.tenant),
            [data],
            crc32c(data),
            deadline_seconds=self._context.settings.manifest_put_seconds,
        )
        self.written_count += 1

    def _retired(self, stream_id: StreamId, tenant: str, pointer: SnapshotPointer) -> Due:
        due_at = self._context.time.latest() + self._context.settings.manifest_root_grace_ms
        return delete_later(consumers_key(stream_id, pointer.version, pointer.uid, tenant), due_at)

    def _note(self, stream_id: StreamId, consumers: tuple[StoredOffset, ...]) -> None:
        self._known[stream_id] = {stored.consumer: stored.revision for stored in consumers}


@guard("the look at the generation before a snapshot of consumers is put")
async def check_not_lost(context: Context, generation: int | None) -> None:
    """Before a snapshot of what was read is put: a rebuild would believe that nothing was
    stored, where it was read from a store that was emptied, or is not rebuilt yet.

    Raises:
        Unavailable: `coordination-regressed`.
    """
    await context.streams.check_generation()
    if context.streams.generation != generation:
        raise Unavailable("coordination was rebuilt meanwhile", code=Code.COORDINATION_REGRESSED)
