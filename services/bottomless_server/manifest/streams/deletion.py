"""Delete a stream: tombstone, stop its owner, wait for readers, sweep, sweep again, forget.

What is there after a crash at each step; the operation goes on with the next one:

1. One EXEC writes the tombstone (state deleting, next epoch), takes the name out of the
   indexes and frees it, and enters the operation. Of a leaderless stream it closes the tail too.
   Before it, nothing; after it no claim, intent, registration, publish or commit of a consumer
   succeeds any more, and no append commits to a closed tail.
2. The registry object with the tombstone is put. A crash before it: the bucket still says
   that the stream is active, so that a rebuild would bring it back; nothing of it is
   deleted yet, so it would come back whole. The operation puts it before anything else.
3. The owner says that it stopped, or its lease and margin ran out: until then it may
   acknowledge appends from offsets that it had reserved. Only now is the 202 sent. What a
   closed tail still has is taken out a page at a time; its record goes with the last one.
4. After the grace for readers, and after leases, everything under the prefix but the
   tombstone is deleted, a page at a time, and of the drives that the record names one after the
   other. A crash between two pages, or in the middle of
   one, leaves fewer objects; the next listing finds the others. What the store does not let
   go is passed over until the others are gone, and then all is listed from its beginning.
5. After the longest upload deadline it is swept again: a fragment may have been put by an
   uploader that did not hear of the deletion.
6. The registry object, then consumers, indexes and the record. A crash between the first
   two leaves a record that says deleting with nothing under its prefix.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import structlog

from bottomless.drives.base import Drive
from bottomless.errors import Code, NotFound, Outcome, StoreError, Unavailable
from bottomless.formats.keys import parse_registry_key, stream_prefix
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.names import FullName, StreamId
from bottomless.model.object_facts import ObjectFacts
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.stream import StreamRecord, StreamState, live_leases
from bottomless_server.coordination.base import Changes, CoordinationUnknown
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.core.preconditions import require_match
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.preconditions import require_no_partition
from bottomless_server.manifest.common.failing_deletes import forget_stream, note_stream
from bottomless_server.manifest.common.once_more import once_more
from bottomless_server.manifest.common.other_drives import next_drive_of
from bottomless_server.manifest.common.owners import NodeAt
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done, described
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.registry.stream_description import etag
from bottomless_server.manifest.removal.range_leases import cut_leases, latest_end
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores import tails
from bottomless_server.stores.consumers import ConsumerOffsets
from bottomless_server.stores.forgetting import FOR_GOOD
from bottomless_server.stores.groups import ConsumerGroups
from bottomless_server.stores.operations import Operation, entered
from bottomless_server.stores.streams import node_key

log = structlog.get_logger(__name__)

KIND: Final = "delete-stream"

PAGE_COUNT: Final = 1_000
"""Objects of one page: what S3 deletes in one request; and entries of a tail that one EXEC takes out."""
_ASK_SECONDS: Final = 5.0
_ASK_AGAIN_MS: Final = 1_000
_SWEEP_AGAIN_MS: Final = 5_000
_WAIT_MS_MAX: Final = 60_000
_PASSED: Final = "_passed"
"""The last key of the page that was passed over, where something of it was not deleted."""
_DRIVE: Final = "_drive"
"""The number of the drive that is swept; not there for drive 0, which is the first."""
_FAILING: Final = "_failing_since"
"""When a sweep came to its end for the first time with something left, ms since 1970."""
_PAUSE_SECONDS: Final = 0.2
"""Between two questions whether the owner has stopped."""
_SWEEP_AFTER: Final = {"waiting": "sweeping", "waiting again": "sweeping again"}


class Deletions:
    """Begins deletions and carries them out; registered with `Operations` in app.py."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        mutators: Mutators,
        operations: Operations,
        *,
        page_count: int = PAGE_COUNT,
    ) -> None:
        self._context = context
        self._page_count = page_count
        self._registry = registry
        self._mutators = mutators
        self._operations = operations
        operations.register(KIND, self.step, endless=True)

    async def begin(self, name: FullName, if_match: str | None) -> Operation:
        """Write the tombstone and wait until the owner has stopped.

        Raises:
            NotFound: there is no such stream.
            WrongOffset: `etag-mismatch`.
            Unavailable: with outcome committed where the stream is deleted, but its owner did
                not confirm that it stopped, or the tombstone is not in the bucket yet.
        """
        await self._operations.make_room()
        return await self._begin(await self._context.streams.find(name), name, if_match)

    async def begin_partition(self, partition: StreamRecord) -> Operation:
        """Delete a partition of a super stream that is being deleted, as any stream.

        Raises:
            NotFound: it is being deleted already, or gone.
            Overloaded, Unavailable: as of every stream.
        """
        await self._operations.make_room()
        return await self._begin(partition.stream_id, partition.full_name, None, whole=True)

    async def _begin(
        self, stream_id: StreamId, name: FullName, if_match: str | None, *, whole: bool = False
    ) -> Operation:
        """Write the tombstone and wait; `whole` says that a partition goes with its super stream."""
        operation = self._operations.new(
            KIND,
            tenant=name.tenant,
            stream_id=stream_id,
            arguments={"name": name.name, "deleted_at": self._context.time.latest()},
        )
        record = await self._bury(stream_id, name, if_match, operation, whole=whole)
        await reach("manifest.deletion.after-exec")
        log.info("a stream is deleted", stream_id=stream_id, operation=operation.operation_id)
        self._context.damaged_sources.forget_stream(stream_id)
        with suppress(StoreError):
            # It finds the tombstone and forgets what it knew, so that nobody waits for it.
            await self._mutators.of(stream_id).refresh()
        record = await self._registry.ensure_object(record, committed=True)
        await reach("manifest.deletion.after-object")
        await self._wait_stopped(record, operation)
        self._operations.wake()
        return operation

    async def _bury(
        self,
        stream_id: StreamId,
        name: FullName,
        if_match: str | None,
        operation: Operation,
        *,
        whole: bool,
    ) -> StreamRecord:
        def decide(record: StreamRecord) -> StreamRecord:
            if record.state is not StreamState.ACTIVE:
                raise stream_not_found()
            if not whole:
                require_no_partition(record)
            require_match(if_match, etag(record))
            return replace(
                record,
                state=StreamState.DELETING,
                # There is no owner to be fenced of a leaderless one, and its epoch is its tail's.
                epoch=record.epoch + (not record.config.leaderless),
                version=record.version + 1,
                registry_version=record.registry_version + 1,
            )

        also = entered(operation, operation.created_at)
        try:
            return await self._entomb(stream_id, name, decide, also)
        except CoordinationUnknown as lost:
            try:
                return await once_more(lost, self._entomb(stream_id, name, decide, also))
            except NotFound:
                # Ours, if the first attempt did arrive: then our operation is there too.
                await once_more(lost, self._operations.find(operation.operation_id))
                return await once_more(lost, self._context.streams.load(stream_id))

    async def _entomb(
        self,
        stream_id: StreamId,
        name: FullName,
        decide: Callable[[StreamRecord], StreamRecord],
        also: Changes,
    ) -> StreamRecord:
        """Write the tombstone, and close the tail of a stream that has one."""
        streams = self._context.streams
        # The profile of a stream never changes.
        if not (await streams.load(stream_id)).config.leaderless:
            return await streams.bury(stream_id, name, decide, also)
        generation = self._registry.generation
        return await tails.close(streams, stream_id, name, generation, decide, also)

    async def _wait_stopped(self, record: StreamRecord, operation: Operation) -> None:
        close_ms = self._context.settings.manifest_close_ms
        if not await _wait_until(lambda: self._stopped(record), close_ms / 1000):
            raise Unavailable(
                "the stream is deleted, but its owner did not confirm that it stopped",
                code=Code.PEER_UNAVAILABLE,
                retryable=False,
                outcome=Outcome.COMMITTED,
                facts={"operation_id": operation.operation_id},
            )

    async def _stopped(self, record: StreamRecord) -> bool:
        """Whether nobody acknowledges an append to this stream any more."""
        if record.home is None or record.owner_url is None:
            return True
        at = NodeAt(record.home, record.owner_url)
        if await self._context.owners.close(at, record.stream_id, _ASK_SECONDS):
            return True
        # Coordination keeps a lease for longer than its holder believes in it. A process of
        # this node that comes later has to claim first, and meets the tombstone.
        try:
            return await self._context.coordination.get(node_key(record.home)) is None
        except StoreError:
            return False

    async def step(self, context: Context, operation: Operation) -> Again | Done:
        """One step of a deletion that has begun."""
        stream_id = operation.stream_id
        assert stream_id is not None
        progress = operation.progress
        try:
            record = await context.streams.load(stream_id)
        except NotFound:
            # Forgotten by the last step, which was not written down.
            return Done({"stream_id": stream_id, **_counts(progress)})
        now, deleted_at = context.clock(), int(operation.arguments["deleted_at"])
        phase = progress.get("phase", "closing")
        if phase == "closing":
            await self._registry.ensure_object(record)
            if not await self._stopped(record):
                return Again({"phase": phase}, now + _ASK_AGAIN_MS)
            more = record.config.leaderless and await tails.clear_page(
                context.coordination, stream_id, record.generation, self._page_count
            )
            return Again({"phase": phase if more else "waiting"})
        if phase == "waiting":
            waits_until = self._free_at(record, deleted_at, await context.time.over())
        elif phase == "waiting again":
            waits_until = deleted_at + context.settings.manifest_upload_deadline_ms
        else:
            waits_until = now
        if phase.startswith("waiting") and waits_until <= now:
            # What begins now cannot be taken back, so the time has to be a believed one.
            now = await context.time.require()
        if waits_until > now:
            # Not for all of it at once: leases end early, and settings change.
            told = {**progress, "waits_until": format_timestamp(waits_until)}
            delay_ms = min(waits_until - now, _WAIT_MS_MAX)
            # By the clock that the queue goes by: it may be ahead of the one that is believed.
            return Again(told, context.clock() + delay_ms)
        if phase in _SWEEP_AFTER:
            return Again({"phase": _SWEEP_AFTER[phase], **_counts(progress)})
        swept = await self._sweep(record, operation)
        if swept is not None:
            return swept
        if _FAILING in progress:
            await forget_stream(context.coordination, _prefix(record))
        if phase == "sweeping":
            return Again({"phase": "waiting again", **_counts(progress)})
        return await self._forget(record, progress)

    def done_at(self, record: StreamRecord, deleted_at: int) -> int:
        """Tell before which time (ms) the deletion of a stream cannot be over, as far as is known now."""
        uploads_end = deleted_at + self._context.settings.manifest_upload_deadline_ms
        return max(self._free_at(record, deleted_at, self._context.clock()), uploads_end)

    def _free_at(self, record: StreamRecord, deleted_at: int, over: int) -> int:
        """Find the time from which on nobody reads of it: leases have ended by a time that is
        believed.
        """
        settings = self._context.settings
        grace_end = deleted_at + settings.manifest_delete_grace_ms
        # None was granted after the deletion, and one that says more had a clock that was ahead.
        leases = live_leases(
            replace(record, leases=cut_leases(record, latest_end(settings, deleted_at))), over
        )
        return max([grace_end, *(lease.expires_at for lease in leases)])

    async def _sweep(self, record: StreamRecord, operation: Operation) -> Again | None:
        """Delete one page of what is left; None if nothing is."""
        progress = operation.progress
        passed = str(progress.get(_PASSED, ""))
        number = int(progress.get(_DRIVE, DEFAULT_NUMBER))
        if await self._context.drive_states.lost([number]):
            # Since the sweep came to it.
            return await self._next_drive(record, progress, number)
        drive = self._context.drives.of(number)
        page = await self._page(drive, record, passed)
        if not page:
            if passed:
                return await self._sweep_anew(record, operation)
            if number != DEFAULT_NUMBER:
                await drive.tidy(_prefix(record))
            return await self._next_drive(record, progress, number)
        failed = await drive.delete([facts.object_key for facts in page])
        await reach("manifest.deletion.mid-sweep")
        gone = [facts for facts in page if facts.object_key not in failed]
        counts = _counts(progress)
        after = {
            "phase": progress["phase"],
            "deleted_objects": counts["deleted_objects"] + len(gone),
            "deleted_bytes": counts["deleted_bytes"] + sum(facts.size for facts in gone),
            **{name: progress[name] for name in (_PASSED, _FAILING, _DRIVE) if name in progress},
        }
        if not failed:
            return Again(after, error=operation.error if passed else None)
        error = next(iter(failed.values()))
        log.warning("objects of a deleted stream are left", count=len(failed), error=str(error))
        # They keep nobody else's place: what comes after them is deleted first.
        after[_PASSED] = page[-1].object_key
        return Again(after, error=described(error))

    async def _sweep_anew(self, record: StreamRecord, operation: Operation) -> Again:
        """Everything that goes is gone, and something is left: begin again, ever more rarely."""
        progress, now = operation.progress, self._context.clock()
        since = int(progress.get(_FAILING, now))
        await note_stream(self._context.coordination, _prefix(record), since)
        after = {"phase": progress["phase"], **_counts(progress), _FAILING: since}
        after |= {_DRIVE: progress[_DRIVE]} if _DRIVE in progress else {}
        delay_ms = min(max(now - since, _SWEEP_AGAIN_MS), _WAIT_MS_MAX)
        return Again(after, now + delay_ms, operation.error)

    async def _next_drive(
        self, record: StreamRecord, progress: Mapping[str, Any], number: int
    ) -> Again | None:
        """Go on with the next drive that the stream may have something on; None where there is none.

        One that is away, or that this process does not know, holds up the deletion: what lies on it
        would stay for ever.
        """
        following = await next_drive_of(self._context, record, number)
        if following is None:
            return None
        kept = {name: progress[name] for name in (_FAILING,) if name in progress}
        return Again({"phase": progress["phase"], **_counts(progress), **kept, _DRIVE: following})

    async def _page(self, drive: Drive, record: StreamRecord, passed: str) -> Sequence[ObjectFacts]:
        page: list[ObjectFacts] = []
        async for facts in drive.list(_prefix(record), passed):
            # The tombstone stays until nothing else does, older objects of its kind go.
            if parse_registry_key(facts.object_key) == record.registry_version:
                continue
            page.append(facts)
            if len(page) == self._page_count:
                break
        return page

    async def _forget(self, record: StreamRecord, progress: Mapping[str, Any]) -> Done:
        left = [facts.object_key async for facts in self._context.drive.list(_prefix(record))]
        failed = await self._context.drive.delete(left)
        if failed:
            raise next(iter(failed.values()))
        await self._context.drive.tidy(_prefix(record))
        coordination = self._context.coordination
        await ConsumerOffsets(coordination).forget(record.stream_id, FOR_GOOD)
        await ConsumerGroups(coordination).forget(record.stream_id, FOR_GOOD)
        await self._context.streams.forget(record)
        log.info("a deleted stream is swept", stream_id=record.stream_id, **_counts(progress))
        return Done({"stream_id": record.stream_id, **_counts(progress)})


def _prefix(record: StreamRecord) -> str:
    return stream_prefix(record.stream_id, record.tenant)


def _counts(progress: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(progress.get(name, 0)) for name in ("deleted_objects", "deleted_bytes")}


async def _wait_until(fact: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Ask until it is so, or until `seconds` are over, and at least once; whether it is so."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not await fact():
        left = deadline - loop.time()
        if left <= 0:
            return False
        await asyncio.sleep(min(left, _PAUSE_SECONDS))
    return True
